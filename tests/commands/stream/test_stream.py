"""`eigenveil stream`: every source gives the model that the estimator gives, and two runs with a state between them are one."""

import io
import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.csv as pc
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from commands.command_tables import COUNT, NAMES, PRIVATE, arrow_table, eigenveil, files_in, rows, written
from commands.stream.command_streams import ARROW, CSV, EXACT, SEEDED, as_arrow_stream, as_csv, piped, refused, same
from eigenveil import Model
from eigenveil.errors import ParameterWarning
from eigenveil.estimators.streaming.pca import StreamingPCA
from eigenveil.show.progress import LiveView, _lines, _released_share


@pytest.fixture
def target(tmp_path: Path) -> Path:
    """Where the model goes."""
    return tmp_path / "model.safetensors"


@pytest.mark.parametrize("kind", ["csv", "parquet", "npy", "npz", "sparse.npz", "svm"])
def test_every_kind_of_file_gives_the_model_of_its_rows(tmp_path: Path, target: Path, kind: str) -> None:
    result = eigenveil("stream", written(tmp_path, kind), *EXACT, "-o", target)
    assert result.exit_code == 0, result.output
    assert same(target, StreamingPCA(2, epsilon=None).fit(rows()).model_)
    assert Model.load(target).columns == (NAMES if kind in {"csv", "parquet"} else None)


@pytest.mark.parametrize("kind", [CSV, ARROW, (*CSV, "--no-header")], ids=str)
def test_pipes_give_the_same_model(target: Path, kind: tuple[str, ...]) -> None:
    headless = "--no-header" in kind
    data = as_arrow_stream(rows(), 100) if kind == ARROW else as_csv(rows(), None if headless else NAMES)
    result = piped(data, *kind, *EXACT, "-o", target)
    assert result.exit_code == 0, result.output
    assert same(target, StreamingPCA(2, epsilon=None).fit(rows()).model_)
    assert Model.load(target).columns == (None if headless else NAMES)
    assert eigenveil("inspect", target).exit_code == 0


def test_units_are_given_or_found(tmp_path: Path, target: Path) -> None:
    source = written(tmp_path, "npy")
    budget = ("-k", 2, "--epsilon", 6, "--delta", 1e-6, "--seed", 3)
    kinds: dict[str, Any] = {"private": "private", "5,3,1,0.5,0.5": [5.0, 3.0, 1.0, 0.5, 0.5]}
    for text, scale in kinds.items():
        result = eigenveil("stream", source, *budget, "--scale", text, "-o", target, "--force")
        assert result.exit_code == 0, result.output
        given = StreamingPCA(2, epsilon=6.0, delta=1e-6, random_state=3, scale=scale)
        assert same(target, given.fit(rows()).model_)
        np.testing.assert_array_equal(np.asarray(Model.load(target).scale), np.asarray(given.model_.scale))


def test_a_resumed_command_keeps_the_units_that_were_found(tmp_path: Path, target: Path) -> None:
    state, budget = tmp_path / "stream.state", ("-k", 2, "--epsilon", 6, "--delta", 1e-6, "--seed", 3)
    first, second = rows()[:800], rows()[800:]
    begun = piped(as_csv(first), *CSV, *budget, "--scale", "private", "-o", target, "--state", state)
    assert begun.exit_code == 0, begun.output
    found = Model.load(target).scale
    ended = piped(as_csv(second), *CSV, "-o", target, "--state", state, "--resume", "--force")
    assert ended.exit_code == 0, ended.output
    np.testing.assert_array_equal(np.asarray(Model.load(target).scale), np.asarray(found))
    assert found is not None and not np.array_equal(found, np.ones(len(NAMES)))


def test_options_reach_the_estimator(tmp_path: Path, target: Path) -> None:
    options = "--adapt 0.01,0.2 --forget 0.9 --block-size 100 --oversample 1 --publish continual --horizon 2000 "
    options += "--person-blocks 2 --memory-limit 64MB --center none --origin 0,0,0,0,1 --neighbours replace-one"
    result = eigenveil("stream", written(tmp_path, "npy"), *SEEDED, *options.split(), "-o", target)
    assert result.exit_code == 0, result.output
    assert "NOT PRIVATE: --seed was given" in result.stdout
    expected = StreamingPCA(
        2,
        epsilon=1,
        delta=1e-6,
        row_bound=12,
        adapt=(0.01, 0.2),
        forget=0.9,
        block_size=100,
        oversample=1,
        publish="continual",
        horizon=2000,
        person_blocks=2,
        memory_limit=64_000_000,
        center=None,
        origin=[0, 0, 0, 0, 1],
        neighbours="replace-one",
        random_state=7,
    ).fit(rows())
    assert np.array_equal(Model.load(target).components, expected.components_)
    assert Model.load(target).guarantee == expected.guarantee_


