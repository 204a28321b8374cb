"""The option --report: checked before any budget is spent, and written at the end."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from eigenveil.commands._ending import wrote
from eigenveil.commands._files import require_output
from eigenveil.show.console import Line, busy, output

if TYPE_CHECKING:
    from eigenveil.model import Model
    from eigenveil.show.marks import Chart
    from eigenveil.show.values import Report

__all__ = [
    "ENDINGS",
    "PICTURES",
    "report_of",
    "require_picture",
    "require_report",
    "write",
    "write_json",
    "write_picture",
    "written_model",
]

# Written here too, so that a wrong name is refused before anything heavy is imported. A test compares them.
ENDINGS: Final = (".html", ".json", ".pdf")
PICTURES: Final = (".svg", ".png")


def require_report(path: Path | None, *, force: bool, inputs: Sequence[Path]) -> None:
    """Refuse a report that could not be written."""
    if path is None:
        return
    require_output(path, endings=ENDINGS, force=force, inputs=inputs, option="--report")
    # Asked before the fit: a printer that is missing at the end would be noticed after the budget was spent.
    if path.suffix.lower() == ".pdf":
        from eigenveil.show.pages import require_printer

        require_printer(path)


def write(path: Path | None, made: "Callable[[], Report]", *, say: Callable[[str], None] | None = None) -> None:
    """Write the report that `made` makes, and `say` where it is. Without a path nothing is made."""
    if path is None:
        return
    with busy("writing the report"):
        from eigenveil.show.pages import write_report

        write_report(made(), path)
    wrote(path)
    words = f"report written to {path}"
    if say is None:
        output().print(words, soft_wrap=True)
    else:
        say(words)


def report_of(model: "Model", *, data: Path, dataset: str | None = None, **more: Any) -> "Report":
    """The report of a `model`, with what else `model_report` takes.

    Without a name for the `dataset`, the report has the name of the file `data`. Whoever asked for the report chose that name,
    and the model does not have it. A pipe has none.
    """
    from eigenveil.show.report import model_report

    return model_report(model, dataset=dataset or (data.name if data.exists() else "") or None, **more)


def written_model(path: Path) -> Iterator[Line]:
    """Where a model is, and how to look at it."""
    yield Line(f"\nmodel written to {path}")
    yield Line(f"show it again with: eigenveil inspect {path}", "dim")


def require_picture(path: Path, *, force: bool, inputs: Sequence[Path]) -> None:
    """Refuse a picture that could not be drawn."""
    require_output(path, endings=PICTURES, force=force, inputs=inputs, option="--plot")
    if path.suffix.lower() == ".png":
        # Looked up and not imported: matplotlib is slow to load, and the command may still be refused.
        from importlib.util import find_spec

        from eigenveil.errors import require

        there = find_spec("matplotlib") is not None
        require(there, f"{path}: a PNG needs matplotlib: pip install 'eigenveil[plot]'. Or name an .svg file")


def write_picture(chart: "Chart", path: Path) -> None:
    """Draw a chart of public numbers to an .svg or .png file."""
    from eigenveil.data.archive import whole_file
    from eigenveil.show.marks import png

    with whole_file(path) as temporary:
        if path.suffix.lower() == ".png":
            temporary.write_bytes(png(chart))
        else:
            temporary.write_text(chart.document(), encoding="utf-8")
        # Readable by all: it shows public numbers only.
        temporary.chmod(0o644)
    wrote(path)


def write_json(path: Path, plain: Mapping[str, Any]) -> None:
    """Write plain values completely or not at all. They were released, so everybody may read them."""
    from eigenveil.data.archive import whole_file

    with whole_file(path) as temporary:
        temporary.write_text(json.dumps(plain, indent=2, allow_nan=False) + "\n", encoding="utf-8")
        # `whole_file` makes files for their owner alone, and these are meant to be shared.
        temporary.chmod(0o644)
