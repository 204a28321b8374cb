"""The file of a ledger: made whole or not at all, readable by its owner only, written in transactions that survive a crash.

It is one SQLite database with a rollback journal and full synchronisation. COMMIT returns after the disk has confirmed the
file itself, the removal of its journal, and the folder: no charge that was committed needs another file. The journal holds what
a write in progress overwrites, and the next to open the ledger after a crash puts it back. The file must be on a local disk,
because network file systems do not keep the locks.

What is open stays the file that its name leads to. If it is removed, or another one is put in its place, nothing more is written:
charges would go to a file that is lost. A forked child has no part in its parent's connection, and opens its own.
"""

import contextlib
import os
import secrets
import shlex
import sqlite3
import sys
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Final, final

from eigenveil.core.threads import this_process
from eigenveil.data.archive import require_own, require_own_folder, whole_file
from eigenveil.ledger.replay import Entry, LedgerError, canonical

if sys.platform != "win32":
    import fcntl

__all__ = ["LAST", "LedgerFile", "add_entry", "locked"]

# Where the table of keys has the number and the hash of the last entry.
LAST: Final = "last"
# "EvBk": what SQLite keeps in the header of the file to say whose it is.
_APPLICATION: Final = 0x4576426B
_VERSION: Final = 2
# Releases can have 25 MB. Pages larger than usual halve the time to write them, and small entries take no longer.
_PAGE: Final = 16384
# Milliseconds. A writer waits long, because giving up ends a site. Tidying up waits briefly and can be left out.
_WAIT_MS: Final = 30_000
_SHORT_MS: Final = 1_000
_BESIDE: Final = ("-wal", "-shm", "-journal")
# The entries are in `lines`, and decide every budget. What entries must not have is in the other tables: private randomness in
# `studies`, the bytes of messages in `stored`, fingerprints of rows in `prints`, where rows came from in `sources`, and
# reasons of refusals in `log`.
_SCHEMA: Final = (
    """CREATE TABLE lines (number INTEGER PRIMARY KEY, time TEXT NOT NULL, kind TEXT NOT NULL, study TEXT, dataset TEXT,
    body TEXT NOT NULL, hash TEXT NOT NULL)""",
    """CREATE TABLE studies (study TEXT PRIMARY KEY, dataset TEXT NOT NULL, joined INTEGER NOT NULL REFERENCES lines (number),
    secret BLOB, pruned INTEGER NOT NULL DEFAULT 0)""",
    """CREATE TABLE stored (study TEXT NOT NULL REFERENCES studies (study), number INTEGER NOT NULL, place INTEGER NOT NULL,
    data BLOB NOT NULL, PRIMARY KEY (study, number, place))""",
    """CREATE TABLE prints (seen INTEGER PRIMARY KEY, dataset TEXT NOT NULL, print BLOB NOT NULL)""",
    "CREATE TABLE sources (source TEXT NOT NULL, dataset TEXT NOT NULL, PRIMARY KEY (source, dataset))",
    "CREATE TABLE log (number INTEGER PRIMARY KEY, time TEXT NOT NULL, study TEXT NOT NULL, words TEXT NOT NULL)",
    "CREATE TABLE keys (name TEXT PRIMARY KEY, key BLOB NOT NULL)",
)
# What each setting is set to, and what SQLite must answer afterwards. Any other answer is an error, never a weaker ledger.
_SETTINGS: Final = (
    # In a write-ahead log, paid charges were in a second file, and were lost with it.
    ("journal_mode", "DELETE", "delete"),
    # EXTRA synchronises the folder after the journal is removed. Otherwise a power cut could bring it back, to undo a charge.
    ("synchronous", "EXTRA", 3),
    ("fullfsync", "ON", 1),
    ("foreign_keys", "ON", 1),
    ("secure_delete", "ON", 1),
    ("trusted_schema", "OFF", 0),
    ("cache_size", "-256", -256),
    ("busy_timeout", str(_WAIT_MS), _WAIT_MS),
)


