"""The options of `eigenveil study new` that are not parameters of a study, and how they become its parties."""

import shlex
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, TypeAlias

from eigenveil.commands._files import column_names
from eigenveil.commands._option import argument, flag, option
from eigenveil.data.formats import known_format
from eigenveil.errors import listed, require
from eigenveil.params.declarations.gossip import PEERS

if TYPE_CHECKING:
    from eigenveil.network.identity.certificates import Certificate

__all__ = ["certificates_in", "columns_of", "pairs_from", "require_current"]

_WHO: Final = "Who takes part"
_PRIVACY: Final = "Privacy"
_PEERS: Final = f"{PEERS} (with --graph)"
# A list of column names is never larger than this; a larger file is something else.
_LARGEST: Final = 4 << 20

File: TypeAlias = Annotated[Path, argument("FILE", "The study file, a .toml.")]
Force: TypeAlias = Annotated[bool, flag("--force", "Overwrite the file if it exists.")]
Authority: TypeAlias = Annotated[
    Path,
    option(
        "FOLDER",
        "The coordinator's folder, with authority.crt, hub.crt and the signed .crt of each other party. Private keys in "
        "it are not read.",
        shows=True,
        panel=_WHO,
    ),
]
# In the order given, because sums run in that order, and so do their last bits.
Site: TypeAlias = Annotated[
    list[str] | None,
    option(
        "NAME",
        "A site, or peer, that takes part; repeat it for several, in order.",
        unset="all in the folder, by name",
        panel=_WHO,
    ),
]
Address: TypeAlias = Annotated[
    str | None, option("HOST:PORT", "Where sites reach the hub.", unset="none with --graph", panel=_WHO)
]
NodeAddress: TypeAlias = Annotated[
    list[str] | None,
    option("NAME=HOST:PORT", "Where a node of the tree listens; repeat it for each.", panel=_WHO),
]
Columns: TypeAlias = Annotated[
    str | None, option("NAMES", "The columns by name, such as age,weight. All parties use them in this order.")
]
ColumnsFrom: TypeAlias = Annotated[
    Path | None,
    option(
        "FILE",
        "Read the column names from a .csv or .parquet, or from a text file with one name on each line. Only names are "
        "read.",
    ),
]
Size: TypeAlias = Annotated[
    list[str] | None,
    option(
        "NAME=PEOPLE",
        "The number of people at a site, if --neighbours makes it public. Repeat it for each site.",
        panel=_PRIVACY,
    ),
]
PeerAddress: TypeAlias = Annotated[
    list[str] | None,
    option("NAME=HOST:PORT", "Where a peer listens; repeat it for each.", panel=_PEERS),
]


def columns_of(text: str | None, source: Path | None, *, person: str | None) -> list[str]:
    """The columns that were named, or those of a file without its `person` column.

    >>> columns_of("age, weight", None, person=None)
    ['age', 'weight']
    """
    require((text is None) != (source is None), "give the columns with --columns A,B,C, or with --columns-from FILE")
    if text is not None:
        return [name.strip() for name in text.split(",")]
    assert source is not None
    require(source.is_file(), f"--columns-from {source} does not exist or is not a file")
    if known_format(source) is not None:
        names = column_names(source)
        require(names is not None, f"--columns-from {source}: its column names cannot be read")
        # The person column says whose row it is. It is no variable of the study.
        return [name for name in names or () if name != person]
    require(source.stat().st_size <= _LARGEST, f"--columns-from {source} is too large for a list of names")
    try:
        # With or without a byte order mark, which would become part of the first name.
        lines = source.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"--columns-from {source} must be UTF-8 text, or a table with column names") from None
    return [line.strip() for line in lines if line.strip() and line.strip() != person]


def pairs_from(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    """Values by name, from texts such as NAME=VALUE.

    >>> pairs_from("--peer-address", ["north=10.0.0.1:7000"])
    {'north': '10.0.0.1:7000'}
    """
    found: dict[str, str] = {}
    for text in texts or []:
        # From the right: names may have any character, and addresses and numbers have no "=".
        name, equals, value = text.rpartition("=")
        require(bool(equals and name and value), f"{option} must be NAME=VALUE, got {text!r}")
        require(name not in found, f"{option} {name} was given twice")
        found[name] = value
    return found


def require_current(folder: Path, authority: str, certificates: "Sequence[Certificate]") -> None:
    """Refuse certificates that have ended or not begun, all at once, with the command that renews them."""
    from eigenveil.network.identity.authority import AUTHORITY, HUB, file_stem
    from eigenveil.network.identity.certificates import authority_in

    # All of them at once, so that the coordinator renews once.
    now, signer = datetime.now(UTC), authority_in(authority)
    dated = [("the authority", AUTHORITY, signer.not_valid_before_utc, signer.not_valid_after_utc)]
    # `keys init` writes hub.crt, whatever the name of the hub is.
    stems = (HUB if one.role == "hub" else file_stem(one.name) for one in certificates)
    dated += [(one.name, stem, one.begins, one.ends) for one, stem in zip(certificates, stems, strict=True)]
    early = [f"{name} on {begins:%Y-%m-%d}" for name, _, begins, _ in dated if now < begins]
    require(not early, f"certificates that have not begun: {listed(early)}. Set the clock of this computer, or wait")
    over = [(f"{name} on {ends:%Y-%m-%d}", folder / f"{stem}.crt") for name, stem, _, ends in dated if now > ends]
    files = " ".join(shlex.quote(str(path)) for _, path in over)
    require(
        not over,
        f"certificates that have ended: {listed(name for name, _ in over)}. Renew them, which keeps their pins, with: "
        f"eigenveil keys renew {files} --authority {shlex.quote(str(folder))}",
    )


def certificates_in(folder: Path) -> tuple[str, dict[str, "Certificate"]]:
    """The authority's certificate (PEM) in a coordinator's folder, and all parties' by name. No private key is read."""
    from eigenveil.network.identity.authority import AUTHORITY
    from eigenveil.network.identity.certificates import Certificate, contents

    authority = folder / f"{AUTHORITY}.crt"
    require(
        authority.is_file(), f"--authority {folder}: {authority.name} is missing. Make it with: eigenveil keys init"
    )
    found: dict[str, Certificate] = {}
    for path in sorted(folder.glob("*.crt")):
        if path == authority:
            continue
        try:
            certificate = Certificate.read(contents(path))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        require(
            certificate.name not in found, f"{path}: another file in {folder} has the name {certificate.name!r} too"
        )
        found[certificate.name] = certificate
    return contents(authority).decode(errors="replace"), found
