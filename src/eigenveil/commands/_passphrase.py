"""Passphrases of private keys: from a file, from the environment, or from a person at a terminal.

They are never arguments of a command, because everyone on the machine can see those.
"""

import getpass
import os
import sys
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from eigenveil.commands._option import flag, option
from eigenveil.errors import require

if TYPE_CHECKING:
    from eigenveil.network.identity.certificates import Passphrase

__all__ = ["NewPassphrase", "PassphraseFile", "new_passphrase", "passphrase_from"]

# For services that are started without a person. Other users cannot read a process's environment.
_VARIABLE: Final = "EIGENVEIL_PASSPHRASE"
# A thief of the file can try many a second, so the passphrase itself must be long. OpenSSL takes up to 1023 bytes.
_SHORTEST: Final = 12
_LONGEST: Final = 1000

PassphraseFile: TypeAlias = Annotated[
    Path | None,
    option(
        "--passphrase-file",
        "FILE",
        "A file with the passphrase of the keys, that only you may read.",
        unset=f"the variable {_VARIABLE}, or asked at the terminal",
    ),
]
NewPassphrase: TypeAlias = Annotated[
    bool, flag("--passphrase", "Protect the private keys with a passphrase, which is asked for twice.")
]


def passphrase_from(file: Path | None) -> "Passphrase":
    """How a command gets the passphrase of a key file that has one."""

    def found(key: Path) -> bytes:
        given = _given(file)
        if given is None:
            require(
                _at_terminal(),
                f"{key} has a passphrase. Give it with --passphrase-file, or in the variable {_VARIABLE}",
            )
            given = getpass.getpass(f"Passphrase of {key}: ")
        return _encoded(given)

    return found


def new_passphrase(wanted: bool, file: Path | None) -> bytes | None:
    """The passphrase for new keys, asked twice unless it is given; None if they get none."""
    if not wanted and file is None:
        return None
    given = _given(file)
    if given is None:
        require(_at_terminal(), f"--passphrase needs a terminal, --passphrase-file, or the variable {_VARIABLE}")
        given = getpass.getpass("New passphrase: ")
        require(getpass.getpass("The same again: ") == given, "the two passphrases differ. Nothing was made")
    require(
        len(given) >= _SHORTEST,
        f"a passphrase must have at least {_SHORTEST} characters. Five words that you draw at random are a good one",
    )
    return _encoded(given)


def _given(file: Path | None) -> str | None:
    """The passphrase in the file or in the environment; None if a person must be asked."""
    from eigenveil.data.owned import read_owned

    if file is None:
        return os.environ.get(_VARIABLE)
    raw = read_owned(file, most=_LONGEST + 2, private=True)
    try:
        # An editor ends the line, and that is not a part of it.
        return raw.decode("utf-8-sig").rstrip("\r\n")
    except UnicodeDecodeError:
        raise ValueError(f"{file} must be text in UTF-8") from None


def _encoded(text: str) -> bytes:
    # Keyboards differ in how they make accents.
    raw = unicodedata.normalize("NFC", text).encode()
    require(0 < len(raw) <= _LONGEST, f"a passphrase must have 1 to {_LONGEST} bytes, got {len(raw)}")
    return raw


def _at_terminal() -> bool:
    return sys.stdin is not None and sys.stdin.isatty()
