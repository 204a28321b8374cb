"""Files that are written whole or not at all, and archives.

An archive is a safetensors file: arrays with a JSON header. There is no pickle anywhere. Models, stream states and recommenders
are stored as archives.
"""

import errno
import json
import os
import shlex
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar, final

from eigenveil.errors import EigenveilError, require
from eigenveil.params.tables import LARGEST

__all__ = [
    "ITEMS_FORMAT",
    "ArchiveKind",
    "format_of",
    "read_owned",
    "require_own",
    "require_own_folder",
    "sync_folder",
    "text_owned",
    "unsafe",
    "whole_file",
    "whole_number",
]

Made = TypeVar("Made")
_KEY = "eigenveil"
# Of whole numbers in files. Longer ones do not fit a floating-point number.
_MOST_DIGITS: Final = 300
# The format name in the header of a recommender's file: `inspect` checks it before it loads a recommender.
ITEMS_FORMAT = "eigenveil-items"


@contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """A temporary path beside `path`, readable by its owner only, that is renamed to `path` if all went well.

    A reader never sees half a file. After an error, an interrupt or a crash the old file is still there. When the block has
    ended, the file and its name are on disk, so what it was made from may be deleted.
    """
    require(path.parent.is_dir(), f"the folder {path.parent} does not exist")
    # In the same folder, because a rename is atomic only within one file system.
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        # On disk before it gets its name: a crash must not leave the new name on an empty file.
        with temporary.open("rb") as file:
            os.fsync(file.fileno())
        temporary.replace(path)
        sync_folder(path.parent)
    except BaseException as error:
        # An interrupt counts too: what was written so far may be raw data.
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) and error.errno is not None and error.filename is None:
            # A full disk names no file. An error without a number would be shown as its file alone.
            error.filename = str(path)
        raise


def sync_folder(folder: Path) -> None:
    """Wait until the names in a folder are on disk: they are in the folder and not in the files, and power cuts lose them."""
    # Windows has no such call: it keeps names in a journal of its own.
    if not hasattr(os, "O_DIRECTORY"):
        return
    handle = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(handle)
    except OSError as error:
        # Some network file systems write names at once and refuse to be asked. Any other refusal is an error of the disk.
        if error.errno not in (errno.EINVAL, errno.ENOTSUP):
            raise
    finally:
        os.close(handle)


def whole_number(text: str) -> int:
    """A whole number of a file from others. A `ValueError` for one that is no finite number to most functions.

    >>> whole_number("12")
    12
    """
    require(len(text) <= _MOST_DIGITS, f"a whole number in it has {len(text)} digits")
    return int(text)


def format_of(path: Path) -> str | None:
    """The format name in the header of an archive; None where no such header can be read."""
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(path, framework="numpy") as file:
            return str(json.loads((file.metadata() or {})[_KEY])["format"])
    except (SafetensorError, OSError, KeyError, ValueError, TypeError, RecursionError):
        return None


@final
@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveKind:
    """One kind of archive: its format name, the version this program writes and reads, and its error."""

    format: str
    version: int
    description: str
    error: type[EigenveilError]

    def write(
        self,
        path: Path,
        arrays: Mapping[str, Any],
        header: Mapping[str, Any],
        *,
        readable: bool,
        hold: Callable[[Path], None] | None = None,
    ) -> None:
        """Write the archive whole or not at all; `readable` by others, or by its owner only.

        `hold` may take hold of the file before it gets its name.
        """
        from safetensors.numpy import save

        text = json.dumps({"format": self.format, "version": self.version, **header})
        with whole_file(path) as temporary:
            temporary.write_bytes(save(dict(arrays), metadata={_KEY: text}))
            # A temporary file is readable by its owner only. That is right for states of streams, which are raw data.
            if readable:
                temporary.chmod(0o644)
            if hold is not None:
                hold(temporary)

    def read(self, path: Path) -> tuple[dict[str, Any], dict[str, Any]]:
        """Arrays and header; this kind's error for a file of another kind or version, or a damaged one. No code is executed."""
        from safetensors import SafetensorError, safe_open

        if not path.is_file():
            raise self.error(f"{path} does not exist or is not a file")
        try:
            with safe_open(path, framework="numpy") as file:
                header = self._header(path, file.metadata() or {})
                arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
        except SafetensorError as error:
            raise self.error(f"{path} is not {self.description}, or it is damaged") from error
        return arrays, header

    def read_as(self, path: Path, make: Callable[[dict[str, Any], dict[str, Any]], Made]) -> Made:
        """`make(arrays, header)`; this kind's error if the file cannot be read or `make` fails."""
        arrays, header = self.read(path)
        try:
            return make(arrays, header)
        except KeyError as error:
            raise self.error(
                f"{path} lacks {error}. Another version of Eigenveil wrote it, or it is damaged: make it again, or read it with "
                "the version that wrote it"
            ) from error
        except (ValueError, TypeError, ArithmeticError) as error:
            raise self.error(f"{path} is damaged: {error}") from error

    def _header(self, path: Path, metadata: Mapping[str, str]) -> dict[str, Any]:
        try:
            header = json.loads(metadata[_KEY], parse_int=whole_number)
        except (KeyError, json.JSONDecodeError, RecursionError) as error:
            # A header of deeply nested lists exhausts the stack of the parser, so a hostile file ends here too.
            raise self.error(f"{path} is a safetensors file but not {self.description}") from error
        except ValueError as error:
            raise self.error(f"{path} is damaged: {error}") from error
        # The format comes first, because the version of another kind of archive says nothing here.
        if not isinstance(header, dict) or header.get("format") != self.format:
            raise self.error(f"{path} is a safetensors file but not {self.description}")
        if header.get("version") != self.version:
            raise self.error(
                f"{path} is {self.description} of version {header.get('version')!r}. This program reads version {self.version}: "
                "make it again, or read it with the version of Eigenveil that wrote it"
            )
        return header


