"""The state of a stream as a file, to continue later. It is raw data, readable by its owner only, and says so.

A private stream moves and is never copied. Saving closes the one in memory, and resuming claims the file. Otherwise unreleased
rows could be released twice and charged once. A claimed file is renamed to NAME.resumed, and the next save removes it.

A stream may also stay in memory and write checkpoints, to survive being killed. It holds a lock on the file as long as it lives,
and no other process can resume it in the meantime. The kernel frees the lock when the process dies.

Proof that nothing is released twice for one charge. A stream with checkpoints shows a release only when it is in the file.
The stream in the file therefore has all that was ever shown, with its charges, and noise that is not in the file was never
shown: drawing it anew is the first release. The lock, and the rename of one file, allow one stream at a time.
"""

import hashlib
import json
import math
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import asdict, replace
from glob import escape
from pathlib import Path
from typing import IO, Any, Final

import numpy as np
import scipy.sparse as sp

from eigenveil.core.accounting import Budget
from eigenveil.core.domain import LARGEST, SMALLEST
from eigenveil.core.ledger import Charge, Ledger
from eigenveil.core.unit import PrivacyUnit
from eigenveil.data.archive import ArchiveKind, sync_folder
from eigenveil.errors import StateFileError, require
from eigenveil.estimators.streaming.buffer import OpenBlock, PeopleSeen
from eigenveil.estimators.streaming.spec import Merged, Placement, StreamSpec
from eigenveil.estimators.streaming.stream import RAW_STATE, Stream
from eigenveil.linalg import Array
from eigenveil.tasks.fit.bounds import Outliers
from eigenveil.tasks.fit.gaps import Rates
from eigenveil.tasks.fit.search import Center
from eigenveil.trackers.state import restored, taken_apart

__all__ = ["is_private", "notes_in", "resumed", "taken_from", "write_stream_file"]

_KIND: Final = ArchiveKind(
    format="eigenveil-stream", version=3, description="the state of an Eigenveil stream", error=StateFileError
)
# A new name for the file is the claim: the file system lets only one of several processes rename it.
_CLAIMED: Final = ".resumed"
_COUNTS: Final = ("rows", "covered", "draws")


def write_stream_file(path: Path, stream: Stream, facts: Mapping[str, Any], *, stays: bool = False) -> None:
    """Write `stream` with the public `facts` that `resumed` needs. A private stream is closed in memory unless it `stays`."""
    stream.require_open()
    path = path.resolve()
    _require_own(path, stream)
    domain = None if stream.tracker is None else stream.tracker.domain
    center = None if domain is None else domain.center
    placement = stream.place.found(stream.terms)
    tree, arrays = taken_apart((stream.state, stream.merged, placement, center, stream.searching, stream.unseen))
    arrays = {name: np.ascontiguousarray(array) for name, array in (arrays | _more_arrays(stream)).items()}
    header = _header(stream, facts, tree)
    if header["moves"]:
        # Before the file exists: an interruption must not leave two streams that can continue.
        stream.closed = f"this stream was saved to {path} and continues from there. Resume it with StreamingPCA.resume"
    held: list[IO[bytes]] = []
    made: list[int] = []
    with ExitStack() as alone:

        def hold(file: Path) -> None:
            """Lock a checkpoint before it has a name to resume it by, and let no other stream take the name in between."""
            made.append(file.stat().st_ino)
            if header["moves"]:
                alone.enter_context(_alone_in(path.parent))
                _require_own(path, stream)
                if stays:
                    held.append(_locked(file))

        try:
            _KIND.write(path, arrays, {**header, "digest": _digest(arrays, header)}, readable=False, hold=hold)
        except Exception:
            # No file was written, so the stream in memory is still the only one. After Ctrl-C, or where only the folder could not
            # be brought to the disk, there may be a file, and the stream stays closed.
            if not (made and path.exists() and path.stat().st_ino == made[0]):
                stream.closed = None
            raise
    if stays:
        stream.closed = None
        if held:
            # Raw data of a process that was killed in the middle of writing. No other process writes this file now.
            for half in path.parent.glob(f".{escape(path.name)}.*"):
                half.unlink(missing_ok=True)
    else:
        # The stream that continues, from the file or in memory, reserves the rest again.
        stream.give_back()
    if stream.held_file is not None:
        stream.held_file.close()
    stream.held_file = held[0] if held else None
    if stream.claimed is not None:
        # The file it was resumed from is out of date, and raw data.
        stream.claimed.unlink(missing_ok=True)
        stream.claimed = None