def test_releases_come_after_as_many_rows_however_rows_arrive(tmp_path: Path) -> None:
    found = []
    for batch in (7, 400, 2000):
        path = tmp_path / f"{batch}.safetensors"
        piped(as_arrow_stream(rows(), batch), *ARROW, *SEEDED, "--sync-every", 300, "-o", path)
        found.append(Model.load(path))
    assert [model.settings["releases"] for model in found] == [4, 4, 4]
    assert all(np.array_equal(model.components, found[0].components) for model in found)


def test_columns_are_dropped_and_gaps_are_filled_where_nothing_is_private(target: Path) -> None:
    values = rows()
    values[::7, 2] = np.nan
    assert piped(as_csv(values), *CSV, *EXACT, "--drop", "salt", "-o", target).exit_code == 0
    assert same(target, StreamingPCA(2, epsilon=None).fit(values[:, :4]).model_)
    assert Model.load(target).columns == NAMES[:4]


@pytest.mark.parametrize("terms", [EXACT, SEEDED, (*SEEDED, "--publish", "block", "--block-size", 150)], ids=str)
def test_two_runs_with_a_state_between_them_are_one(tmp_path: Path, target: Path, terms: tuple[object, ...]) -> None:
    state, values = tmp_path / "stream.state", rows()
    whole = tmp_path / "whole.safetensors"
    # Both release after 600 rows and at the end, which is what a private stream sums up.
    each = ("--sync-every", 600) if terms == SEEDED else ()
    piped(as_csv(values), *CSV, *terms, *each, "-o", whole)
    assert piped(as_csv(values[:600]), *CSV, *terms, *each, "-o", target, "--state", state).exit_code == 0
    result = piped(as_csv(values[600:]), *CSV, "--resume", *each, "-o", target, "--force", "--state", state)
    assert result.exit_code == 0, result.output
    assert f"{COUNT - 600} rows, after 600 rows in earlier runs, in " in result.stdout
    if terms == EXACT:
        assert same(target, Model.load(whole))
    assert Model.load(target).settings["rows"] == COUNT
    assert Model.load(target).columns == NAMES
    assert files_in(tmp_path) == {"stream.state", "model.safetensors", "whole.safetensors"}


def test_a_private_stream_moves_from_run_to_run(tmp_path: Path, target: Path) -> None:
    state, values = tmp_path / "stream.state", rows()
    for day in range(3):
        again = ("--resume", "--force") if day else ("-k", 2, *PRIVATE)
        result = piped(as_csv(values[day::3]), *CSV, *again, "-o", target, "--state", state)
        assert result.exit_code == 0, result.output
        assert files_in(tmp_path) == {"stream.state", "model.safetensors"}
    model = Model.load(target)
    assert model.settings["releases"] == 3
    assert model.guarantee.private
    assert model.guarantee.epsilon == 1


def test_a_bad_batch_leaves_the_rows_before_it_in_the_state(tmp_path: Path, target: Path) -> None:
    state, values = tmp_path / "stream.state", rows()
    values[450, 2] = np.nan
    line = refused(as_arrow_stream(values, 100), *ARROW, "-k", 2, *PRIVATE, "-o", target, "--state", state)
    assert line.startswith("error: column 'height' has missing values. Handle them with --missing counts")
    assert line.endswith(
        f"; 400 rows had been read, and their state was saved to {state}, raw data that only you can read. "
        f"Continue with the rows after them: --state {state} --resume"
    )
    assert files_in(tmp_path) == {state.name}
    assert piped(as_csv(rows()[400:]), *CSV, "--resume", "-o", target, "--state", state).exit_code == 0
    assert Model.load(target).settings["rows"] == COUNT


def test_a_stream_that_breaks_off_is_kept_beside_the_output(tmp_path: Path, target: Path) -> None:
    values = rows()
    values[450, 2] = np.nan
    for name in ("model.state", "model-2.state"):
        line = refused(as_arrow_stream(values, 100), *ARROW, "-k", 2, *PRIVATE, "-o", target)
        assert f"400 rows had been read, and their state was saved to {tmp_path / name}, raw data" in line
    assert files_in(tmp_path) == {"model.state", "model-2.state"}
    assert (tmp_path / "model.state").stat().st_mode & 0o777 == 0o600
    go_on = ("--resume", "-o", target, "--state", tmp_path / "model.state")
    assert piped(as_csv(rows()[400:]), *CSV, *go_on).exit_code == 0
    assert Model.load(target).settings["rows"] == COUNT


