"""`eigenveil recommend`: every kind of file and option gives an item space, lists for a user, and figures for the holder."""

import json
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from sklearn.datasets import dump_svmlight_file
from typer.testing import CliRunner

from commands.command_tables import eigenveil, files_in, refusal
from eigenveil.commands import app
from eigenveil.recommend import ItemSpace, PrivateRecommender, read_interactions, split
from eigenveil.recommend.item_space import ndcg, recall
from recommend.histories_of_users import lines_of, tastes, write_lines

# Unusual numbers, so that finding one in an output means that it was put there.
USERS, ITEMS, GROUPS = 1013, 24, 3
PRIVATE = ("-k", GROUPS, "--epsilon", 1)
NAMES = [f"i{at}" for at in range(ITEMS)]
# Everybody has something: who has nothing has no line in a file either.
OWN = np.arange(USERS)[:, None] % GROUPS == np.arange(ITEMS)
PLAYS = sp.csr_array(np.maximum(tastes(USERS, ITEMS, groups=GROUPS, rng=np.random.default_rng(0)).toarray(), OWN))


def plays_in(folder: Path, kind: str = "csv") -> Path:
    """The path of a file of that kind with the histories."""
    path = folder / f"plays.{kind}"
    if kind == "npz":
        sp.save_npz(path, PLAYS)
        return path
    return write_lines(path, lines_of(PLAYS.toarray()))


def catalogue_in(folder: Path) -> Path:
    path = folder / "catalogue.txt"
    path.write_text("\n".join(NAMES) + "\n", encoding="utf-8")
    return path


def shops_in(folder: Path, *, south: str = "s{}") -> list[Path]:
    """Two sites, with half of the users each."""
    halves = {"north": (PLAYS.toarray()[::2], "n{}"), "south": (PLAYS.toarray()[1::2], south)}
    return [write_lines(folder / f"{name}.csv", lines_of(rows, user=user)) for name, (rows, user) in halves.items()]


@pytest.fixture
def space(tmp_path: Path) -> Path:
    """An item space with named items."""
    target = tmp_path / "items.safetensors"
    assert eigenveil("recommend", "fit", plays_in(tmp_path), *PRIVATE, "--epsilon", 4, "-o", target).exit_code == 0
    return target


@pytest.mark.parametrize("kind", ["csv", "csv.gz", "parquet", "npz"])
def test_every_kind_of_file_gives_an_item_space(tmp_path: Path, kind: str) -> None:
    target = tmp_path / "items.safetensors"
    done = eigenveil("recommend", "fit", plays_in(tmp_path, kind), *PRIVATE, "--epsilon", 4, "-o", target)
    assert done.exit_code == 0, done.output
    assert done.stderr == ""
    found = ItemSpace.load(target)
    assert (found.guarantee.epsilon, found.dim) == (4, ITEMS)
    assert (found.items is None) == (kind == "npz")
    # A user who likes two items of the first group is shown others of that group.
    best = found.top(found.history([0, 3] if found.items is None else ["i0", "i3"]), n=4)[0]
    names = best if found.items is None else [int(found.items[at][1:]) for at in best]
    assert all(int(at) % GROUPS == 0 for at in names)


def test_the_summary_says_what_was_planned_guaranteed_and_written_and_no_private_number(tmp_path: Path) -> None:
    target = tmp_path / "items.safetensors"
    source, catalogue = plays_in(tmp_path), catalogue_in(tmp_path)
    done = eigenveil("recommend", "fit", source, *PRIVATE, "-o", target, "--items-file", catalogue)
    for words in (
        "covariance: one release of all pairs of items",
        "% of the filter was found, and 3 of 3 directions are above the noise",
        "-differential privacy for each user",
        "joint differential privacy",
        f"item space written to {target}",
    ):
        assert words in re.sub(r"[│\s]+", " ", done.stdout)
    assert str(USERS) in done.stdout, "the number of users is public"
    assert "warning" not in done.stdout
    hidden = eigenveil(
        *("recommend", "fit", source, *PRIVATE, "-o", target, "--force"),
        *("--neighbours", "add-remove", "--delta", 1e-6, "--users-at-least", 5000),
    )
    assert "5000 users" in re.sub(r"\s+", " ", hidden.stdout)
    unplanned = eigenveil(
        *("recommend", "fit", source, *PRIVATE, "-o", target, "--force", "--even-if-noise"),
        *("--neighbours", "add-remove", "--delta", 1e-6),
    )
    assert "unknown, because nothing is known of the number of users" in unplanned.stdout
    for said in (hidden.output, unplanned.output):
        assert str(USERS) not in said
    for said in (done.output, hidden.output, unplanned.output):
        assert str(PLAYS.nnz) not in said