def _more_arrays(stream: Stream) -> dict[str, Array]:
    """Who was seen, and the rows of the open block: raw data."""
    arrays: dict[str, Array] = {}
    if stream.people is not None:
        arrays |= stream.people.arrays()
    pending = stream.pending.rows
    if pending is not None and sp.issparse(pending):
        arrays |= {"pending.data": pending.data, "pending.indices": pending.indices, "pending.indptr": pending.indptr}
    elif pending is not None:
        arrays["pending"] = pending
    return arrays


def _header(stream: Stream, facts: Mapping[str, Any], tree: Any) -> dict[str, Any]:
    """What is no array: the public `facts`, the shape of the state, counts, charges, and whether the stream moves to the file."""
    return {
        "raw": RAW_STATE,
        "facts": dict(facts),
        "tree": tree,
        "counts": {name: getattr(stream, name) for name in _COUNTS},
        "held": stream.held,
        "begun": stream.tracker is not None,
        "identifiers": None if stream.people is None else stream.people.kind,
        "series": stream.series,
        "charges": [asdict(charge) for charge in stream.charges],
        "ledger": _ledger_facts(stream),
        "shared": stream.shared,
        **({} if stream.reserve_name is None else {"reserve": stream.reserve_name}),
        "moves": stream.private and stream.terms.seed is None,
    }


@contextmanager
def _alone_in(folder: Path) -> Iterator[None]:
    """Wait while another stream gives a state its name in this folder, for a moment. The kernel frees it at death."""
    if os.name != "posix":
        yield
        return
    import fcntl

    handle = os.open(folder, os.O_RDONLY)
    try:
        # Some network file systems lock no folders, and another program may hold this one for hours.
        for _ in range(100):
            try:
                fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                time.sleep(0.02)
            except OSError:
                break
            else:
                break
        yield
    finally:
        os.close(handle)


def _require_own(path: Path, stream: Stream) -> None:
    """Refuse to overwrite the state of another private stream, which may be its only copy."""
    header = _header_in(path)
    if header.get("moves") and header.get("series") != stream.series:
        raise StateFileError(f"{path} contains another private stream, which would be lost. Use another file name")


def is_private(path: Path) -> bool:
    """Whether a private stream is in this file. Asking claims nothing."""
    # A private stream that continues elsewhere leaves its old file under another name.
    claimed = path.with_name(path.name + _CLAIMED)
    return (not path.exists() and claimed.exists()) or _KIND.read(path)[1].get("ledger") is not None


def notes_in(path: Path) -> dict[str, Any]:
    """What the writer of the state noted for the one who resumes it; nothing if the file is no state. Asking claims nothing."""
    facts = _header_in(path.resolve()).get("facts")
    notes = facts.get("notes") if isinstance(facts, dict) else None
    return notes if isinstance(notes, dict) else {}


