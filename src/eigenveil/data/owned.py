"""Files that decide for a site, or are secret: nobody else may be able to change or exchange them.

One rule for policies, private keys and ledgers:

- The file, and the folder it is in, belong to whoever runs the program, or to root. Nobody else may write to them.
- A private file nobody else may read either.
- Further up nobody else may write in a folder, unless it is sticky like /tmp, where only its owner can rename a file.

Links are followed, and the folder that a link is in is held to the rule of the file's own folder. Root is treated like anyone
else: what belongs to another user is refused. Windows keeps permissions elsewhere, so nothing is checked there.
"""

import os
import shlex
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from eigenveil.errors import require
from eigenveil.params.toml import LARGEST

__all__ = ["read_owned", "require_own", "require_own_folder", "text_owned", "unsafe"]

_WRITE: Final = stat.S_IWGRP | stat.S_IWOTH
_ANY: Final = stat.S_IRWXG | stat.S_IRWXO
# As many as Linux follows.
_MOST_LINKS: Final = 40


def unsafe(path: Path, *, private: bool = False) -> str | None:
    """Why the file at `path` cannot be trusted, with the command that repairs it; None if it can."""
    return _unsafe_folder(path) or _unsafe_file(path, path.stat(), private=private)


def require_own(path: Path, *, private: bool = False) -> None:
    """Refuse a file that `unsafe` has a reason to."""
    why = unsafe(path, private=private)
    require(why is None, str(why))


def require_own_folder(path: Path) -> None:
    """Refuse a place where others could exchange the file; it need not exist yet."""
    why = _unsafe_folder(path)
    require(why is None, str(why))


def read_owned(path: Path, *, most: int, private: bool = False, ours: bool = True) -> bytes:
    """The bytes of a small file that nobody else may change; a `ValueError` says why it is refused.

    Without `ours` it may belong to anybody, and only its own permissions count: a study file comes from others, is public,
    and is judged by what it says.
    """
    # A pipe would block here for ever. A missing file is left to `open`, which has its own error.
    require(path.is_file() or not path.exists(), f"{path} is not a file")
    with path.open("rb") as file:
        # Of the open file and not of its path, which somebody could exchange in between.
        found = os.fstat(file.fileno())
        require(stat.S_ISREG(found.st_mode), f"{path} is not a file")
        why = (_unsafe_folder(path) if ours else None) or _unsafe_file(path, found, private=private, ours=ours)
        require(why is None, str(why))
        # One byte more than allowed shows that there is more, without reading all of it.
        raw = file.read(most + 1)
    require(len(raw) <= most, f"{path} is larger than {most} bytes")
    return raw


def text_owned(path: Path, *, ours: bool = True) -> str:
    """The same as text in UTF-8, at most 4 MiB."""
    require(path.is_file(), f"{path} does not exist or is not a file")
    try:
        # Some editors begin a file with a byte order mark.
        return read_owned(path, most=LARGEST, ours=ours).decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} must be text in UTF-8: {error}") from None


def _unsafe_folder(path: Path) -> str | None:
    if os.name == "nt":
        return None
    for folder, decides in _folders_to(path):
        found = folder.stat()
        if decides and found.st_uid not in (0, os.geteuid()):
            return (
                f"{_name_of(found.st_uid)} owns the folder {folder}, and may exchange {path.name} in it. Keep it elsewhere, or "
                f"run: chown {_name_of(os.geteuid())} {_quoted(folder)}"
            )
        if found.st_mode & _WRITE and (decides or not found.st_mode & stat.S_ISVTX):
            return (
                f"others may write in the folder {folder}, and so exchange {path.name}. Keep it elsewhere, or run: "
                f"chmod go-w {_quoted(folder)}"
            )
    return None


def _unsafe_file(path: Path, found: os.stat_result, *, private: bool, ours: bool = True) -> str | None:
    if os.name == "nt":
        return None
    if ours and found.st_uid not in (0, os.geteuid()):
        owner = _name_of(found.st_uid)
        return (
            f"{path} belongs to {owner}. Run this as {owner}, or check what it says and run: "
            f"chown {_name_of(os.geteuid())} {_quoted(path)}"
        )
    if private and found.st_mode & _ANY:
        return f"{path} is private, and others may read or change it. Run: chmod 600 {_quoted(path)}"
    if found.st_mode & _WRITE:
        return f"others than its owner may change {path}. Run chmod go-w {_quoted(path)}, after you have checked what it says"
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
        here = at / part
        if here.is_symlink():
            links += 1
            require(links <= _MOST_LINKS, f"{path} leads through too many links")
            yield at, True
            target = here.readlink()
            at = Path("/") if target.is_absolute() else at
            left.extend(reversed(target.parts[target.is_absolute() :]))
        else:
            yield at, not left
            at = here


def _name_of(user: int) -> str:
    import pwd

    try:
        return pwd.getpwuid(user).pw_name
    except KeyError:
        # The account was deleted, or is of another machine.
        return str(user)


def _quoted(path: Path) -> str:
    return shlex.quote(str(path))