def test_options_reach_the_recommender(tmp_path: Path) -> None:
    source, target = plays_in(tmp_path, "npz"), tmp_path / "items.safetensors"
    degrees = tmp_path / "degrees.csv"
    degrees.write_text("item,degree\n" + "".join(f"{at},{at + 1}\n" for at in range(ITEMS)), encoding="utf-8")
    words = "--delta 1e-5 --unit item --min-degree 4 --method power --history 9 --even-if-noise --seed 5"
    done = eigenveil("recommend", "fit", source, *PRIVATE, *words.split(), "--item-degrees", degrees, "-o", target)
    assert done.exit_code == 0, done.output
    assert "NOT PRIVATE" in done.stdout
    expected = PrivateRecommender(
        GROUPS,
        epsilon=1,
        delta=1e-5,
        unit="item",
        min_degree=4,
        method="power",
        history=9,
        item_degrees=np.arange(1, ITEMS + 1),
        random_state=5,
    ).fit(PLAYS)
    found = ItemSpace.load(target)
    assert np.array_equal(found.components, expected.components_)
    assert found.degrees is not None
    assert np.array_equal(found.degrees, np.arange(1, ITEMS + 1))
    assert found.settings == expected.space_.settings


def test_ratings_public_lists_and_private_counts(tmp_path: Path) -> None:
    frame = lines_of(PLAYS.toarray()).rename(columns={"user": "person", "item": "film"})
    frame["stars"] = 5
    others = frame.head(40).assign(film="never listed")
    low = frame.head(40).assign(stars=1, film="i1")
    source = write_lines(tmp_path / "ratings.parquet", pd.concat([frame, others, low]).drop_duplicates(["person", "film"]))
    target = tmp_path / "items.safetensors"
    words = "--user person --item film --value stars --min-rating 4 --keep-items 20 --item-degrees private --normalise both"
    done = eigenveil("recommend", "fit", source, *PRIVATE, *words.split(), "--items-file", catalogue_in(tmp_path), "-o", target)
    assert done.exit_code == 0, done.output
    assert f"the 20 most popular of {ITEMS}" in done.stdout
    found = ItemSpace.load(target)
    assert found.items == tuple(NAMES)
    assert found.components.shape == (GROUPS, 20)
    assert found.settings["normalise"] == "both"
    assert found.degrees is not None


@pytest.mark.parametrize("trust", ["hub", "site", "masked"])
def test_several_files_are_several_sites(tmp_path: Path, trust: str) -> None:
    target = tmp_path / "items.safetensors"
    more = ("--survivors", 1.0, "--colluders", 1) if trust == "masked" else ()
    done = eigenveil(
        *("recommend", "fit", *shops_in(tmp_path), *PRIVATE, "--items-file", catalogue_in(tmp_path)),
        *("--trust", trust, *more, "-o", target),
    )
    assert done.exit_code == 0, done.output
    assert "north, south" in done.stdout
    assert "covariance 1" in done.stdout
    assert ItemSpace.load(target).settings["sites"] == 2
    assert ItemSpace.load(target).settings["trust"].partition(",")[0] == trust
    assert any("one program read the files of all sites" in words for words in ItemSpace.load(target).guarantee.caveats)


def test_sites_that_do_not_fit_together_are_refused(tmp_path: Path) -> None:
    shops, listed = shops_in(tmp_path), ("--items-file", catalogue_in(tmp_path))
    assert "--items-file" in refusal("recommend", "fit", *shops, *PRIVATE)
    assert "another file is named 'north' too" in refusal("recommend", "fit", shops[0], shops[0], *PRIVATE, *listed)
    shops = shops_in(tmp_path, south="n{}")
    assert "each user must be at one site" in refusal("recommend", "fit", *shops, *PRIVATE, *listed)
    for at, width in enumerate((ITEMS, ITEMS - 1)):
        sp.save_npz(tmp_path / f"site{at}.npz", PLAYS[:, :width])
    said = refusal("recommend", "fit", tmp_path / "site0.npz", tmp_path / "site1.npz", *PRIVATE)
    assert f"site1 has {ITEMS - 1} items, but site0 has {ITEMS}" in said
    assert "--trust masked needs at least 2 sites" in refusal("recommend", "fit", shops[0], *PRIVATE, "--trust", "masked")


