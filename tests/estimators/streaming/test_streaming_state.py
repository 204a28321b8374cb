"""A saved state goes on as if nothing had happened, at any moment; a damaged or foreign one is refused and runs nothing."""

import gc
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import numpy as np
import pandas as pd
import pytest
import scipy.sparse as sp
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors import safe_open
from safetensors.numpy import save_file
from sklearn.base import clone

from commands.command_tables import files_in
from eigenveil import Ledger, StateFileError, StreamingPCA
from eigenveil.errors import EigenveilError
from eigenveil.estimators.streaming import state_file as stream_file
from eigenveil.linalg import Array
from estimators.streaming.streams_of_rows import BUDGET, WAYS, exact, fed, in_batches, planted, private, shown
from estimators.tables import NAMES, rows

VALUES, WIDE = rows(400), planted(400, 150)


def torn(values: Array) -> Array:
    """The same rows with some gaps."""
    return np.where(np.random.default_rng(2).random(values.shape) < 0.1, np.nan, values)


Making = tuple[Callable[[], StreamingPCA], Any]
STREAMS: dict[str, Making] = {
    "exact products": (lambda: exact(3, block_size=60), VALUES),
    "exact sketch": (lambda: exact(3, block_size=60, random_state=5), WIDE),
    "forgetting": (lambda: exact(3, block_size=60, forget=0.9), WIDE),
    "adaptive": (lambda: exact(3, block_size=60, adapt=(0.01, 0.2)), WIDE),
    "not centered": (lambda: exact(3, center=None), VALUES),
    "sparse": (lambda: exact(3, block_size=60), sp.csr_array(WIDE * (np.abs(WIDE) > 1))),
    "sparse products": (lambda: exact(3, block_size=60), sp.csr_array(VALUES * (np.abs(VALUES) > 1))),
    "gaps": (lambda: exact(3, block_size=60), torn(WIDE)),
    "gaps, few columns": (lambda: exact(3, block_size=60), torn(VALUES)),
    "private products": (lambda: private(**WAYS["products"]), VALUES),
    "private slices": (lambda: private(**WAYS["slices"], noise_target=0.04), VALUES),
    "private tree": (lambda: private(**WAYS["tree"], person_blocks=3), VALUES),
    "private, all choices": (
        lambda: private(
            np.int64(2),
            adapt=np.array([0.05, 0.3]),
            forget=np.float32(0.75),
            origin=[np.float32(1.0)] * 6,
            neighbours="replace-one",
            oversample=3,
            memory_limit=10**7,
            center="private",
        ),
        VALUES,
    ),
    "private sparse": (lambda: private(**WAYS["products"]), sp.csr_array(VALUES)),
    "private sparse slices": (lambda: private(**WAYS["slices"]), sp.csr_array(VALUES)),
}
# Before the first block is full, on an edge, in the middle of a block, after the last row.
MOMENTS = [1, 45, 60, 200, 240, 399]


# Every stream at every moment, and both of them synced before and not.
@pytest.mark.parametrize(
    ("name", "moment", "synced"),
    [(name, moment, (one + other) % 2 == 1) for one, name in enumerate(STREAMS) for other, moment in enumerate(MOMENTS)],
)
def test_a_resumed_stream_is_the_uninterrupted_one(name: str, moment: int, synced: bool, tmp_path: Path) -> None:
    make, values = STREAMS[name]
    straight, stopped = make(), make()
    for pca in (straight, stopped):
        pca.partial_fit(values[:moment])
        if synced and name != "private tree":
            pca.sync()
    stopped.save_state(tmp_path / "state")
    went_on = StreamingPCA.resume(tmp_path / "state")
    assert went_on.n_samples_seen_ == moment and went_on.plan_ == straight.plan_
    assert hasattr(went_on, "components_") == hasattr(straight, "components_")
    for pca in (straight, went_on):
        fed(pca, values[moment:], [17]).sync()
    assert shown(went_on) == shown(straight)
    if straight.ledger_ is not None:
        assert went_on.ledger_ is not None
        assert went_on.ledger_.charges == straight.ledger_.charges
        assert went_on.ledger_.epsilon() <= 1 + 1e-9
    # A stream without real noise was copied: the one in memory goes on, too, and comes to the same.
    assert shown(fed(stopped, values[moment:], [17]).sync()) == shown(straight)