def _header_in(path: Path) -> dict[str, Any]:
    """The header alone, without a check; nothing if the file is no archive."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            header = json.loads((file.metadata() or {})["eigenveil"])
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, RecursionError):
        return {}
    return header if isinstance(header, dict) else {}


def taken_from(path: Path, *, stays: bool = False) -> tuple[dict[str, Any], dict[str, Any], Path | None, IO[bytes] | None]:
    """Arrays and header of an undamaged state file, and what was claimed if it is a private stream.

    That is its new path, or the file itself, locked, if it `stays` where it is until the next checkpoint replaces it.
    """
    if path.name.endswith(_CLAIMED):
        raise StateFileError(
            f"{path} was resumed before, and later releases are not in it. Continuing from it could release the same rows twice"
        )
    # Renaming a symbolic link would not claim the file behind it.
    path = path.resolve()
    claimed = path.with_name(path.name + _CLAIMED)
    if not path.exists() and claimed.exists():
        raise StateFileError(f"{path} was resumed before and not saved since. Its old state is in {claimed.name}")
    arrays, header = _read(path)
    # A file that does not say whether it moves is taken to move, which is the safe reading.
    if header.get("ledger") is None or not header.get("moves", True):
        return arrays, header, None, None
    try:
        if path.stat().st_nlink > 1:
            raise StateFileError(f"{path} has more than one name (a hard link), so it could be resumed more than once")
        file = _locked(path)
        # Locking or renaming claims the stream. Read it again afterwards: another process may have resumed and saved it in
        # between.
        if stays:
            return *_read(path), None, file
        with file:
            path.replace(claimed)
            # Before anything is released: after a power cut the old name could be claimed again.
            sync_folder(path.parent)
    except FileNotFoundError:
        raise StateFileError(f"{path} was resumed by another process in the meantime") from None
    return *_read(claimed), claimed, None


def _locked(path: Path) -> IO[bytes]:
    """A file that no other stream holds, open, and locked until it is closed or this process ends, however it ends."""
    file = path.open("rb")
    if os.name == "posix":
        import fcntl

        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            # A running stream replaces the file at every checkpoint. Then this one is an old one.
            taken = os.fstat(file.fileno()).st_ino != path.stat().st_ino
        except BlockingIOError:
            taken = True
        if taken:
            file.close()
            raise StateFileError(
                f"{path} is the state of a stream that is still running, here or in another process. Wait until it ends"
            )
    return file


def _read(path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
    arrays, header = _KIND.read(path)
    stated = header.pop("digest", None)
    # The archive adds its format and version after the digest was taken, so they come off before it is compared.
    del header["format"], header["version"]
    if stated != _digest(arrays, header):
        raise StateFileError(f"{path} is damaged: its contents are not those that were saved")
    return arrays, header


def resumed(terms: StreamSpec, arrays: Mapping[str, Any], header: Mapping[str, Any], ledger: Ledger | None) -> Stream:
    """The saved stream, on its own ledger or, if it shared one, on `ledger`. Any inconsistency raises."""
    stream = Stream(terms, _ledger(header, ledger, terms.unit), shared=bool(header["shared"]))
    counts = {name: int(header["counts"][name]) for name in _COUNTS}
    require(all(count >= 0 for count in counts.values()), "its counts are negative")
    for name, count in counts.items():
        setattr(stream, name, count)
    # Before `begin`, because the tracker charges its slots under this name. A new name would charge old slots as new ones.
    stream.series = str(header["series"])
    stream.charges = _charges(header["charges"])
    stream.reserve_name = header.get("reserve")
    if stream.people is not None:
        stream.people = PeopleSeen.restored(terms.person_blocks, arrays, header["identifiers"])
    state, merged, placement, center, searching, unseen = _parts(header["tree"], arrays)
    if header["begun"]:
        stream.place = placement.resumed(terms)
        stream.begin(center)
    stream.state, stream.merged = state, merged
    if searching is not None:
        stream.searching = _search(searching, terms)
    if unseen is not None:
        require(unseen.dtype == bool and unseen.shape == (terms.bounds.dim,), "its columns are not those of the stream")
        stream.unseen = unseen
    stream.pending = _pending(arrays, int(header["held"]), terms.bounds.dim)
    return stream


def _parts(tree: Any, arrays: Mapping[str, Any]) -> tuple[Any, Merged | None, Placement, Any, Center | None, Any]:
    """The tracker's state, what was merged, where rows lie and around what, the search that waits, columns without an entry."""
    state, merged, placement, center, searching, unseen = restored(tree, arrays, more=(Merged, Placement, Center, Rates))
    for part, kind in ((merged, Merged), (center, np.ndarray), (searching, Center), (unseen, np.ndarray)):
        require(part is None or isinstance(part, kind), "its parts are not those of a stream")
    require(isinstance(placement, Placement), "its parts are not those of a stream")
    return state, merged, placement, center, searching, unseen


