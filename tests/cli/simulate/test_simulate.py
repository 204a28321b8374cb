"""`eigenveil simulate`: every split, trust and fault gives a table of rounds, every mistake one line."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest

from cli.cli_tables import COUNT, FORMATS, NAMES, PRIVATE, arrow_table, eigenveil, files_in, refusal, rows, written
from eigenveil import FederatedPCA, Model, PrivatePCA
from eigenveil.linalg import sines

EXACT = ("-k", 2, "--no-privacy")
BOTH = ("--epsilon", "3,1", "--delta", "1e-6", "--row-bound", 12, "--trust", "both")


def visits(folder: Path, ending: str = "csv", **more: Any) -> Path:
    """A table that says at which hospital, and whose, each row is: a person has two rows, at one hospital."""
    path = folder / f"visits.{ending}"
    hospital = [("north", "south", "X")[i // 2 % 3] for i in range(COUNT)]
    table = arrow_table(rows(), hospital=hospital, patient=[f"p{i // 2}" for i in range(COUNT)], **more)
    (pc.write_csv if ending == "csv" else pq.write_table)(table, path)
    return path


def lines(text: str) -> list[list[str]]:
    """The rounds of the table, each as its words."""
    return [line.split() for line in text.splitlines() if re.match(r"\s+\d+\s", line)]


@pytest.mark.parametrize("kind", FORMATS)
@pytest.mark.parametrize("split", ["iid", "skewed"])
def test_every_format_and_split_finds_the_exact_components(tmp_path: Path, kind: str, split: str) -> None:
    target = tmp_path / "model.safetensors"
    arguments = ("--sites", 7, "--split", split, "-o", target)
    result = eigenveil("simulate", written(tmp_path, kind), *EXACT, *arguments)
    assert result.exit_code == 0, result.output
    exact = PrivatePCA(2, epsilon=None).fit(rows())
    model = Model.load(target)
    assert sines(model.subspace.basis, exact.subspace_.basis)[0] < 1e-7
    assert model.columns == (NAMES if kind in {"csv", "parquet"} else None)
    assert model.settings["split"] == split
    assert "100.0000% of the variance" in result.stdout
    assert result.stderr == ""


@pytest.mark.parametrize("ending", ["csv", "parquet"])
def test_by_column_makes_a_site_of_each_value_and_leaves_the_column_out(tmp_path: Path, ending: str) -> None:
    target = tmp_path / "model.safetensors"
    arguments = ("--split", "by:hospital", "--drop", "patient", "-o", target)
    result = eigenveil("simulate", visits(tmp_path, ending), *EXACT, *arguments)
    assert result.exit_code == 0, result.output
    assert Model.load(target).columns == NAMES
    assert "3 in a star, split by hospital" in result.stdout
    assert "100.0000% of the variance" in result.stdout


def test_numbers_name_sites_in_their_order(tmp_path: Path) -> None:
    source = tmp_path / "wards.csv"
    pc.write_csv(arrow_table(rows(), ward=[i % 11 for i in range(COUNT)]), source)
    line = refusal("simulate", source, *EXACT, "--split", "by:ward", "--dead", 11)
    assert "The sites are ward 0 to ward 10" in line
    result = eigenveil("simulate", source, *EXACT, "--split", "by:ward", "--dead", 10, "--quorum", 10)
    assert "no answer  ward 10 in round 1" in result.stdout


def test_the_table_has_a_line_for_each_round(tmp_path: Path) -> None:
    source = written(tmp_path, "npy")
    result = eigenveil("simulate", source, *EXACT, "--sites", 4, "--seed", 3)
    expected = FederatedPCA(2, epsilon=None).fit(np.array_split(rows(), 4))
    shown = lines(result.stdout)
    assert [line[0] for line in shown] == [str(i + 1) for i in range(len(expected.transcript_))]
    assert [line[1] for line in shown] == [done.stage.split()[0] for done in expected.transcript_]
    first = expected.transcript_[0]
    assert shown[0] == ["1", "mean", "4", str(first.bytes_up), "B", str(first.bytes_down), "B"]
    for words in ("round", "stage", "answered", "up", "down", "movement", "traffic  "):
        assert words in result.stdout
    assert re.search(r"method\s+krylov: exact to", result.stdout)
    assert "charge" not in result.stdout
    assert "No privacy: exact PCA was asked for." in result.stdout


def test_a_long_table_shows_its_first_and_last_rounds(tmp_path: Path) -> None:
    arguments = ("--sites", 3, "--method", "power", "--rounds", 60, "--tolerance", 0, "--center", "none")
    result = eigenveil("simulate", written(tmp_path, "npy"), *EXACT, *arguments)
    shown = [int(line[0]) for line in lines(result.stdout)]
    # Sixty, and one for the totals.
    assert shown == [*range(1, 21), *range(42, 62)]
    assert re.search(r"\.\.\.\s+21 more", result.stdout)


@pytest.mark.parametrize(
    ("terms", "columns"),
    [(PRIVATE, "charge, mu"), ((*PRIVATE, "--trust", "site"), "charge, mu"), (BOTH, "mu, hub / site")],
    ids=["hub", "site", "both"],
)
def test_every_trust_shows_its_charges_and_its_guarantee(tmp_path: Path, terms: tuple[Any, ...], columns: str) -> None:
    source = written(tmp_path, "npy")
    result = eigenveil("simulate", source, "-k", 2, "--sites", 5, *terms, "--guarantee")
    assert result.exit_code == 0, result.output
    assert columns in result.stdout
    assert "0.063" in result.stdout
    assert ("0.063 / 0.17" in result.stdout) == (terms == BOTH)
    words = " ".join(re.sub(r"[│\n]", " ", result.stdout).split())
    assert (
        "(1, 1e-06)-differential privacy for each person" in words
        and "Each person, who has one row at one site." in words
    )
    assert "A simulation: one process had all rows" in words
    against = {"hub": "raw parts", "site": "the hub and the other sites", "both": "is (3, 1e-06)"}
    assert against["hub" if terms == PRIVATE else "both" if terms == BOTH else "site"] in words
    assert files_in(tmp_path) == {source.name}


def test_masks_show_charges_dropouts_and_their_guarantee(tmp_path: Path) -> None:
    source, target = written(tmp_path, "npy"), tmp_path / "model.safetensors"
    terms = (*PRIVATE, "--trust", "masked", "--survivors", 0.7, "--colluders", 2, "--dead", "any:2", "--seed", 3)
    result = eigenveil("simulate", source, "-k", 2, "--sites", 9, *terms, "--guarantee", "-o", target)
    assert result.exit_code == 0, result.output
    assert "7 of 9" in result.stdout
    assert "charge, mu" in result.stdout
    words = " ".join(re.sub(r"[│\n]", " ", result.stdout).split())
    assert "the hub, even if it breaks the protocol, together with up to 2 other sites" in words
    assert Model.load(target).settings["trust"] == "masked, 7 survivors of whom 2 may collude"


def test_masks_without_noise_find_the_exact_components(tmp_path: Path) -> None:
    source = written(tmp_path, "csv")
    result = eigenveil("simulate", source, *EXACT, "--sites", 6, "--trust", "masked", "--survivors", 4, "--seed", 1)
    assert result.exit_code == 0, result.output
    assert "100.0000% of the variance" in result.stdout


def test_too_few_survivors_are_named(tmp_path: Path) -> None:
    arguments = (*EXACT, "--sites", 6, "--trust", "masked", "--survivors", 5, "--dead", 1, "--dead", 4)
    line = refusal("simulate", written(tmp_path, "csv"), *arguments, code=3)
    assert line == (
        "error: quorum lost in round 1 (mean 1, exchange of keys): no answer from site 1, site 4. "
        "--survivors is 5: lower it to go on with fewer sites"
    )


def test_a_comparison_is_shown_when_asked_for_and_said_not_to_be_covered(tmp_path: Path) -> None:
    source = written(tmp_path, "npy")
    private = ("simulate", source, "-k", 2, "--sites", 3, *PRIVATE)
    quiet = eigenveil(*private).stdout
    assert "captured" not in quiet
    assert "--guarantee shows" in quiet
    loud = eigenveil(*private, "--compare").stdout
    assert re.search(r"captured  \d+\.\d{4}% of the variance", loud)
    assert "NOT covered by the guarantee" in loud
    assert "captured" not in eigenveil("simulate", source, *EXACT, "--sites", 3, "--no-compare").stdout


def test_the_comparison_counts_a_person_once_and_in_the_same_units(tmp_path: Path) -> None:
    source = tmp_path / "visits.csv"
    values = rows()
    # One person with most of the rows, all in a direction of their own.
    values[:900] = [0, 0, 0, 0, 400.0]
    patient = ["p"] * 900 + [f"p{i}" for i in range(COUNT - 900)]
    pc.write_csv(arrow_table(values, patient=patient), source)
    arguments = (*EXACT, "--sites", 4, "--person", "patient", "--scale", "1,1,1,1,100", "--drop", "income")
    assert "--scale must be a number or 4" in refusal("simulate", source, *arguments)
    result = eigenveil("simulate", source, *arguments[:-2])
    assert "100.0000% of the variance" in result.stdout


@pytest.mark.parametrize("method", ["power", "fedpower", "covariance", "merge", "uda", "wda", "dr-svd"])
def test_every_method_runs_in_every_topology_it_has(tmp_path: Path, method: str) -> None:
    source = written(tmp_path, "npy")
    shape = () if method in {"uda", "wda"} else ("--topology", "tree", "--fanout", 3)
    result = eigenveil("simulate", source, *EXACT, "--sites", 8, "--method", method, *shape)
    assert result.exit_code == 0, result.output
    assert f"{method} was asked for" in result.stdout
    assert ("8 in a tree of fan-out 3" in result.stdout) == bool(shape)


def test_options_reach_the_estimator(tmp_path: Path) -> None:
    source, target = visits(tmp_path), tmp_path / "model.safetensors"
    arguments = "--split by:hospital --drop patient --method fedpower --local-steps 3,2,1 --rounds 4 --oversample 1 --align sign "
    arguments += (
        "--trust site --neighbours zero-out --origin 0 --mean-bound 30 --scale 1,1,1,1,2 --column-bounds -20,20 "
    )
    arguments += "--tolerance 0 --quorum 0.5 --seed 7 --participation with-replacement:2 --person-sites 2"
    result = eigenveil("simulate", source, "-k", 2, *PRIVATE, *arguments.split(), "-o", target)
    assert result.exit_code == 0, result.output
    hospital = np.array([("north", "south", "X")[i // 2 % 3] for i in range(COUNT)])
    expected = FederatedPCA(
        2,
        epsilon=1,
        delta=1e-6,
        row_bound=12,
        column_bounds=(-20, 20),
        method="fedpower",
        trust="site",
        rounds=4,
        tolerance=0.0,
        oversample=1,
        local_steps=[3, 2, 1],
        align="sign",
        participation=("with-replacement", 2),
        quorum=0.5,
        origin=0.0,
        mean_bound=30,
        scale=[1, 1, 1, 1, 2],
        neighbours="zero-out",
        person_sites=2,
        random_state=7,
    ).fit({f"hospital {name}": rows()[hospital == name] for name in ("X", "north", "south")})
    model = Model.load(target)
    assert np.array_equal(model.components, expected.components_)
    assert model.guarantee.charges == expected.guarantee_.charges
    assert "NOT PRIVATE: --seed was given" in result.stdout


def test_a_model_can_be_inspected_and_overwritten_by_force_only(tmp_path: Path) -> None:
    source, target = visits(tmp_path), tmp_path / "model.safetensors"
    arguments = ("simulate", source, "-k", 2, *PRIVATE, "--split", "by:hospital", "--drop", "patient", "-o", target)
    result = eigenveil(*arguments)
    assert f"model written to {target}" in result.stdout
    shown = eigenveil("inspect", target).stdout
    for words in ("age=", "by hospital", "A simulation: one process had all rows", "(1, 1e-06)-differential"):
        assert words in shown
    assert json.loads(eigenveil("inspect", target, "--json").stdout)["settings"]["trust"] == "hub"
    assert "already exists. Overwrite it with --force" in refusal(*arguments)
    assert eigenveil(*arguments, "--force").exit_code == 0


def test_a_persons_rows_stay_together_or_are_counted(tmp_path: Path) -> None:
    source, target = visits(tmp_path), tmp_path / "model.safetensors"
    for split in (("--sites", 5), ("--sites", 5, "--split", "skewed"), ("--split", "by:hospital")):
        drop = () if "by:hospital" in split else ("--drop", "hospital")
        arguments = ("-k", 2, *PRIVATE, *split, *drop, "--person", "patient", "-o", target, "--force")
        result = eigenveil("simulate", source, *arguments)
        assert result.exit_code == 0, result.output
        assert "with all of their rows" in Model.load(target).guarantee.unit
    spread = tmp_path / "spread.csv"
    pc.write_csv(arrow_table(rows(), ward=[i % 3 for i in range(COUNT)], who=[i // 2 for i in range(COUNT)]), spread)
    arguments = ("simulate", spread, "-k", 2, *PRIVATE, "--split", "by:ward", "--person", "who")
    assert "somebody has rows at more than 1 site. Raise --person-sites" in refusal(*arguments)
    assert eigenveil(*arguments, "--person-sites", 2).exit_code == 0


def test_no_private_number_is_in_what_a_private_run_says_or_writes(tmp_path: Path) -> None:
    secret = rows()
    secret[3] = [123456.789, 2.5, 3.5, 4.5, 5.5]
    source, target = tmp_path / "people.csv", tmp_path / "model.safetensors"
    sizes = {"a": 211, "b": 307, "c": COUNT - 211 - 307}
    pc.write_csv(arrow_table(secret, ward=[name for name, size in sizes.items() for _ in range(size)]), source)
    for trust in ("hub", "site"):
        arguments = ("--split", "by:ward", "--trust", trust, "--guarantee", "-o", target, "--force")
        result = eigenveil("simulate", source, "-k", 5, *PRIVATE, *arguments)
        assert result.exit_code == 0, result.output
        content = target.read_bytes()
        said = content.decode("latin-1") + result.output.replace(str(tmp_path), "")
        for number in (COUNT, COUNT - 1, 123456.789, *sizes.values()):
            # Digits inside a noisy number are chance.
            assert re.search(rf"(?<![\d.]){number}(?!\d)", said) is None
            for kind in (np.float64, np.int64):
                assert kind(number).tobytes() not in content


def test_what_goes_wrong_is_said(tmp_path: Path) -> None:
    source = written(tmp_path, "npy")
    arguments = (
        "--sites",
        6,
        "--seed",
        1,
        "--quorum",
        4,
        "--dead",
        "2@2",
        "--duplicate",
        0.4,
        "--delay",
        3,
        "--loss",
        0.1,
    )
    result = eigenveil("simulate", source, *EXACT, *arguments)
    assert result.exit_code == 0, result.output
    assert "site 2 in round 3, and the fit restarted" in result.stdout
    assert "5 of 6" in result.stdout
    assert re.search(r"refused\s+\d+ messages", result.stdout)
    assert "100.0000%" not in result.stdout


def test_a_lost_quorum_names_who_was_missing_and_has_its_own_code(tmp_path: Path) -> None:
    source, target = visits(tmp_path), tmp_path / "model.safetensors"
    arguments = ("simulate", source, *EXACT, "--split", "by:hospital", "--drop", "patient", "--dead", "X", "-o", target)
    line = refusal(*arguments, code=3)
    assert line == (
        "error: quorum lost in round 1 (mean 1): no answer from hospital X. "
        "By default every site must answer; allow for missing ones with --quorum 0.8"
    )
    assert "no answer from hospital X, hospital north. --quorum is 2" in refusal(
        *arguments, "--dead", "north", "--quorum", 2, code=3
    )
    assert eigenveil(*arguments, "--quorum", 2).exit_code == 0
    many = refusal(
        "simulate", source, *EXACT, "--sites", 30, "--drop", "patient", "--drop", "hospital", "--dead", "any:15", code=3
    )
    assert " and 5 more. " in many


MISTAKES: dict[str, tuple[object, ...]] = {
    "--sites is missing": EXACT,
    "--split must be iid, skewed or by:COLUMN, got 'by:'": (*EXACT, "--split", "by:"),
    "--split must be iid, skewed or by:COLUMN, got 'evenly'": (*EXACT, "--sites", 3, "--split", "evenly"),
    "--split by:age makes one site for each value of the column. Leave out --sites": (
        *EXACT,
        "--sites",
        3,
        "--split",
        "by:age",
    ),
    "has no column 'ward'": (*EXACT, "--split", "by:ward"),
    "has no column 'who'": (*EXACT, "--sites", 3, "--person", "who"),
    "--sites 2000: the table is too small": (*EXACT, "--sites", 2000),
    "--epsilon and --delta are missing. For example: --epsilon 1 --delta 1e-6": ("-k", 2, "--sites", 3),
    "--epsilon and --no-privacy contradict each other": (*EXACT, "--sites", 3, "--epsilon", 1),
    "--delta is missing. Try --delta 1e-6": ("-k", 2, "--sites", 3, "--epsilon", 1),
    "--trust says who adds the noise": (*EXACT, "--sites", 3, "--trust", "site"),
    "--survivors is for --trust masked": (*EXACT, "--sites", 3, "--survivors", 3),
    "--colluders is for --trust masked": (*EXACT, "--sites", 3, "--colluders", 1),
    "--survivors must be a number such as 4, or a share such as 0.8, got 'most'": (
        *(*EXACT, "--sites", 3, "--trust", "masked", "--survivors", "most"),
    ),
    "--survivors must be at least 3 of 3 sites of which 1 may collude": (
        *(*EXACT, "--sites", 3, "--trust", "masked", "--survivors", 2),
    ),
    "--quorum is not for --trust masked. Use --survivors": (*EXACT, "--sites", 3, "--trust", "masked", "--quorum", 3),
    "--trust masked needs --topology star": (*EXACT, "--sites", 3, "--trust", "masked", "--topology", "tree"),
    "--trust masked can only add, and --method merge does more": (
        *(*EXACT, "--sites", 3, "--trust", "masked", "--method", "merge"),
    ),
    "--fanout is for --topology tree": (*EXACT, "--sites", 3, "--fanout", 3),
    "--epsilon must be a number, or numbers with commas between, got 'some'": (
        "-k",
        2,
        "--sites",
        3,
        "--epsilon",
        "some",
    ),
    "--epsilon must be a pair with --trust both": ("-k", 2, "--sites", 3, *PRIVATE, "--trust", "both"),
    "--epsilon must be a number with --trust hub": ("-k", 2, "--sites", 3, *BOTH[:-2]),
    "--row-bound (or --column-bounds) is required": (
        *("-k", 2, "--sites", 3, "--epsilon", 1, "--delta", 1e-6, "--row-bound", "none"),
    ),
    "--components 9 must be at most": ("-k", 9, "--no-privacy", "--sites", 3),
    "--components must be an integer of at least 1, got 0": ("-k", 0, "--no-privacy", "--sites", 3),
    "--seed must not be negative": (*EXACT, "--sites", 3, "--seed", -1),
    "--method covariance takes one": (*EXACT, "--sites", 3, "--method", "covariance", "--rounds", 3),
    "--rounds must be an integer from 1 to 10000, got 0": (*EXACT, "--sites", 3, "--rounds", 0),
    "--tolerance must be in [0, 1), got 2.0": (*EXACT, "--sites", 3, "--tolerance", 2),
    "--local-steps must be a number such as 4": (*EXACT, "--sites", 3, "--local-steps", "decay:x"),
    "--local-steps is for --method fedpower": (*EXACT, "--sites", 3, "--local-steps", "4"),
    "--local-steps above 1 with --epsilon and --trust hub": (
        *("-k", 2, "--sites", 3, *PRIVATE, "--method", "fedpower", "--local-steps", "decay:4"),
    ),
    "--method dr-svd has no private form. Use --method auto, or --no-privacy": (
        *("-k", 2, "--sites", 3, *PRIVATE, "--method", "dr-svd"),
    ),
    "--participation must be full, with-replacement:K": (*EXACT, "--sites", 3, "--participation", "two"),
    "--participation must draw from 1 to 3": (
        *(*EXACT, "--sites", 3, "--method", "power", "--participation", "without-replacement:4"),
    ),
    "--participation with-replacement:2 draws sites by size, which --neighbours add-remove protects": (
        *("-k", 2, "--sites", 3, *PRIVATE, "--method", "power", "--participation", "with-replacement:2"),
    ),
    "--calibration paper has no private mean. Use --center none": (
        *("-k", 2, "--sites", 3, *PRIVATE, "--calibration", "paper"),
    ),
    "--quorum must be a number such as 4, or a share such as 0.8, got 'most'": (
        *EXACT,
        "--sites",
        3,
        "--quorum",
        "most",
    ),
    "--quorum must be from 1 to the 3 sites, got 4": (*EXACT, "--sites", 3, "--quorum", 4),
    "--quorum must be a whole number from 1, written without a point, or a share in (0, 1], such as 0.8, got 1.5": (
        *EXACT,
        "--sites",
        3,
        "--quorum",
        1.5,
    ),
    "--loss must lie in [0, 1), got 1.5": (*EXACT, "--sites", 3, "--loss", 1.5),
    "--delay must not be negative, got -1": (*EXACT, "--sites", 3, "--delay", -1),
    "--dead 3: no site has this name. The sites are site 0 to site 2": (*EXACT, "--sites", 3, "--dead", 3),
    "--dead any:4: there are only 3 sites": (*EXACT, "--sites", 3, "--dead", "any:4"),
    "--scale must be private, or numbers": (*EXACT, "--sites", 3, "--scale", "a"),
    "--scale must be a number or 5 numbers": (*EXACT, "--sites", 3, "--split", "skewed", "--scale", "1,2"),
    "must end in .safetensors": (*EXACT, "--sites", 3, "-o", "model.pickle"),
}


@pytest.mark.parametrize("words", MISTAKES)
def test_every_mistake_is_one_line_and_writes_nothing(tmp_path: Path, words: str) -> None:
    source = written(tmp_path, "csv")
    assert words in refusal("simulate", source, *MISTAKES[words])
    assert files_in(tmp_path) == {source.name}


def test_rows_that_cannot_be_used_are_refused_without_showing_a_value(tmp_path: Path) -> None:
    broken = rows()
    broken[3, 1:3] = [123456.789, np.nan]
    source = tmp_path / "people X.parquet"
    pq.write_table(arrow_table(broken, ward=["X"] * COUNT), source)
    line = refusal("simulate", source, *EXACT, "--split", "by:ward")
    which = f"error: {source}: column 'height' has missing values. Handle them with --missing counts"
    assert line.startswith(which) and "123456" not in line
    skewed = refusal("simulate", source, *EXACT, "--sites", 3, "--split", "skewed", "--drop", "ward")
    assert skewed == line
    named = tmp_path / "gone X.csv"
    assert refusal("simulate", named, *EXACT, "--sites", 3) == f"error: {named} does not exist. Check the path"
    for kind in ("npy", "svm"):
        assert "needs a table with column names" in refusal(
            "simulate", written(tmp_path, kind), *EXACT, "--split", "by:age"
        )
    gaps = visits(tmp_path, "parquet", ward=[None] + [1.0] * (COUNT - 1))
    drop = ("--drop", "hospital", "--drop", "patient")
    assert "column 'ward' has missing values" in refusal("simulate", gaps, *EXACT, "--split", "by:ward", *drop)
    assert "ward (text)" in refusal("simulate", source, *EXACT, "--sites", 3)


def test_published_noise_guarantees_nothing_and_claims_no_floor(tmp_path: Path) -> None:
    arguments = ("--sites", 3, "--epsilon", 1, "--delta", 1e-6, "--calibration", "paper", "--center", "none")
    result = eigenveil("simulate", written(tmp_path, "npy"), "-k", 2, *arguments)
    assert "No privacy: noise as published in FedPower Alg. 2" in result.stdout
    assert "noise floor" not in result.stdout


def test_the_example_in_the_docs_says_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "command-line.md").read_text(encoding="utf-8")
    script, shown = re.findall(
        r"\$ python -c '(.*?)'\n\$ eigenveil simulate wards[^\n]*\n(.*?)```", page, flags=re.DOTALL
    )[0]
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-c", script], check=True)
    said = eigenveil("simulate", "wards.csv", *EXACT, "--split", "by:ward").stdout
    # How far directions move, and the last digits of the answer, depend on a random start.
    plain = [re.sub(r"\d\.\d+e-\d\d", "~", " ".join(text.split())) for text in (shown, said)]
    assert plain[0] == plain[1]


def test_help_teaches() -> None:
    page = " ".join(re.sub(r"[│\n]", " ", eigenveil("simulate", "--help").stdout).split())
    for words in (
        "eigenveil simulate people.csv -k 5 --sites 20 --no-privacy",
        "--split by:hospital",
        "in proportion to 1 / (i + 1)",
        "except for a random half",
        "The process that runs this has all rows",
    ):
        assert words in page
    assert "simulate" in eigenveil("--help").stdout


def test_an_answer_that_is_not_the_only_one_is_said_to_be_so(tmp_path: Path) -> None:
    result = eigenveil("simulate", written(tmp_path, "npy", np.eye(8)), *EXACT, "--sites", 2, "--center", "none")
    assert "The last component is not unique" in result.stdout
    assert result.stderr == ""