def test_without_a_state_a_bad_batch_leaves_what_was_released(tmp_path: Path, target: Path) -> None:
    values = rows()
    values[450, 2] = np.nan
    data, private = as_arrow_stream(values, 100), ("-k", 2, *PRIVATE, "-o", target, "--no-state")
    line = refused(data, *ARROW, *private)
    assert line.endswith(
        "; 400 rows had been read, and nothing of them was released or written. Next time, --state FILE keeps them"
    )
    assert not target.exists()
    line = refused(data, *ARROW, *private, "--sync-every", 300)
    assert line.endswith(
        f"; 400 rows had been read, and the last release, of the first 300, was written to {target}. The 100 rows "
        "after them were not released and are lost. Next time, --state FILE keeps them"
    )
    assert Model.load(target).settings["rows"] == 300
    assert files_in(tmp_path) == {target.name}


def test_the_live_view_shows_only_what_may_be_seen() -> None:
    now = [0.0]
    view = LiveView(0, clock=lambda: now[0])

    def shown(pca: StreamingPCA, seconds: float) -> dict[str, str]:
        now[0] += seconds
        view.see(pca)
        console = Console(file=io.StringIO(), width=100)
        with console.capture() as text:
            console.print(view)
        # Labels and words, with blanks between.
        return dict(re.split(r"\s{2,}", line.strip(), maxsplit=1) for line in text.get().splitlines())

    # Some noise makes two columns stand out so much that a warning has a line of its own.
    pca = StreamingPCA(2, epsilon=1.0, delta=1e-6, row_bound=12.0, random_state=1)
    first = shown(pca.partial_fit(rows()), 2.0)
    # The mean of the first block has been found by now, and paid for.
    assert first == {
        "rows": "1,009",
        "speed": "504 rows/s",
        "released": "nothing yet",
        "spent": "epsilon 0.201 of 1, at delta = 1e-06",
        "memory": "0.0402 MiB planned",
    }
    later = shown(pca.sync().partial_fit(rows()), 2.0)
    assert later["rows"] == "2,018"
    assert later["speed"] == "504 rows/s"
    assert later["released"] == "1 time, of the first 1,009 rows"
    assert later["spent"] == "epsilon 1 of 1, at delta = 1e-06"
    assert later["rank"] == "2"
    assert re.fullmatch(r"(\d\d% of what was released|nearly all of what stands out).*", later["explained variance"])
    # Looking again costs a decomposition, and is not due.
    assert shown(pca.sync(), 0.1)["released"] == "1 time, of the first 1,009 rows"


def test_the_live_view_claims_no_more_than_it_knows() -> None:
    def explained(pca: StreamingPCA) -> str:
        return dict(_lines(pca, pca.model_))["explained variance"]

    flat = np.outer(np.arange(50.0), [1, 2, 3, 4, 5])
    exact = StreamingPCA(2, epsilon=None)
    assert explained(exact.partial_fit(rows()[:3])) == "too few rows to tell"
    assert explained(exact.partial_fit(rows())) == f"{exact.explained_variance_ratio_.sum():.1%} of the rows so far"
    assert explained(StreamingPCA(2, epsilon=None).partial_fit(flat)) == "over 99.9% of the rows so far"
    # With all directions it is 100% whatever comes.
    assert explained(StreamingPCA(5, epsilon=None).partial_fit(rows())) == "100.0% of the rows so far"
    private = StreamingPCA(2, epsilon=1e4, delta=1e-6, row_bound=500.0, random_state=0)
    # Noise hides whether the rest is nothing, and one of the two components is noise alone.
    nearly = explained(private.partial_fit(np.tile(flat, (40, 1))).sync())
    assert nearly == "nearly all of what stands out, in the 1 of 2 components above the noise"
    for shares, words in {
        (0.6, 0.2, 0.2): "60% of what was released, in the 1 of 3 components above the noise",
        (0.99, 0.005, 0.005): "nearly all of what stands out, in the 1 of 3 components above the noise",
        (0.6, 0.3, 0.1): "90% of what was released, in the 2 of 3 components above the noise",
        (0.4, 0.3, 0.3): "nearly all of what stands out",
    }.items():
        given = np.array(shares)
        variances = {"values": np.sqrt(given), "explained_variance": given, "explained_variance_ratio": given}
        settings = {**private.model_.settings, "noise_floor": 0.25}
        made = replace(private.model_, components=np.eye(5)[:3], settings=settings, **variances)
        assert _released_share(made) == words
    hopeless = StreamingPCA(2, epsilon=0.01, delta=1e-6, row_bound=500.0, random_state=0)
    with pytest.warns(ParameterWarning):
        assert explained(hopeless.partial_fit(flat).sync()) == "nothing stands out from the noise"