def test_a_hopeless_budget_is_refused_with_what_would_do(tmp_path: Path) -> None:
    source, target = plays_in(tmp_path), tmp_path / "items.safetensors"
    arguments = ("recommend", "fit", source, "-k", GROUPS, "--epsilon", 0.003, "-o", target)
    said = refusal(*arguments)
    assert "Nothing was spent. To fit anyway, set --even-if-noise" in said
    assert "--epsilon 0.1" in said or "--epsilon 0.3" in said
    assert "set --history" in said
    assert not target.exists()
    done = eigenveil(*arguments, "--even-if-noise")
    assert done.exit_code == 0
    assert "By the same estimate, this would work" in re.sub(r"\s+", " ", done.stdout)
    assert "Warning" not in done.output
    assert "--history" in done.output
    assert target.exists()


def test_a_list_is_the_same_however_the_history_is_given_and_says_for_whom(tmp_path: Path, space: Path) -> None:
    known = ItemSpace.load(space)
    row = read_interactions(plays_in(tmp_path), items=known.items).row("u7")
    assert known.items is not None
    held = [known.items[at] for at in row.indices]
    mine = tmp_path / "mine.txt"
    mine.write_text("\n".join(held) + "\n\n", encoding="utf-8")
    expected = [known.items[at] for at in known.top(row, n=6)[0]]
    given = (
        [part for item in held for part in ("--have", item)],
        ["--have-file", mine],
        ["--from", plays_in(tmp_path), "--who", "u7"],
    )
    for one in given:
        done = eigenveil("recommend", "top", space, *one, "--first", 6)
        assert done.exit_code == 0, done.output
        assert done.stdout.split() == expected
        (line,) = done.stderr.splitlines()
        assert line.startswith("for this user alone")
    values = json.loads(eigenveil("recommend", "top", space, *given[0], "--first", 6, "--json").stdout)
    assert values["items"] == expected
    assert values["popular"] is False
    assert "for this user alone" in values["note"]


def test_items_without_names_go_by_number(tmp_path: Path) -> None:
    target, source = tmp_path / "items.safetensors", plays_in(tmp_path, "npz")
    eigenveil("recommend", "fit", source, *PRIVATE, "-o", target)
    known = ItemSpace.load(target)
    done = eigenveil("recommend", "top", target, "--from", source, "--who", 5, "--first", 3)
    assert done.stdout.split() == [str(at) for at in known.top(PLAYS[[5]], n=3)[0]]
    assert eigenveil("recommend", "top", target, "--have", 0, "--first", 2).exit_code == 0
    assert f"--have {ITEMS} is not an item number, 0 to {ITEMS - 1}, in" in refusal("recommend", "top", target, "--have", ITEMS)
    assert "pass a row number" in refusal("recommend", "top", target, "--from", source, "--who", "ann")
    assert "no user has number" in refusal("recommend", "top", target, "--from", source, "--who", USERS)