@pytest.mark.parametrize("name", ["exact sketch", "private products", "private tree"])
def test_saving_after_every_batch_changes_nothing(name: str, tmp_path: Path) -> None:
    make, values = STREAMS[name]
    pca = make()
    for batch in in_batches(values, [33]):
        pca.partial_fit(batch).save_state(tmp_path / "state")
        pca = StreamingPCA.resume(tmp_path / "state")
    assert shown(pca.sync()) == shown(fed(make(), values, [50]).sync())


def test_merged_streams_and_names_are_saved_too(tmp_path: Path) -> None:
    frames = [pd.DataFrame(part, columns=NAMES) for part in np.split(VALUES, 4)]
    makes: list[Callable[[], StreamingPCA]] = [lambda: exact(2, block_size=60, forget=0.9), lambda: private(forget=0.9)]
    for make in makes:
        pca: Any = make().partial_fit(frames[0]).sync().merge(make().partial_fit(frames[1]).sync())
        pca.partial_fit(frames[2])
        pca.save_state(tmp_path / "state")
        again: Any = StreamingPCA.resume(tmp_path / "state")
        assert shown(again) == shown(pca)
        assert list(again.feature_names_in_) == NAMES
        for stream in (pca, again):
            stream.partial_fit(frames[3]).sync()
        assert shown(again) == shown(pca)
        with pytest.raises(ValueError, match="feature names should match"):
            again.partial_fit(frames[0][NAMES[::-1]])


def test_the_file_says_that_it_is_raw_data(tmp_path: Path) -> None:
    private().partial_fit(VALUES[:100]).save_state(tmp_path / "state")
    assert "This is raw data of the people in the stream" in header_of(tmp_path / "state")["raw"]
    assert (tmp_path / "state").stat().st_mode & 0o777 == 0o600
    assert [path.name for path in tmp_path.iterdir()] == ["state"]


def test_a_shared_ledger_must_be_handed_in_again(tmp_path: Path) -> None:
    ledger = Ledger(epsilon=3.0, delta=1e-6)
    private(ledger=ledger, random_state=None).partial_fit(VALUES[:100]).save_state(tmp_path / "state")
    with pytest.raises(StateFileError, match=r"charged to a shared ledger. Pass it as ledger="):
        StreamingPCA.resume(tmp_path / "state")
    with pytest.raises(StateFileError, match="charged to another ledger"):
        StreamingPCA.resume(tmp_path / "state", ledger=Ledger(epsilon=3.0, delta=1e-6))
    # A refusal does not use the file up.
    pca = StreamingPCA.resume(tmp_path / "state", ledger=ledger)
    assert pca.partial_fit(VALUES[100:]).sync().ledger_ is ledger
    assert 0.99 < ledger.epsilon() <= 1 + 1e-9
    private(random_state=None).partial_fit(VALUES).save_state(tmp_path / "own")
    with pytest.raises(StateFileError, match="has a ledger of its own"):
        StreamingPCA.resume(tmp_path / "own", ledger=ledger)
    assert StreamingPCA.resume(tmp_path / "own").n_samples_seen_ == 400


def header_of(path: Path) -> dict[str, Any]:
    """The header of a state file."""
    with safe_open(path, framework="numpy") as file:
        found: dict[str, Any] = json.loads(file.metadata()["eigenveil"])
    return found