@final
class LedgerFile:
    """An open ledger: one connection, used by one thread at a time and by the process that opened it. Changes in place."""

    def __init__(self, path: Path, connection: sqlite3.Connection, *, writes: bool, inode: tuple[int, int]) -> None:
        self.path, self._inode = path, inode
        self._connection: sqlite3.Connection | None = connection
        self._process, self._lock = this_process(), threading.RLock()
        self._writes = writes
        # Called after each transaction that wrote, before anyone is told of its success.
        self.written: Callable[[], None] = lambda: None
        _OPEN.add(self)

    @classmethod
    def open(cls, path: Path, *, create: bool) -> "LedgerFile":
        """Open the ledger at `path` to read and write; make it first if there is none and `create` is set."""
        path = _whole(path)
        # Asked again under the lock: another process may have made it meanwhile.
        if create and not path.exists():
            # Two processes that start at once must not both make the file: one would lose its charges.
            with locked(path, "new"):
                if not path.exists():
                    _make(path)
        return cls._opened(path, writes=True)

    @classmethod
    def reading(cls, path: Path) -> "LedgerFile":
        """Open the ledger at `path` so that it is not written to, and nothing beside it either, with one exception.

        If a crash left a write unfinished, what it had overwritten is put back first.
        """
        return cls._opened(_whole(path), writes=False)

    @classmethod
    def _opened(cls, path: Path, *, writes: bool) -> "LedgerFile":
        # Before SQLite opens it: secrets of studies go into it and into the log beside it.
        _require_private(path)
        if writes and not (os.access(path, os.W_OK) and os.access(path.parent, os.W_OK)):
            raise LedgerError(
                f"{path} or its folder cannot be written, and a charge must be kept before anything leaves. Run: chmod u+w "
                f"{shlex.quote(str(path))} {shlex.quote(str(path.parent))}"
            )
        if path in _TORN:
            raise LedgerError(
                f"this process was forked while its parent was writing to {path}, so it cannot use it safely. Start it anew, or "
                "use spawn instead of fork"
            )
        with _as_ledger_errors(path), contextlib.ExitStack() as on_error:
            inode = _inode_of(path)
            _require_ledger(path)
            connection = _connected(path, "mode=rw" if writes else "mode=ro")
            on_error.callback(connection.close)
            try:
                _require_schema(path, connection)
            except sqlite3.OperationalError as error:
                if writes or getattr(error, "sqlite_errorname", "") != "SQLITE_READONLY_ROLLBACK":
                    raise
                # Any read by a connection that may write puts back what the crash interrupted.
                with contextlib.closing(_connected(path, "mode=rw")) as other:
                    other.execute("PRAGMA user_version").fetchone()
                _require_schema(path, connection)
            if writes:
                _settle(path, connection)
            # Of the file that was opened: the same name led to it before and after.
            _require_there(path, inode)
            on_error.pop_all()
        return cls(path, connection, writes=writes, inode=inode)

    def close(self) -> None:
        """Close the file. All that was committed is in it."""
        with self._lock:
            connection, self._connection = self._connection, None
            if connection is None:
                return
            # After a fork the connection belongs to the parent: SQLite forbids using it in the child, even to close it.
            if this_process() == self._process:
                connection.close()
            else:
                _INHERITED.append(connection)

    @contextmanager
    def writing(self, *, seals: bool = True) -> Iterator[sqlite3.Connection]:
        """A transaction that holds the ledger alone, committed to the disk at the end, or undone after any error.

        One that `seals` no entry leaves the head as it was, and no head is noted.
        """
        with self._lock:
            connection = self._ready()
            if not self._writes:
                raise LedgerError(f"{self.path} was opened read-only")
            with self._transaction(connection, "BEGIN IMMEDIATE", "nothing was written and nothing may leave"):
                yield connection
            # What was committed to a file that is gone is lost, so nothing may leave on the strength of it.
            _require_there(self.path, self._inode)
            if seals:
                self.written()

    @contextmanager
    def looking(self) -> Iterator[sqlite3.Connection]:
        """A transaction that sees the ledger as it is at one moment, even while others write."""
        with self._lock:
            connection = self._ready()
            with self._transaction(connection, "BEGIN", "nothing was written"):
                yield connection

    def give_back(self) -> None:
        """Give the space of deleted messages back to the disk, which may be left undone."""
        # An error here is no reason to fail: what was deleted is overwritten, and its end is committed.
        with self._lock, contextlib.suppress(sqlite3.Error):
            connection = self._ready()
            connection.execute(f"PRAGMA busy_timeout = {_SHORT_MS}").fetchall()
            try:
                # As a script, because `execute` would take only its first step, which gives back one page.
                connection.executescript("PRAGMA incremental_vacuum")
            finally:
                connection.execute(f"PRAGMA busy_timeout = {_WAIT_MS}").fetchall()

    def _ready(self) -> sqlite3.Connection:
        if self._connection is None:
            raise LedgerError(f"{self.path} is closed")
        if this_process() != self._process:
            raise LedgerError(f"another process opened {self.path}; each process must open it itself")
        return self._connection

    @contextmanager
    def _transaction(self, connection: sqlite3.Connection, begin: str, otherwise: str) -> Iterator[None]:
        try:
            connection.execute(begin)
            _require_there(self.path, self._inode)
            # A trigger that was added while the ledger is open would take effect at once.
            _require_schema(self.path, connection)
            yield
            connection.execute("COMMIT")
        except BaseException as error:
            if connection.in_transaction:
                with contextlib.suppress(sqlite3.Error):
                    connection.execute("ROLLBACK")
            if isinstance(error, sqlite3.Error | UnicodeDecodeError):
                raise LedgerError(f"{self.path}: {_why(error)}; {otherwise}") from error
            raise


