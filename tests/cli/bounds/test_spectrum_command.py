"""`eigenveil spectrum`: a file that the planner reads, or one line that says why there is none."""

import json
from pathlib import Path

import numpy as np
import pytest

from cli.cli_tables import FORMATS, eigenveil, files_in, refusal, rows, written
from eigenveil.plan.spectrum import Spectrum

BUDGET = ("--epsilon", "0.8", "--delta", "1e-6", "--row-bound", "12")


@pytest.mark.parametrize("kind", FORMATS)
def test_every_format_gives_a_spectrum_that_the_planner_reads(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "spectrum.json"
    result = eigenveil("spectrum", written(tmp_path, kind), *BUDGET, "--output", target)
    assert result.exit_code == 0, result.output
    found = Spectrum.from_json(json.loads(target.read_text()))
    truth = Spectrum.of_rows(rows(), row_bound=12.0)
    assert np.abs(found.values - truth.values).max() < 6 * found.error + 6 * found.spread
    assert found.source == "released with epsilon = 0.8, delta = 1e-06"


def test_what_was_found_what_it_cost_and_what_comes_next(tmp_path: Path) -> None:
    target = tmp_path / "spectrum.json"
    result = eigenveil("spectrum", written(tmp_path, "csv"), *BUDGET, "-o", target, "--mean-bound", 3, "--total", 2)
    places = [
        result.stdout.index(words)
        for words in (
            "spectrum of 5 columns",
            "twice the error of each",
            "people: ",
            "(0.8, 1e-06)-differential privacy",
            f"spectrum written to {target}",
            "which this leaves of 2 for both",
            "eigenveil plan -n ",
            f"--spectrum {target} --no-search",
        )
    ]
    assert places == sorted(places)
    known = eigenveil("spectrum", written(tmp_path, "csv"), *BUDGET, "-o", target, "--force", "--center", "none")
    assert "--center none" in known.stdout
    assert (
        "NOT PRIVATE"
        in eigenveil("spectrum", tmp_path / "people.csv", *BUDGET, "-o", target, "--force", "--seed", 1).stdout
    )


def test_noise_that_hides_all_of_it_writes_nothing_and_ends_with_one(tmp_path: Path) -> None:
    target = tmp_path / "spectrum.json"
    source = written(tmp_path, "csv")
    result = eigenveil("spectrum", source, "--epsilon", 0.01, "--delta", 1e-6, "--row-bound", 12, "-o", target)
    assert result.exit_code == 1
    assert result.stdout.startswith("No spectrum: ")
    assert files_in(tmp_path) == {"people.csv"}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ((), "--epsilon and --delta are missing. For example: --epsilon 0.1 --delta 1e-6"),
        (("--delta", 1e-6), "--epsilon is missing. Try --epsilon 0.1, or give --no-privacy"),
        (("--epsilon", 1, "--delta", 1e-6), "`eigenveil bounds`"),
        ((*BUDGET, "--row-bound", -1), "--row-bound must be positive"),
        ((*BUDGET, "-o", "spectrum.txt"), "--output must end in .json"),
        ((*BUDGET, "--column-bounds", 1), "--column-bounds must be LOW,HIGH"),
        ((*BUDGET, "--total", 0.1), "--total must be more than --epsilon"),
    ],
)
def test_every_mistake_is_one_line_and_no_file(tmp_path: Path, options: tuple[object, ...], words: str) -> None:
    source = written(tmp_path, "csv")
    more = () if "-o" in options else ("-o", tmp_path / "s.json")
    assert words in refusal("spectrum", source, *options, *more)
    assert files_in(tmp_path) == {"people.csv"}
