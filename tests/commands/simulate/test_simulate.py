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

from commands.command_tables import COUNT, FORMATS, NAMES, PRIVATE, arrow_table, eigenveil, refusal, rows, written
from eigenveil import FederatedPCA, GossipPCA, Model, PrivatePCA
from eigenveil.commands._files import Reading
from eigenveil.commands._splits import SplitRule, part
from eigenveil.data.formats import TableParams
from eigenveil.data.rows import NamedRows
from eigenveil.linalg import sines

EXACT = ("-k", 2, "--no-privacy")


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


def test_masks_without_noise_find_the_exact_components(tmp_path: Path) -> None:
    source = written(tmp_path, "csv")
    result = eigenveil("simulate", source, *EXACT, "--sites", 6, "--trust", "masked", "--survivors", 4, "--seed", 1)
    assert result.exit_code == 0, result.output
    assert "100.0000% of the variance" in result.stdout


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
    arguments += "--trust site --neighbours zero-out --origin 0 --mean-bound 30 --scale 1,1,1,1,2 --column-bounds -20,20 "
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


@pytest.mark.parametrize(("topology", "kind"), [((), FederatedPCA), (("--graph", "ring"), GossipPCA)])
def test_a_model_can_be_loaded_to_score_the_table_it_came_from(tmp_path: Path, topology: Any, kind: Any) -> None:
    source, target = tmp_path / "people.csv", tmp_path / "model.safetensors"
    values = rows()
    values[::9, 2] = -9
    table = arrow_table(values, sex=["f", "m", "f"] * (COUNT // 3) + ["m"] * (COUNT % 3), who=list(range(COUNT)))
    pc.write_csv(table, source)
    how = ("--drop", "who", "--one-hot", "sex=f,m", "--na-values", "-9", "--missing", "fill", "--missing-fill", 0)
    made = eigenveil("simulate", source, "-k", 2, "--no-privacy", "--sites", 3, *topology, *how, "-o", target)
    assert made.exit_code == 0, made.stderr
    turned = table.to_pandas().iloc[:, ::-1]
    plain = turned.assign(**{NAMES[2]: values[:, 2] * (values[:, 2] != -9)})
    loaded = kind.load(target)
    assert (loaded.drop, loaded.one_hot) == (["who"], {"sex": ["f", "m"]})
    for scorer in (loaded, Model.load(target)):
        np.testing.assert_allclose(scorer.transform(turned), Model.load(target).transform(plain))


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
    assert "a person has rows at more than 1 site. Raise --person-sites" in refusal(*arguments)
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
        assert "needs a table with column names" in refusal("simulate", written(tmp_path, kind), *EXACT, "--split", "by:age")
    gaps = visits(tmp_path, "parquet", ward=[None] + [1.0] * (COUNT - 1))
    drop = ("--drop", "hospital", "--drop", "patient")
    assert "column 'ward' has missing values" in refusal("simulate", gaps, *EXACT, "--split", "by:ward", *drop)
    assert "ward (text)" in refusal("simulate", source, *EXACT, "--sites", 3)


def test_the_example_in_the_docs_says_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "command-line.md").read_text(encoding="utf-8")
    script, shown = re.findall(r"\$ python -c '(.*?)'\n\$ eigenveil simulate wards[^\n]*\n(.*?)```", page, flags=re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-c", script], check=True)
    said = eigenveil("simulate", "wards.csv", *EXACT, "--split", "by:ward").stdout
    # How far directions move, and the last digits of the answer, depend on a random start.
    plain = [re.sub(r"\d\.\d+e-\d\d", "~", " ".join(text.split())) for text in (shown, said)]
    assert plain[0] == plain[1]


READING: dict[str, Any] = {"reading": Reading(params=TableParams()), "person_sites": 1, "exact": {}}


def values(folder: Path, rule: SplitRule, seed: int = 0, kind: str = "npy") -> list[Any]:
    found = part(written(folder, kind), rule, rng=np.random.default_rng(seed), **READING)
    for site in found.sites.values():
        assert isinstance(site, NamedRows)
        assert site.names == (NAMES if kind == "csv" else None)
    return [next(site.blocks(COUNT)).values for site in found.sites.values()]


def test_every_row_is_at_one_site(tmp_path: Path) -> None:
    for rule in (SplitRule("iid", 7), SplitRule("skewed", 7), SplitRule("iid", COUNT)):
        for kind in ("npy", "csv", "sparse.npz"):
            sites = [site.toarray() if kind == "sparse.npz" else site for site in values(tmp_path, rule, kind=kind)]
            assert len(sites) == rule.count
            together = np.concatenate(sites)
            assert np.allclose(together[np.lexsort(together.T)], rows()[np.lexsort(rows().T)])


def test_iid_sites_are_even_and_skewed_ones_follow_a_power_law(tmp_path: Path) -> None:
    even = [len(site) for site in values(tmp_path, SplitRule("iid", 7))]
    assert max(even) - min(even) <= 1
    sizes = np.array([len(site) for site in values(tmp_path, SplitRule("skewed", 20))])
    shares = 1 / np.arange(1, 21)
    assert np.abs(sizes - COUNT * shares / shares.sum()).max() < 20


def test_skewed_sites_are_of_different_populations(tmp_path: Path) -> None:
    def spread(kind: str) -> float:
        return float(np.ptp([site[:, 0].mean() for site in values(tmp_path, SplitRule(kind, 4))]))

    # The first column carries the first direction, with a standard deviation of 5. Halves of the two ends of it, unmixed with
    # the other half, would be 8 apart; means of 120 random rows are further apart than 2.7 once in a million times.
    assert spread("iid") < 2.7 < 3 < spread("skewed") < 8


def test_a_seed_fixes_the_split(tmp_path: Path) -> None:
    for kind in ("iid", "skewed"):
        one, same, other = (values(tmp_path, SplitRule(kind, 5), seed) for seed in (1, 1, 2))
        assert all(np.array_equal(left, right) for left, right in zip(one, same, strict=True))
        assert not np.array_equal(one[0], other[0])