# Every ledger that this process has open, and connections of its parents, which it keeps and never touches: closing one would
# undo what the parent has begun.
_OPEN: "weakref.WeakSet[LedgerFile]" = weakref.WeakSet()
_INHERITED: list[sqlite3.Connection] = []
# Ledgers in which the parent was writing at the moment of the fork. SQLite in the child believes that it has their locks.
_TORN: set[Path] = set()
# Seconds that a fork waits for writes in progress.
_FORK_WAIT: Final = 5.0
_forking = threading.local()


def _before_fork() -> None:
    """Wait until no thread uses a ledger: a lock that the parent holds would seem to be the child's, which does not have it."""
    _forking.held = [(file, file._lock.acquire(timeout=_FORK_WAIT)) for file in list(_OPEN)]


def _after_fork_in_parent() -> None:
    for file, held in _forking.held:
        if held:
            file._lock.release()
    _forking.held = []


def _after_fork_in_child() -> None:
    for file, held in _forking.held:
        connection = file._connection
        if connection is not None:
            _INHERITED.append(connection)
            if not held or connection.in_transaction:
                _TORN.add(file.path)
        file._lock = threading.RLock()
    _forking.held = []


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)


def _inode_of(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_dev, status.st_ino


def _require_there(path: Path, inode: tuple[int, int]) -> None:
    """Refuse a file that was removed or exchanged while it was open. Its number is not given to another one meanwhile."""
    try:
        current = _inode_of(path)
    except OSError:
        current = None
    if current != inode:
        happened = "removed" if current is None else "exchanged for another one"
        raise LedgerError(
            f"{path} was {happened} while it was open, so charges in it would be lost. Put the ledger back, and open it again. "
            "Nothing may leave"
        )


@contextmanager
def locked(path: Path, name: str, refusal: str | None = None) -> Iterator[None]:
    """Hold a lock beside `path` that ends with this process, however it ends.

    If another process has it: `LedgerError(refusal)`, or without a refusal wait for it.
    """
    if sys.platform == "win32":
        raise LedgerError("a ledger in a file needs the file locks of Linux or macOS")
    beside = path.with_name(f".{path.name}.{name}.lock")
    while True:
        try:
            # The kernel frees such a lock when the process dies. A file with its process id would survive a crash.
            handle = os.open(beside, os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise LedgerError(f"{beside} cannot be made: {error.strerror}") from error
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if refusal is None else fcntl.LOCK_NB))
        except OSError as error:
            os.close(handle)
            taken = isinstance(error, BlockingIOError) and refusal is not None
            raise LedgerError(refusal if taken else f"{beside} cannot be locked: {error.strerror}") from error
        # The previous holder may have removed the file between our two steps. Then no other process sees our lock.
        with contextlib.suppress(FileNotFoundError):
            if os.fstat(handle).st_ino == beside.stat().st_ino:
                break
        os.close(handle)
    try:
        yield
    finally:
        # Removed before the lock is released. Those who wait for it see that the name is gone, and try again.
        beside.unlink(missing_ok=True)
        os.close(handle)