def test_who_has_nothing_gets_popular_items_and_is_told(tmp_path: Path, space: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("", encoding="utf-8")
    done = eigenveil("recommend", "top", space, "--have-file", empty, "--first", 4)
    assert len(done.stdout.split()) == 4
    assert "popular items" in done.stderr
    assert json.loads(eigenveil("recommend", "top", space, "--have-file", empty, "--json").stdout)["popular"] is True


def test_lists_that_cannot_be_made_are_refused_and_no_line_of_a_file_is_shown(tmp_path: Path, space: Path) -> None:
    mine = tmp_path / "mine.txt"
    mine.write_text("i0\nsecret illness\n", encoding="utf-8")
    said = refusal("recommend", "top", space, "--have-file", mine)
    assert f"line 2 of {mine} is not an item name" in said
    assert "secret" not in said
    mine.write_bytes(b"\xff\xfe\x00")
    assert "is not UTF-8 text" in refusal("recommend", "top", space, "--have-file", mine)
    assert "--have polka is not an item name" in refusal("recommend", "top", space, "--have", "polka")
    source = plays_in(tmp_path)
    assert "no user is named 'zoe'" in refusal("recommend", "top", space, "--from", source, "--who", "zoe")
    assert "go together" in refusal("recommend", "top", space, "--from", source)
    assert "go together" in refusal("recommend", "top", space, "--have", "i0", "--who", "u1")
    assert "items are missing. Give --have" in refusal("recommend", "top", space)
    assert "choose one of them" in refusal("recommend", "top", space, "--have", "i0", "--have-file", mine)
    assert "not an Eigenveil item space" in refusal("recommend", "top", mine, "--have", "i0")


def test_figures_are_those_of_the_lists_and_say_that_nothing_covers_them(tmp_path: Path) -> None:
    source = plays_in(tmp_path, "npz")
    arguments = ("recommend", "evaluate", source, *PRIVATE, "--seed", 3, "--first", 5)
    values = json.loads(eigenveil(*arguments, "--json").stdout)
    train, test = split(PLAYS, rng=np.random.default_rng([3, 2]))
    for name, epsilon in (("private, epsilon = 1", 1.0), ("exact, not private", None)):
        fitted = PrivateRecommender(GROUPS, epsilon=epsilon, random_state=3).fit(train)
        found = fitted.recommend(train, n=5)
        figures = {"recall": recall(found, test, n=5), "ndcg": ndcg(found, test, n=5)}
        assert values["found"][name] == pytest.approx(figures, abs=1e-9)
    assert values["found"]["private, epsilon = 1"]["recall"] > values["found"]["popularity, not private"]["recall"] + 0.1
    said = eigenveil(*arguments)
    shown = re.sub(r"[│\s]+", " ", said.stdout)
    for words in ("recall@5", "ndcg@5", "NOT COVERED BY THE GUARANTEE", "never publish them", "was discarded"):
        assert words in shown
    assert f"{values['found']['exact, not private']['recall']:.4f}" in shown
    for number in (PLAYS.nnz, train.nnz, test.nnz):
        assert str(number) not in said.output
    assert files_in(tmp_path) == {source.name}


def test_a_given_split_gives_the_figures_of_that_split(tmp_path: Path) -> None:
    parts = split(PLAYS, rng=np.random.default_rng([3, 2]))
    exact = ("-k", 3, "--no-privacy", "--json")
    drawn = json.loads(eigenveil("recommend", "evaluate", plays_in(tmp_path, "npz"), *exact, "--seed", 3).stdout)
    for ending in ("npz", "csv"):
        paths = [tmp_path / f"{name}.{ending}" for name in ("train", "test")]
        for path, part in zip(paths, parts, strict=True):
            sp.save_npz(path, part) if ending == "npz" else write_lines(path, lines_of(part.toarray()))
        more = () if ending == "npz" else ("--items-file", catalogue_in(tmp_path))
        done = eigenveil("recommend", "evaluate", paths[0], "--test", paths[1], *exact, *more)
        given = json.loads(done.stdout)
        assert list(given["found"]) == ["exact, not private", "popularity, not private"]
        for name, figures in given["found"].items():
            assert figures == pytest.approx(drawn["found"][name], abs=1e-9)
        assert not any("thrown away" in note for note in given["notes"])


def test_users_of_the_test_file_alone_are_shown_popular_items(tmp_path: Path) -> None:
    train, test = tmp_path / "train.csv", tmp_path / "test.csv"
    train.write_text("user,item\n" + "".join(f"u{at},{item}\n" for at in range(9) for item in ("a", "b")), encoding="utf-8")
    # What u0 shows is not held out from them, and nobody shows anything of the new one.
    test.write_text("user,item\nu0,a\nnew,a\nnew,b\n", encoding="utf-8")
    done = eigenveil("recommend", "evaluate", train, "--test", test, "-k", 1, "--no-privacy", "--json", "--first", 2)
    assert done.exit_code == 0, done.output
    assert {figures["recall"] for figures in json.loads(done.stdout)["found"].values()} == {1.0}


def test_a_strangers_item_space_cannot_command_the_terminal(tmp_path: Path) -> None:
    hostile = tmp_path / "hostile.safetensors"
    fitted = PrivateRecommender(2, epsilon=None).fit(PLAYS)
    with pytest.raises(ValueError, match="control characters"):
        replace(fitted.space_, items=tuple(f"\x1b[2J{at}" for at in range(ITEMS)))
    replace(fitted.space_, settings={"why\x07": "\x1b]0;owned\x07"}).save(hostile)
    for said in (eigenveil("inspect", hostile), eigenveil("recommend", "top", hostile, "--have", 0)):
        assert said.exit_code == 0
        assert "\x1b" not in said.output
        assert "\x07" not in said.output


def test_the_examples_in_the_docs_say_what_they_say(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "command-line.md").read_text(encoding="utf-8")
    (script,) = re.findall(r"\$ python -c '([^']*)'\n\$ eigenveil recommend", page)
    examples = re.findall(
        r"^\$ eigenveil (recommend (?:fit plays|top|evaluate)\b[^\n]*)\n(.*?)(?=^\$|^```)", page, flags=re.MULTILINE | re.DOTALL
    )
    assert [line.split()[1] for line, _ in examples] == ["fit", "top", "evaluate"]
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-c", script], check=True)
    for line, shown in examples:
        done = eigenveil(*line.split())
        assert done.exit_code == 0, done.output
        # The order of items that go together equally well depends on the noise.
        if line.startswith("recommend top"):
            assert sorted(done.stdout.split()) == sorted(shown.split())
        elif shown:
            assert " ".join(done.stdout.split()) == " ".join(shown.split())


def test_histories_are_read_in_every_format(tmp_path: Path) -> None:
    played = np.random.default_rng(0).random((60, 6)) < [0.8, 0.7, 0.5, 0.4, 0.3, 0.3]
    users, items = np.nonzero(played)
    lines = pd.DataFrame({"user": users, "item": [f"ö{i}" for i in items], "value": 1.5})
    written: dict[str, tuple[Any, tuple[str, ...]]] = {
        "a.csv": (lambda path: lines.to_csv(path, index=False), ()),
        "b.csv": (lambda path: lines.to_csv(path, index=False, sep=";", decimal=","), ("--decimal", ",")),
        "c.csv": (lambda path: lines.to_csv(path, index=False, encoding="latin-1"), ("--encoding", "latin-1")),
        "d.csv": (lambda path: lines.to_csv(path, index=False, quotechar="'", quoting=1), ("--quote", "'")),
        "e.txt": (lambda path: lines.to_csv(path, index=False, sep="\t"), ("--format", "csv")),
        "f.parquet": (lambda path: lines.to_parquet(path, index=False), ()),
        "g.xlsx": (lambda path: lines.to_excel(path, index=False, sheet_name="plays"), ("--sheet", "plays")),
    }
    spaces = {}
    for name, (write, words) in written.items():
        write(tmp_path / name)
        spaces[name] = _space_of(tmp_path, tmp_path / name, *words, "--min-rating", 1)
    (tmp_path / "folder").mkdir()
    lines[:50].to_parquet(tmp_path / "folder" / "a.parquet", index=False)
    lines[50:].to_parquet(tmp_path / "folder" / "b.parquet", index=False)
    spaces["folder"] = _space_of(tmp_path, tmp_path / "folder", "--min-rating", 1)
    piped = (tmp_path / "a.csv").read_bytes()
    spaces["-"] = _space_of(tmp_path, "-", "--format", "csv", "--min-rating", 1, given=piped)
    np.save(tmp_path / "h.npy", played.astype(float))
    dump_svmlight_file(played.astype(float), np.zeros(60), str(tmp_path / "i.svm"))
    for name, words in (("h.npy", ()), ("i.svm", ("--features", "6"))):
        spaces[name] = _space_of(tmp_path, tmp_path / name, *words)
    for name, space in spaces.items():
        np.testing.assert_allclose(np.abs(space.components), np.abs(spaces["a.csv"].components), atol=1e-9, err_msg=name)
    top = ("recommend", "top", tmp_path / "items.safetensors", "--who", "3", "--from")
    assert eigenveil(*top, tmp_path / "i.svm", "--features", 6).exit_code == 0
    lines[::3].to_csv(tmp_path / "train.csv", index=False, sep=";", decimal=",")
    how = ("--decimal", ",", "--min-rating", 1, "--no-privacy", "-k", 2)
    assert eigenveil("recommend", "evaluate", tmp_path / "train.csv", "--test", tmp_path / "b.csv", *how).exit_code == 0
    assert "--format is missing" in refusal("recommend", "fit", "-", "-k", 2, "--no-privacy", "-o", tmp_path / "x.safetensors")


def _space_of(folder: Path, source: object, *words: object, given: bytes | None = None) -> ItemSpace:
    target = folder / "items.safetensors"
    command = ["recommend", "fit", source, "-k", 2, "--no-privacy", "-o", target, "--force", *words]
    done = CliRunner().invoke(app, [str(word) for word in command], input=given)
    assert done.exit_code == 0, done.output
    return ItemSpace.load(target)