_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_ANY: Final = stat.S_IRWXG | stat.S_IRWXO
# As many as Linux follows.
_MOST_LINKS: Final = 40


def unsafe(path: Path, *, private: bool = False) -> str | None:
    """Why the file at `path` cannot be trusted, with the command that repairs it; None if it can."""
    return _unsafe_folder(path) or _unsafe_file(path, path.stat(), private=private)


def require_own(path: Path, *, private: bool = False) -> None:
    """Refuse a file that `unsafe` has a reason to."""
    _require_safe(unsafe(path, private=private))


def require_own_folder(path: Path) -> None:
    """Refuse a place where others could exchange the file; it need not exist yet."""
    _require_safe(_unsafe_folder(path))


def _require_safe(reason: str | None) -> None:
    require(reason is None, str(reason))


def read_owned(path: Path, *, max_bytes: int, private: bool = False, ours: bool = True) -> bytes:
    """The bytes of a small file that no one else may change; a `ValueError` says why it is refused.

    Without `ours` it may belong to anybody, and only its own permissions count: a study file comes from others, is public,
    and is judged by what it says.
    """
    # A pipe would block here for ever. A missing file is left to `open`, which has its own error.
    require(path.is_file() or not path.exists(), f"{path} is not a file")
    with path.open("rb") as file:
        # Of the open file and not of its path, which could be exchanged in between.
        status = os.fstat(file.fileno())
        require(stat.S_ISREG(status.st_mode), f"{path} is not a file")
        _require_safe((_unsafe_folder(path) if ours else None) or _unsafe_file(path, status, private=private, ours=ours))
        # One byte more than allowed shows that there is more, without reading all of it.
        raw = file.read(max_bytes + 1)
    require(len(raw) <= max_bytes, f"{path} is larger than {max_bytes} bytes")
    return raw


def text_owned(path: Path, *, ours: bool = True) -> str:
    """The same as text in UTF-8, at most 4 MiB."""
    require(path.is_file(), f"{path} does not exist or is not a file")
    try:
        # Some editors begin a file with a byte order mark.
        return read_owned(path, max_bytes=LARGEST, ours=ours).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be text in UTF-8: {error}") from None


def _unsafe_folder(path: Path) -> str | None:
    if os.name == "nt":
        return None
    for folder, decides in _folders_to(path):
        status, quoted = folder.stat(), shlex.quote(str(folder))
        if decides and status.st_uid not in (0, os.geteuid()):
            return (
                f"{_name_of(status.st_uid)} owns the folder {folder}, and may exchange {path.name} in it. Keep it elsewhere, or "
                f"run: chown {_name_of(os.geteuid())} {quoted}"
            )
        if status.st_mode & _WRITE and (decides or not status.st_mode & stat.S_ISVTX):
            return (
                f"others may write in the folder {folder}, and so exchange {path.name}. Keep it elsewhere, or run: "
                f"chmod go-w {quoted}"
            )
    return None


def _unsafe_file(path: Path, status: os.stat_result, *, private: bool, ours: bool = True) -> str | None:
    if os.name == "nt":
        return None
    quoted = shlex.quote(str(path))
    if ours and status.st_uid not in (0, os.geteuid()):
        owner = _name_of(status.st_uid)
        return (
            f"{path} belongs to {owner}. Run this as {owner}, or check what it says and run: "
            f"chown {_name_of(os.geteuid())} {quoted}"
        )
    if private and status.st_mode & _ANY:
        return f"{path} is private, and others may read or change it. Run: chmod 600 {quoted}"
    if status.st_mode & _WRITE:
        return f"others than its owner may change {path}. Run chmod go-w {quoted}, after you have checked what it says"
    return None


def _folders_to(path: Path) -> Iterator[tuple[Path, bool]]:
    """Every folder on the way to a file, and whether it decides: whether the file itself or a link on the way is in it."""
    at, links = Path("/"), 0
    left = list(reversed((Path.cwd() / path).parts[1:]))
    while left:
        part = left.pop()
        if part == "..":
            at = at.parent
            continue
        entry = at / part
        if entry.is_symlink():
            links += 1
            require(links <= _MOST_LINKS, f"{path} leads through too many links")
            yield at, True
            target = entry.readlink()
            at = Path("/") if target.is_absolute() else at
            left.extend(reversed(target.parts[target.is_absolute() :]))
        else:
            yield at, not left
            at = entry


def _name_of(user: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        # The account was deleted, or is of another machine.
        return str(user)