def add_entry(connection: sqlite3.Connection, entry: Entry) -> None:
    """Write an entry, inside a transaction."""
    row = (entry.number, entry.time, entry.kind, entry.study, entry.dataset, canonical(entry.body), entry.hash)
    connection.execute("INSERT INTO lines VALUES (?, ?, ?, ?, ?, ?, ?)", row)
    # Noted in a second place, so that entries removed from the end are missed.
    noted = f"{entry.number} {entry.hash}".encode()
    connection.execute("INSERT OR REPLACE INTO keys VALUES (?, ?)", (LAST, noted))


def _whole(path: Path) -> Path:
    # Through a link SQLite would keep the log beside the link, and two names of one ledger would overlook each other.
    whole = Path(path).resolve()
    if not whole.parent.is_dir():
        raise LedgerError(f"{whole}: the folder {whole.parent} does not exist")
    with _refusing():
        # By the name that was given: others must not be able to exchange a link on the way either.
        require_own_folder(Path(path))
    return whole


def _make(path: Path) -> None:
    # A log without its ledger holds committed charges. A new ledger beside it would forget them.
    left = [path.name + ending for ending in _BESIDE if _beside(path, ending).exists()]
    if left:
        raise LedgerError(
            f"{path} is missing, but {' and '.join(left)} is beside it and may have charges in it. Put the ledger back. If it "
            "is gone for good, move the other files away first"
        )
    with _as_ledger_errors(path), whole_file(path) as temporary:
        connection = _connected(temporary, "mode=rw")
        try:
            # Both take effect only before the first table.
            connection.execute(f"PRAGMA page_size = {_PAGE}")
            connection.execute("PRAGMA auto_vacuum = INCREMENTAL")
            _settle(path, connection)
            connection.execute("BEGIN IMMEDIATE")
            for statement in (*_SCHEMA, f"PRAGMA application_id = {_APPLICATION}", f"PRAGMA user_version = {_VERSION}"):
                connection.execute(statement)
            # The key of all marks and fingerprints. Without it no guess of a table or of a message can be checked.
            connection.execute("INSERT INTO keys VALUES ('prints', ?)", (secrets.token_bytes(32),))
            # The random name makes the hashes of every ledger its own, from the first entry on.
            body = {"version": _VERSION, "name": secrets.token_hex(16), "last": "noted"}
            add_entry(connection, Entry.after(None, kind="book", body=body))
            connection.execute("COMMIT")
        finally:
            connection.close()
            for ending in _BESIDE:
                _beside(temporary, ending).unlink(missing_ok=True)


def _connected(path: Path, how: str) -> sqlite3.Connection:
    # `LedgerFile` locks, so only one thread at a time uses the connection. A statement that Python keeps for the next time would
    # also keep a copy of the last message that it wrote.
    return sqlite3.connect(
        f"{path.as_uri()}?{how}",
        uri=True,
        isolation_level=None,
        timeout=_WAIT_MS / 1000,
        check_same_thread=False,
        cached_statements=0,
    )


def _settle(path: Path, connection: sqlite3.Connection) -> None:
    for name, value, wanted in _SETTINGS:
        connection.execute(f"PRAGMA {name} = {value}").fetchall()
        # SQLite ignores a setting it does not know, without an error. Only asking back shows that it took.
        (actual,) = connection.execute(f"PRAGMA {name}").fetchone() or (None,)
        if actual != wanted:
            raise LedgerError(f"{path}: a ledger needs the SQLite setting {name} = {value}, and this SQLite answers {actual}")


def _require_private(path: Path) -> None:
    # Look without opening the file: closing it again would drop the POSIX locks that SQLite has on it in this process.
    if not path.is_file():
        raise LedgerError(f"{path} does not exist or is not a file")
    for name in (path.name, *(path.name + ending for ending in _BESIDE)):
        # Secrets of studies are in all of them.
        with contextlib.suppress(FileNotFoundError), _refusing():
            require_own(path.with_name(name), private=True)
    # Under its other name SQLite would look for another log, and not find the charges in this one.
    if path.stat().st_nlink > 1:
        raise LedgerError(
            f"{path} has a second name, a hard link, and charges made under one name can be lost under the other. Find it with: "
            f"find / -xdev -samefile {shlex.quote(str(path))}, and remove it"
        )


