"""`eigenveil report`: a model, a run or a study as one file to show and to sign."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

from eigenveil.commands import _options as common
from eigenveil.commands._command import Command
from eigenveil.commands._files import ENDINGS, require_file, require_output, require_report, write
from eigenveil.commands._options import argument, option
from eigenveil.errors import require

if TYPE_CHECKING:
    from eigenveil.show.values import Report, ScoresPart

__all__ = ["COMMAND"]

# More dots than this cover each other.
_MOST_DOTS: Final = 5000


def report(
    source: Annotated[
        Path, argument("MODEL|RUN|STUDY", "A .safetensors model, a .json report of a run, or the .toml file of a study.")
    ],
    target: Annotated[
        Path | None,
        option(
            "--output",
            "-o",
            "FILE",
            "Write to this file: .html, .json, or .pdf if Chromium is installed.",
            none_means="the same name, with .html",
        ),
    ] = None,
    scores: Annotated[
        Path | None,
        option(
            "--raw-scores",
            "FILE",
            "For the owner of the rows only: also draw the scores in this .csv file. THE REPORT IS THEN RAW DATA.",
        ),
    ] = None,
    title: Annotated[
        str | None, option("TEXT", "The title, such as the name of the dataset. Every reader of the report sees it.")
    ] = None,
    force: common.Force = False,
) -> None:
    """Write a report of a model, a run or a study: one file, to show and sign.

    It shows the answer, the variances with the noise floor, and what the
    components are made of. It also shows what other budgets would have
    bought, and has the guarantee on a page of its own.

      eigenveil report model.safetensors -o report.html

    A run across organisations: the hub writes heart.report.json, which has
    its rounds and its model. The study file alone shows what was agreed:

      eigenveil report heart.report.json -o heart.html
      eigenveil report heart.toml -o agreed.html

    The file loads nothing from anywhere and can be sent by e-mail. It is
    made from released numbers. No row is read, and nothing is charged.
    """
    require_file(source)
    path = source.with_suffix(".html") if target is None else target
    inputs = [source, *([] if scores is None else [scores])]
    require_output(path, endings=ENDINGS, force=force, inputs=inputs)
    # The line above has settled whether the file may be replaced. This one asks whether a PDF could be printed.
    require_report(path, force=True, inputs=inputs)

    # A function, so that the files are read while `write` shows that it is busy.
    def made() -> "Report":
        document = _read(source)
        if title:
            document = replace(document, title=title)
        return document if scores is None else replace(document, scores=_scores(scores))

    write(path, made)


def _read(path: Path) -> "Report":
    """The report of whatever `path` is, by its ending."""
    from eigenveil.show.pages import read_report
    from eigenveil.show.report import model_report

    match path.suffix.lower():
        case ".json":
            return read_report(path)
        case ".toml":
            # Imported here: the report of a model does not need the code of studies.
            from eigenveil.show.agreement import study_report

            return study_report(path)
        case ".safetensors":
            from eigenveil.data.archive import ITEMS_FORMAT, format_of

            if format_of(path) == ITEMS_FORMAT:
                from eigenveil.show.recommend import items_report

                return items_report(path)
            from eigenveil.model import Model

            return model_report(Model.load(path))
    raise ValueError(f"{path} is not a model (.safetensors), a run (.json) or a study (.toml)")


def _scores(path: Path) -> "ScoresPart":
    """The first two columns of a file of scores that `transform` or a site wrote."""
    import csv

    from eigenveil.show.values import ScoresPart

    require(path.suffix.lower() == ".csv", f"--raw-scores must be a .csv file, got {path}")
    require_file(path)
    # Excel starts a CSV file with a byte order mark, which would stick to the first column name.
    with path.open(encoding="utf-8-sig", newline="") as file:
        lines = csv.reader(file)
        names = next(lines, [])
        # Found by name, because an id may stand before the scores.
        places = [names.index(name) for name in ("component1", "component2") if name in names]
        require(len(places) == 2, f"{path} has no columns component1 and component2. Write it with `eigenveil transform`")
        try:
            # The first rows: a sample that was not chosen by its values.
            points = tuple(
                (float(row[places[0]]), float(row[places[1]])) for row, _ in zip(lines, range(_MOST_DOTS), strict=False)
            )
        except (ValueError, IndexError):
            # The text of the error would quote a score.
            raise ValueError(f"{path}: a score is not a number") from None
    require(bool(points), f"{path} has no rows")
    return ScoresPart(points)


COMMAND = Command(run=report, panel="Use and check a model")