def _search(center: Center, terms: StreamSpec) -> Center:
    """The search that waits for more rows."""
    gaps = terms.bounds.gaps
    entries = gaps.entries if gaps is not None and gaps.divides else 0
    require(
        center.center is not None
        and center.center.shape == (terms.bounds.dim,)
        and bool(np.isfinite(center.center).all())
        and (center.observed is None) == (entries == 0)
        and (center.observed is None or center.observed.shape == (entries,))
        and terms.plan.search_rows > 0
        and center.bound is not None
        and SMALLEST <= center.bound <= LARGEST
        and math.isfinite(center.doubt),
        "its search is not one that a stream can have begun",
    )
    return replace(center, outliers=Outliers.read(center.outliers))


def _ledger(header: Mapping[str, Any], ledger: Ledger | None, unit: PrivacyUnit) -> Ledger | None:
    stored = header["ledger"]
    if stored is None:
        return None
    if header["shared"]:
        if ledger is None:
            raise StateFileError("this stream was charged to a shared ledger. Pass it as ledger= to resume")
        # Counted with repeats, because several charges may have the same label and the same cost. In a file a stream is charged
        # whole, and known by the name of its reserve.
        name = header.get("reserve")
        if (Counter(_charges(header["charges"])) - Counter(ledger.charges)) if name is None else not ledger.knows(name):
            raise StateFileError("this stream was charged to another ledger. Pass that one as ledger=")
        if name is not None:
            # A file has their charge, and not which slots it was for. Only those of this stream.
            ledger.adopt({series: held for series, held in _series(stored).items() if series.startswith(f"{header['series']}: ")})
        return ledger
    if ledger is not None:
        raise StateFileError("this stream has a ledger of its own, which continues with it. Leave out ledger")
    # Slots continue too, or one slot could be charged as if it were new. Its kind follows from the stream's own terms, which the
    # file has too.
    charges = _charges(stored["charges"])
    return Ledger.continued(Budget(stored["epsilon"], stored["delta"]), charges, _series(stored), unit=unit)


def _series(stored: Mapping[str, Any]) -> dict[str, tuple[int, int, float, tuple[float, ...]]]:
    """The slots that a ledger had counted."""
    return {name: (int(n), int(p), float(o), tuple(map(float, largest))) for name, (n, p, o, largest) in stored["series"].items()}


def _ledger_facts(stream: Stream) -> dict[str, Any] | None:
    ledger = stream.ledger
    if ledger is None:
        return None
    # A ledger in a file has what others were charged, and keeps it.
    charges = ledger.charges if stream.reserve_name is None else stream.charges
    return {
        "epsilon": ledger.budget.epsilon,
        "delta": ledger.budget.delta,
        "charges": [asdict(charge) for charge in charges],
        "series": ledger.series(),
    }


def _charges(entries: Any) -> tuple[Charge, ...]:
    return tuple(Charge(str(entry["label"]), float(entry["mu"]), entry["purpose"]) for entry in entries)


def _pending(arrays: Mapping[str, Any], held: int, dim: int) -> OpenBlock:
    if "pending.indptr" in arrays:
        parts = (arrays["pending.data"], arrays["pending.indices"], arrays["pending.indptr"])
        matrix = sp.csr_array(parts, shape=(held, dim))
        # Indices out of range would read memory that is not ours.
        matrix.check_format(full_check=True)
        return OpenBlock.of(matrix)
    if "pending" not in arrays:
        require(held == 0, "rows of its open block are missing")
        return OpenBlock()
    rows: Array = arrays["pending"]
    require(rows.shape == (held, dim), f"the rows of its open block have shape {rows.shape}")
    return OpenBlock.of(rows)


def _digest(arrays: Mapping[str, Any], header: Mapping[str, Any]) -> str:
    """Digest of everything in the file. A state with a flipped bit would otherwise continue unnoticed."""
    digest = hashlib.sha256(json.dumps(header, sort_keys=True).encode())
    for name in sorted(arrays):
        array = arrays[name]
        # With names, types and shapes: the same bytes in another shape are another state.
        digest.update(f"{name} {array.dtype.str} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()