@contextmanager
def _refusing() -> Iterator[None]:
    """Turn a refusal of the file or its folder into a `LedgerError`."""
    try:
        yield
    except ValueError as error:
        raise LedgerError(str(error)) from error


def _require_ledger(path: Path) -> None:
    """Refuse a file that is no ledger of this version, without touching it or what is beside it."""
    # Immutable: nothing is locked, made or put back. What it reads stays the same for as long as there is a ledger.
    with contextlib.closing(_connected(path, "mode=ro&immutable=1")) as connection:
        # Or SQLite would refuse a file that is shorter than its header says: in the middle of a write, or after a kill there.
        connection.execute("PRAGMA writable_schema = ON")
        (application,) = connection.execute("PRAGMA application_id").fetchone()
        (version,) = connection.execute("PRAGMA user_version").fetchone()
    if application != _APPLICATION:
        raise LedgerError(f"{path} is not a ledger of Eigenveil")
    if version != _VERSION:
        raise LedgerError(
            f"{path} is a ledger of version {version}, and this program reads version {_VERSION}. Keep the file. "
            "Use the version of Eigenveil that wrote it, or begin a new ledger, and take from the total budget what "
            "`eigenveil ledger show` of that version says was spent"
        )
    # SQLite would take what is in such a log for newer than the file, whatever it is.
    log = _beside(path, "-wal")
    if log.exists():
        raise LedgerError(
            f"{log} does not belong to {path}, which keeps no write-ahead log. Find out which ledger it was for, and move it away"
        )


_SCHEMA_ROWS: Final = "SELECT type, name, tbl_name, sql FROM sqlite_schema"


def _require_schema(path: Path, connection: sqlite3.Connection) -> None:
    # A trigger or view that someone added could change what is read or written, so the schema must match exactly.
    if set(connection.execute(_SCHEMA_ROWS).fetchall()) != _expected_schema():
        raise LedgerError(f"{path} is damaged: its tables are not those of a ledger")


@cache
def _expected_schema() -> frozenset[tuple[str | None, ...]]:
    with contextlib.closing(sqlite3.connect(":memory:")) as empty:
        for statement in _SCHEMA:
            empty.execute(statement)
        return frozenset(empty.execute(_SCHEMA_ROWS).fetchall())


def _beside(path: Path, ending: str) -> Path:
    return path.with_name(path.name + ending)


@contextmanager
def _as_ledger_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, UnicodeDecodeError) as error:
        raise LedgerError(f"{path} cannot be opened as a ledger: {_why(error)}") from error
    except OSError as error:
        raise LedgerError(f"{path}: {error.strerror or type(error).__name__}") from error


# What SQLite says, in words for the people who run a site.
_REASONS: Final = {
    "FULL": "the disk is full",
    "BUSY": f"another process has locked it for {_WAIT_MS // 1000} seconds",
    "LOCKED": f"another process has locked it for {_WAIT_MS // 1000} seconds",
    "IOERR": "the disk refused ({error})",
    "READONLY_DBMOVED": "it was removed while it was open. Put the ledger back, and open it again",
    "CANTOPEN": "it or its folder cannot be written. Give its owner the right to write both",
    "READONLY": "it or its folder cannot be written. Give its owner the right to write both",
    "NOTADB": "it is not a ledger of Eigenveil",
    "CORRUPT": "the file is damaged ({error})",
}


def _why(error: sqlite3.Error | UnicodeDecodeError) -> str:
    name = getattr(error, "sqlite_errorname", "").removeprefix("SQLITE_")
    if isinstance(error, UnicodeDecodeError) or not name:
        # It holds something that is no text where text should be, and the error would quote it.
        return "the file is damaged"
    reason = _REASONS.get(name) or _REASONS.get(name.partition("_")[0]) or "{error}"
    return reason.format(error=error)