def rewrite(path: Path, change: Callable[[dict[str, Any], dict[str, Any]], None], *, honest: bool) -> None:
    """Change header and arrays of a state file, with a digest to match where `honest`."""
    with safe_open(path, framework="numpy") as file:
        header = json.loads(file.metadata()["eigenveil"])
        arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    change(header, arrays)
    if honest:
        inner = {name: value for name, value in header.items() if name not in ("format", "version", "digest")}
        header["digest"] = stream_file._digest(arrays, inner)
    save_file(arrays, path, metadata={"eigenveil": json.dumps(header)})


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """State files of a small exact and a small private stream, with open blocks."""
    folder = tmp_path_factory.mktemp("states")
    exact(2, block_size=7).partial_fit(VALUES[:10]).save_state(folder / "exact")
    private(block_size=7).partial_fit(VALUES[:9]).sync().partial_fit(VALUES[9:11]).save_state(folder / "private")
    return folder


@pytest.mark.parametrize("name", ["exact", "private"])
@settings(max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(place=st.floats(0, 1, exclude_max=True), byte=st.integers(1, 255))
def test_a_changed_byte_is_noticed(name: str, saved: Path, tmp_path: Path, place: float, byte: int) -> None:
    """Or makes no difference: a space before the data, the case of a hexadecimal digit."""
    whole = bytearray((saved / name).read_bytes())
    whole[int(place * len(whole))] ^= byte
    path = tmp_path / "state"
    path.write_bytes(whole)
    try:
        found = StreamingPCA.resume(path)
    except StateFileError:
        return
    assert header_of(path) == header_of(saved / name)
    assert shown(found.sync()) == shown(StreamingPCA.resume(saved / name).sync())


@given(cut=st.floats(0, 1, exclude_max=True))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_a_file_that_ends_early_is_refused(saved: Path, tmp_path: Path, cut: float) -> None:
    whole = (saved / "exact").read_bytes()
    (tmp_path / "state").write_bytes(whole[: int(cut * len(whole))])
    with pytest.raises(StateFileError):
        StreamingPCA.resume(tmp_path / "state")


@given(data=st.binary(max_size=300))
@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_random_bytes_are_refused(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "state").write_bytes(data)
    with pytest.raises(StateFileError):
        StreamingPCA.resume(tmp_path / "state")


def drop(name: str) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    """Leave out a part of the header."""
    return lambda header, arrays: header.pop(name)


FOREIGN: dict[str, tuple[Callable[[dict[str, Any], dict[str, Any]], Any], bool, str]] = {
    "another version": (lambda h, a: h.update(version=9), True, "of version 9. This program reads version 3"),
    "another format": (lambda h, a: h.update(format="eigenveil-model"), True, "not the state of an Eigenveil stream"),
    "no digest": (drop("digest"), False, "its contents are not those that were saved"),
    "a count changed": (lambda h, a: h["counts"].update(rows=999), False, "its contents are not those that were saved"),
    "an epsilon changed": (lambda h, a: h["facts"]["params"].update(epsilon=9.0), False, "not those that were saved"),
    "another charge": (lambda h, a: h.update(charges=[{"label": "mean", "mu": 0.0}]), False, "not those that were saved"),
    # From here on somebody has taken care of the digest, too.
    "an array left out": (lambda h, a: a.pop("pending"), True, "is damaged"),
    "an array too long": (lambda h, a: a.update(pending=np.zeros((9, 6))), True, "is damaged"),
    "no facts": (drop("facts"), True, "is damaged"),
    "no tree": (drop("tree"), True, "is damaged"),
    "no counts": (drop("counts"), True, "is damaged"),
    "counts of text": (lambda h, a: h["counts"].update(rows="many"), True, "is damaged"),
    "negative counts": (lambda h, a: h["counts"].update(rows=-1), True, "is damaged"),
    "unknown type": (lambda h, a: h["tree"][0].update(type="os.system"), True, "is damaged"),
    "other fields": (lambda h, a: h["tree"][0]["fields"].update(more=1), True, "is damaged"),
    "unknown parameter": (lambda h, a: h["facts"]["params"].update(shell="rm"), True, "is damaged"),
    "forget out of range": (lambda h, a: h["facts"]["params"].update(forget=2.0), True, "is damaged"),
    "header of text": (lambda h, a: h.update(facts="x"), True, "is damaged"),
    "a count is missing": (lambda h, a: h["counts"].pop("rows"), True, "is damaged"),
}


@pytest.mark.parametrize(("change", "honest", "message"), FOREIGN.values(), ids=FOREIGN.keys())
@pytest.mark.parametrize("name", ["exact", "private"])
def test_foreign_and_forged_states_are_refused(
    name: str, change: Callable[[Any, Any], Any], honest: bool, message: str, saved: Path, tmp_path: Path
) -> None:
    path = tmp_path / "state"
    shutil.copy(saved / name, path)
    rewrite(path, change, honest=honest)
    with pytest.raises(StateFileError, match=message):
        StreamingPCA.resume(path)
    assert path.exists()


def test_files_of_other_kinds_are_refused(tmp_path: Path) -> None:
    exact(2).fit(VALUES).save(tmp_path / "model")
    save_file({"x": np.zeros(3)}, tmp_path / "tensors")
    (tmp_path / "empty").touch()
    (tmp_path / "folder").mkdir()
    messages = {
        "model": "not the state of an Eigenveil stream",
        "tensors": "not the state of an Eigenveil stream",
        "empty": "not the state of an Eigenveil stream",
        "folder": "does not exist or is not a file",
        "missing": "does not exist or is not a file",
    }
    for name, message in messages.items():
        with pytest.raises(StateFileError, match=message):
            StreamingPCA.resume(tmp_path / name)
    assert issubclass(StateFileError, ValueError)


@pytest.mark.parametrize("make", [lambda: exact(2), lambda: private(random_state=None)])
def test_a_state_that_cannot_be_written_leaves_the_stream_as_it_was(
    make: Callable[[], StreamingPCA], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pca = make().partial_fit(VALUES[:100])
    with pytest.raises(ValueError, match=r"the folder .* does not exist"):
        pca.save_state(tmp_path / "nowhere" / "state")
    (tmp_path / "state").write_bytes(b"an older one")

    def full(self: Path, target: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        pca.save_state(tmp_path / "state")
    monkeypatch.undo()
    assert (tmp_path / "state").read_bytes() == b"an older one"
    assert [path.name for path in tmp_path.iterdir()] == ["state"]
    assert pca.partial_fit(VALUES[100:]).sync().model_.settings["rows"] == 400


def test_a_state_that_somebody_else_claims_meanwhile_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    private(random_state=None, **BUDGET).partial_fit(VALUES).save_state(tmp_path / "state")
    read = stream_file._KIND.read

    def slow_read(self: Any, path: Path) -> Any:
        found = read(path)
        path.rename(path.with_name("state.resumed"))
        return found

    monkeypatch.setattr(type(stream_file._KIND), "read", slow_read)
    with pytest.raises(StateFileError, match="resumed by another process in the meantime"):
        StreamingPCA.resume(tmp_path / "state")


def test_sums_that_are_held_back_are_kept_as_whole_numbers(tmp_path: Path) -> None:
    """As many digits as they have: a float would round those beyond the 53rd bit."""
    pca = private(**WAYS["products"], forget=0.9).partial_fit(VALUES[:200]).sync().partial_fit(VALUES[200:])
    pca.save_state(tmp_path / "state")
    with safe_open(tmp_path / "state", framework="numpy") as file:
        kinds = {name: file.get_tensor(name).dtype for name in file.keys()}  # noqa: SIM118
    assert list(kinds.values()).count(np.int64) == 2


def test_a_stream_with_a_checkpoint_goes_on_and_is_resumed_only_once_it_is_gone(tmp_path: Path) -> None:
    path = tmp_path / "state"
    pca = private(random_state=None).partial_fit(VALUES[:200]).sync()
    pca.checkpoint(path, notes={"place": 200})
    released = shown(pca)
    (tmp_path / ".state.half").write_bytes(b"raw data of a process that was killed while it wrote")
    # Replaced while it is held, and the new one is held before it has its name.
    pca.partial_fit(VALUES[200:300]).checkpoint(path, notes={"place": 300})
    assert files_in(tmp_path) == {"state"}
    assert path.stat().st_mode & 0o777 == 0o600
    for checkpoints in (False, True):
        with pytest.raises(StateFileError, match="still running"):
            StreamingPCA.resume(path, checkpoints=checkpoints)
    # It dies without a word, also with a release that nobody saw.
    pca.sync()
    del pca
    gc.collect()
    assert stream_file.notes_in(path) == {"place": 300}
    went_on = StreamingPCA.resume(path, checkpoints=True)
    assert (shown(went_on), went_on.n_samples_seen_) == (released, 300)
    with pytest.raises(StateFileError, match="still running"):
        StreamingPCA.resume(path)
    # Killed again, before it released anything: the file is still there.
    del went_on
    gc.collect()
    claimed = StreamingPCA.resume(path)
    assert files_in(tmp_path) == {"state.resumed"}
    assert claimed.partial_fit(VALUES[300:]).sync().n_samples_seen_ == 400
    assert claimed.ledger_ is not None and claimed.ledger_.epsilon() <= 1 + 1e-9


def test_a_checkpoint_that_cannot_be_written_leaves_the_last_one_and_the_stream(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, pca = tmp_path / "state", private(random_state=None).partial_fit(VALUES[:200]).sync()
    pca.checkpoint(path)
    before = path.read_bytes()

    def full(self: Path, target: Any) -> Any:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "replace", full)
    with pytest.raises(OSError, match="No space left"):
        pca.partial_fit(VALUES[200:]).checkpoint(path)
    monkeypatch.undo()
    assert path.read_bytes() == before
    with pytest.raises(StateFileError, match="still running"):
        StreamingPCA.resume(path)
    pca.sync().save_state(path)
    assert StreamingPCA.resume(path).model_.settings["rows"] == 400


def test_two_streams_that_write_one_state_at_once_lose_neither(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = (StreamingPCA(2, row_bound=9.0, block_size=100, **BUDGET) for _ in range(2))
    path, digest = tmp_path / "stream.state", stream_file._digest
    for stream in (first, second):
        stream.partial_fit(VALUES).sync()

    def slowly(*given: Any) -> str:
        # While the second writes, after it has looked at the name.
        monkeypatch.setattr(stream_file, "_digest", digest)
        first.checkpoint(path)
        return digest(*given)

    monkeypatch.setattr(stream_file, "_digest", slowly)
    with pytest.raises(StateFileError, match="contains another private stream"):
        second.checkpoint(path)
    assert files_in(tmp_path) == {"stream.state"}
    # Both go on, and each in a file of its own.
    second.partial_fit(VALUES).checkpoint(tmp_path / "second.state")
    first.partial_fit(VALUES).sync().save_state(path)
    assert StreamingPCA.resume(path).explained_variance_.tolist() == first.explained_variance_.tolist()


def test_a_state_whose_folder_cannot_be_synchronised_is_not_continued_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream, path = StreamingPCA(2, row_bound=9.0, **BUDGET).partial_fit(VALUES).sync(), tmp_path / "stream.state"
    with monkeypatch.context() as patch:
        patch.setattr("eigenveil.data.archive.sync_folder", _refusing)
        with pytest.raises(OSError, match="disk"):
            stream.checkpoint(path)
    with pytest.raises(EigenveilError, match="continues from there"):
        stream.partial_fit(VALUES)
    assert StreamingPCA.resume(path).partial_fit(VALUES).sync().n_samples_seen_ == 2 * len(VALUES)


def _refusing(folder: Path) -> None:
    raise OSError(5, "the disk is broken")


def test_a_resumed_stream_is_not_forgotten_by_a_fit(tmp_path: Path) -> None:
    path = tmp_path / "stream.state"
    StreamingPCA(2, row_bound=9.0, **BUDGET).partial_fit(VALUES).sync().save_state(path)
    stream = StreamingPCA.resume(path)
    with pytest.raises(EigenveilError, match="Continue with partial_fit"):
        stream.fit(VALUES)
    assert stream.partial_fit(VALUES).sync().n_samples_seen_ == 2 * len(VALUES)
    # A copy of its settings is another stream.
    assert clone(stream).fit(VALUES).n_samples_seen_ == len(VALUES)


# What a private stream finds in its first block, and where it stands in the tree of a state file.
FOUND: dict[str, dict[str, Any]] = {
    "a bound": {"row_bound": "private"},
    "units": {"row_bound": "private", "scale": "private"},
    "counts": {"missing": "counts"},
    "groups": {"missing": "groups", "missing_groups": [["c0", "c1"]]},
    "complete rows": {"missing": "drop"},
    "nothing": {},
}
PLACE: Final = 2


def placed(**choices: Any) -> StreamingPCA:
    """A private stream after its first block, with a gap in every tenth row if that is allowed."""
    table = pd.DataFrame(np.random.default_rng(1).standard_normal((3000, 6)), columns=[f"c{at}" for at in range(6)])
    if "missing" in choices:
        table.iloc[::10, 1] = np.nan
    given = {"row_bound": 4.0, "random_state": 0, "epsilon": 4.0, "delta": 1e-6} | choices
    return StreamingPCA(2, **given).partial_fit(table)


@pytest.mark.parametrize("choices", FOUND.values(), ids=FOUND)
def test_what_the_first_block_found_is_kept(choices: dict[str, Any], tmp_path: Path) -> None:
    pca, path = placed(**choices), tmp_path / "state"
    pca.save_state(path)
    more = pd.DataFrame(np.random.default_rng(2).standard_normal((500, 6)), columns=[f"c{at}" for at in range(6)])
    resumed = StreamingPCA.resume(path).partial_fit(more).sync()
    straight = placed(**choices).partial_fit(more).sync()
    assert shown(resumed) == shown(straight)
    assert resumed.guarantee_ == straight.guarantee_
    np.testing.assert_equal(dict(resumed.model_.clipping), dict(straight.model_.clipping))


def in_place(field: str, value: Any) -> Callable[[dict[str, Any], dict[str, Any]], None]:
    """Put a value where a field of what was found has a plain value, an array or the array of its columns."""

    def change(header: dict[str, Any], arrays: dict[str, Any]) -> None:
        fields = header["tree"][PLACE]["fields"]
        part = fields[field]
        if isinstance(part, dict) and part.get("type") == "Rates":
            part = part["fields"]["columns"]
        if isinstance(part, dict) and value is not None:
            arrays[part["array"]] = value
        else:
            fields[field] = value

    return change


@pytest.mark.parametrize(
    ("name", "change", "message"),
    [
        ("a bound", in_place("bound", 0.0), "its bound is not one"),
        ("a bound", in_place("bound", None), "its bound is not one"),
        ("units", in_place("scale", np.zeros(6)), "its units are not those"),
        ("units", in_place("scale", np.ones(5)), "its units are not those"),
        ("units", in_place("scale", None), "its units are not those"),
        ("counts", in_place("rates", np.full(6, 1.5)), "its rates of entries are not those"),
        ("groups", in_place("rates", np.ones(5)), "its rates of entries are not those"),
        ("complete rows", in_place("rates", None), "its rates of entries are not those"),
        ("nothing", lambda h, a: h["tree"].__setitem__(PLACE, None), "its parts are not those of a stream"),
        ("nothing", lambda h, a: h["tree"].__setitem__(1, h["tree"][PLACE]), "its parts are not those of a stream"),
        ("nothing", lambda h, a: h["tree"].pop(), "is damaged"),
    ],
)
def test_what_no_first_block_can_have_found_is_refused(
    name: str, change: Callable[[Any, Any], Any], message: str, tmp_path: Path
) -> None:
    placed(**FOUND[name]).save_state(tmp_path / "state")
    rewrite(tmp_path / "state", change, honest=True)
    with pytest.raises(StateFileError, match=message):
        StreamingPCA.resume(tmp_path / "state")


def test_a_given_bound_is_not_read_from_a_file(tmp_path: Path) -> None:
    path = tmp_path / "state"
    placed().save_state(path)
    rewrite(path, in_place("bound", 1e9), honest=True)
    assert StreamingPCA.resume(path).partial_fit(np.ones((2, 6))).sync().model_.clipping["radius"].tolist() == [4.0]