@pytest.mark.parametrize(
    ("terms", "counts"),
    [
        ((*SEEDED, "--sync-every", 300), [300, 600, 900, COUNT]),
        ((*SEEDED, "--publish", "block", "--block-size", 250), [250, 500, 750, 1000, COUNT]),
        ((*SEEDED, "--publish", "continual", "--block-size", 500, "--horizon", 2000), [500, 1000, COUNT]),
        ((*EXACT, "--sync-every", 500), [500, 1000, COUNT]),
    ],
    ids=["sync", "block", "continual", "exact"],
)
def test_the_model_is_rewritten_at_every_release(
    target: Path, monkeypatch: pytest.MonkeyPatch, terms: tuple[object, ...], counts: list[int]
) -> None:
    saved: list[int] = []
    save = Model.save

    def noted(model: Model, path: Path) -> None:
        save(model, path)
        saved.append(int(Model.load(target).settings["rows"]))

    monkeypatch.setattr(Model, "save", noted)
    result = piped(as_arrow_stream(rows(), 700), *ARROW, *terms, "-o", target, "--json")
    assert result.exit_code == 0, result.output
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    assert saved == [line["rows"] for line in lines] == counts
    assert [line["release"] for line in lines] == list(range(1, len(counts) + 1))
    assert [line["final"] for line in lines] == [False] * (len(counts) - 1) + [True]
    model = Model.load(target)
    assert lines[-1]["explained_variance"] == model.explained_variance.tolist()
    assert lines[-1]["model"] == str(target)
    # Noise from a seed protects nobody, and exact numbers do not either.
    assert not any(line["private"] for line in lines)
    spent = [line["epsilon_spent"] for line in lines]
    assert spent[-1] is None if terms[: len(EXACT)] == EXACT else 0 < spent[0] <= spent[-1] <= 1.0000001


def test_people_and_column_bounds_are_as_in_python(tmp_path: Path, target: Path) -> None:
    who = np.arange(COUNT) // 2
    table = arrow_table(rows(), who=who)
    source = tmp_path / "visits.parquet"
    pq.write_table(table, source)
    box = ("-k", 2, "--epsilon", 3, "--delta", 1e-6, "--seed", 7, "--column-bounds=-9,9", "--block-size", 100)
    result = eigenveil("stream", source, *box, "--person", "who", "-o", target)
    assert result.exit_code == 0, result.output
    given: dict[str, Any] = {"column_bounds": (-9, 9), "block_size": 100, "random_state": 7}
    expected = StreamingPCA(2, epsilon=3.0, delta=1e-6, **given, person="who").fit(table)
    assert np.array_equal(Model.load(target).components, expected.components_)
    assert Model.load(target).guarantee == expected.guarantee_
    assert expected.n_samples_seen_ == len(np.unique(who))
    # As text through a pipe, in two runs, of which the second gets no new person.
    values, state = np.column_stack([rows(), who]), tmp_path / "stream.state"
    data = as_csv(values, (*NAMES, "who"))
    for again in (("--person", "who", *box), ("--resume",)):
        more = ("-o", tmp_path / "piped.safetensors", "--force", "--state", state)
        result = piped(data, *CSV, *again, *more)
        assert result.exit_code == 0, result.output
    model = Model.load(tmp_path / "piped.safetensors")
    assert model.settings["rows"] == expected.n_samples_seen_
    assert np.array_equal(model.components, expected.components_)


def test_a_table_can_be_larger_than_a_batch(tmp_path: Path, target: Path) -> None:
    source = tmp_path / "long.csv"
    pc.write_csv(arrow_table(np.tile(rows(), (9, 1))), source)
    assert eigenveil("stream", source, *EXACT, "-o", target).exit_code == 0
    assert Model.load(target).settings["rows"] == 9 * COUNT
