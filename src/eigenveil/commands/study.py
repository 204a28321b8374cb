"""`eigenveil study`: write the file of a study across organisations from options, and show one in words."""

import math
import secrets
import shlex
import time
import warnings
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, TypeAlias

from eigenveil.commands import _options as common
from eigenveil.commands._command import Answer, Command, Group
from eigenveil.commands._ending import despite_noise, wrote
from eigenveil.commands._files import column_names
from eigenveil.commands._network import MEMORY, Memory, bytes_allowed
from eigenveil.commands._options import argument, flag, option
from eigenveil.data.formats import known_format
from eigenveil.errors import listed, require, require_param
from eigenveil.params.declarations.federated import PEERS
from eigenveil.params.declarations.study import NewStudy, in_new
from eigenveil.show.console import Line

if TYPE_CHECKING:
    from eigenveil.network.certificates import Certificate
    from eigenveil.network.study import StudyFile
    from eigenveil.show.console import View

__all__ = ["COMMAND"]

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
        none_means="all in the folder, by name",
        panel=_WHO,
    ),
]
Address: TypeAlias = Annotated[
    str | None, option("HOST:PORT", "Where sites reach the hub.", none_means="none with --graph", panel=_WHO)
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
    from eigenveil.network.authority import AUTHORITY, HUB, file_stem
    from eigenveil.network.certificates import authority_in

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
    from eigenveil.network.authority import AUTHORITY
    from eigenveil.network.certificates import Certificate, contents

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


# Up to so many peers `study new` lets all pairs share noise, if their graph alone would not survive the loss of one.
_ALL_PAIRS: Final = 16


def group() -> None:
    """A study across organisations, in one public file.

    The coordinator writes it once, from the certificates in a folder,
    and sends it to all parties. Each site reads it before it decides:

      eigenveil study new heart.toml --authority study ...
      eigenveil study show heart.toml
    """


def new(
    file: File,
    settings: dict[str, Any],
    columns: Columns = None,
    columns_from: ColumnsFrom = None,
    authority: Authority = Path(),
    site: Site = None,
    address: Address = None,
    node_address: NodeAddress = None,
    size: Size = None,
    peer_address: PeerAddress = None,
    memory: Memory = MEMORY,
    force: Force = False,
    even_if_noise: common.EvenIfNoise = False,
) -> Answer:
    """Write the file of a study, from certificates and public numbers.

    Example: hospitals whose certificates are in the folder study. The
    hub never sees one hospital's sums, and one of five may drop out:

      eigenveil study new heart.toml --authority study \\
        --address hub.example.org:7443 -k 3 --columns-from public.csv \\
        --epsilon 1 --delta 1e-6 --survivors 4

    Example: peers on a ring, with no hub at all:

      eigenveil study new heart.toml --authority study --graph ring \\
        --peer-address north=10.0.0.1:7443 \\
        --peer-address south=10.0.0.2:7443 \\
        --peer-address west=10.0.0.3:7443 \\
        -k 3 --columns age,weight,pulse,pressure \\
        --epsilon 1 --delta 1e-6

    Peers that are killed in the middle cannot come back. So the budget
    keeps room for one round to begin again without one, which makes the
    noise of every round larger. --restarts 0 leaves that out: then one
    lost peer ends the study, and what the others were charged is spent.

    The study finds a bound on rows privately. Nothing in this file comes
    from anyone's rows: if you give bounds, take them from elsewhere. The
    file is public and has no secrets. All parties need the same file:
    changing one key makes another study.
    """
    _require_new(file, force=force)
    allowed = bytes_allowed(memory)
    # For these two None is an answer: no privacy, and rows left where they are. Elsewhere it means "not given".
    given = {
        name: value
        for name, value in settings.items()
        if (value is not None and value is not False) or name in ("epsilon", "row_bound", "center")
    }
    if given.get("slot_seconds") is not None and "begins" not in given:
        # Written out, so that every site begins at the same moment.
        given["begins"] = float(math.ceil(time.time()))
    given |= {
        "columns": columns_of(columns, columns_from, person=settings["person"]),
        "id": secrets.token_hex(16),
    }
    # The file's name is the study's name, unless --name gives another.
    given |= {"name": file.stem} | given | _carried(given)
    # Public only under some relations. `StudyFile.made` refuses them under the others.
    sizes = pairs_from("--size", size)
    parties: dict[str, Any] = {"sizes": {who: _people(who, text) for who, text in sizes.items()}} if sizes else {}
    if given["topology"] == "gossip":
        require(
            address is None and not node_address,
            "--address and --node-address are for a study with a hub, and --graph has no hub",
        )
        parties |= _between_peers(authority, site, peer_address, given)
    else:
        require(not peer_address, "--peer-address is for --graph: peers with no hub")
        parties |= _around_hub(authority, site, address, given.get("fanout"), node_address)
    return _write(file, given, parties, memory=allowed, even_if_noise=even_if_noise)


def _carried(given: Mapping[str, Any]) -> dict[str, Any]:
    """The carrier that the options imply, and who adds the noise unless that was given."""
    require_param(
        "graph" not in given or "fanout" not in given,
        "{graph} is for a study without a hub, and {fanout} for a tree below one; give one of them",
    )
    private = given["epsilon"] is not None
    if "graph" in given:
        return {"topology": "gossip"} | ({"noise": given.get("noise", "pairwise")} if private else {})
    # Masks need a star. In a tree the sites' own noise is what protects from the nodes.
    carrier, trust = ("tree", "site") if "fanout" in given else ("star", "masked")
    if given.get("streaming"):
        trust = "site"
    return {"topology": carrier} | ({"trust": given.get("trust", trust)} if private else {})


def show(file: File) -> Answer:
    """Check a study file, and show in words what the study is.

    It shows what is computed, who takes part, who learns what, and at
    what cost. Then the pins of all parties, to be compared by telephone,
    the dates of their certificates, and the digest. Two parties that see
    the same digest have the same study.

      eigenveil study show heart.toml
    """
    from eigenveil.network.study import StudyFile
    from eigenveil.show.agreement import study_view

    found = StudyFile.read(file)
    return Answer(view=lambda: study_view(found))


def _require_new(file: Path, *, force: bool) -> None:
    require(file.suffix.lower() == ".toml", f"the study file must end in .toml, got {file}")
    require(file.parent.is_dir(), f"{file}: the folder {file.parent} does not exist")
    require(not file.is_dir(), f"{file} is a folder")
    require(force or not file.exists(), f"{file} already exists; --force overwrites it")


def _people(name: str, text: str) -> int:
    # Checked before `int`, which also takes signs, underscores and other scripts' digits.
    require(
        text.isascii() and text.isdecimal() and len(text) < 17, f"--size {name} must be a whole number, got {text!r}"
    )
    return int(text)


def _chosen(
    certificates: "Mapping[str, Certificate]", role: str, names: list[str] | None, folder: Path
) -> "list[Certificate]":
    """The certificates of a role: all of them, sorted by name, or those that were named, in that order."""
    # Sorted, so that the order of parties does not depend on the disk.
    there = {name: one for name, one in sorted(certificates.items()) if one.role == role}
    require(bool(there), f"--authority {folder}: it has no certificate of a {role}")
    for name in names or []:
        require(
            name in there,
            f"--site {name}: no {role} of that name has a certificate here; these do: {', '.join(there)}",
        )
    return [there[name] for name in (names or there)]


def _listening(certificates: "list[Certificate]", option_name: str, texts: list[str] | None) -> list[dict[str, str]]:
    """Tables of parties that listen, each with the address given for it."""
    # Both directions are checked: a name that is not there, and a party without an address.
    addresses = pairs_from(option_name, texts)
    names = [one.name for one in certificates]
    for name in addresses:
        require(name in names, f"{option_name} {name}: nobody of that name takes part; these do: {', '.join(names)}")
    for name in names:
        require(name in addresses, f'{option_name} "{name}=HOST:PORT" is missing: where {name} listens')
    return [{"address": addresses[one.name], "certificate": one.pem} for one in certificates]


def _around_hub(
    keys: Path, site: list[str] | None, address: str | None, fanout: int | None, node_address: list[str] | None
) -> dict[str, Any]:
    from eigenveil.protocols.star.rounds import tree

    if address is None:
        raise ValueError("--address is missing: give HOST:PORT where sites reach the hub")
    authority, certificates = certificates_in(keys)
    sites = _chosen(certificates, "site", site, keys)
    hubs = [one for one in certificates.values() if one.role == "hub"]
    require(len(hubs) == 1, f"--authority {keys}: the folder must have one hub certificate, and it has {len(hubs)}")
    found: dict[str, Any] = {
        "authority": {"certificate": authority},
        "hub": {"address": address, "certificate": hubs[0].pem},
        "site": [{"certificate": one.pem} for one in sites],
    }
    if fanout is None:
        require(not node_address, "--node-address is for a tree: give --fanout")
        require_current(keys, authority, [hubs[0], *sites])
        return found
    # The tree decides which nodes there are, and certificates of other nodes may lie in the folder.
    names = tree([one.name for one in sites], fanout=fanout, hub=hubs[0].name).nodes
    for name in names:
        there = name in certificates and certificates[name].role == "node"
        require(there, f"--authority {keys}: the certificate of {name!r} is missing, and this tree needs that node")
    require_current(keys, authority, [hubs[0], *(certificates[name] for name in names), *sites])
    nodes = _listening([certificates[name] for name in names], "--node-address", node_address)
    return found | ({"node": nodes} if nodes else {})


def _between_peers(
    keys: Path, site: list[str] | None, peer_address: list[str] | None, given: dict[str, Any]
) -> dict[str, Any]:
    """The parties; the graphs in `given` become edges between them."""
    from eigenveil.estimators.gossip.spec import read_graph
    from eigenveil.network.rules import named_parameters

    authority, certificates = certificates_in(keys)
    peers = _chosen(certificates, "peer", site, keys)
    require_current(keys, authority, peers)
    names = tuple(one.name for one in peers)
    with named_parameters():
        given |= {
            name: read_graph(name, given[name], names)[0].edges for name in ("graph", "noise_graph") if name in given
        }
    return {"authority": {"certificate": authority}, "peer": _listening(peers, "--peer-address", peer_address)}


def _write(
    file: Path, given: Mapping[str, Any], parties: Mapping[str, Any], *, memory: int, even_if_noise: bool
) -> Answer:
    from eigenveil.data.archive import whole_file
    from eigenveil.network.parties import said_before
    from eigenveil.network.study import StudyFile

    # A study that no site could run is found here, before the coordinator sends it out.
    found = _surviving(StudyFile.made(given, parties), given, parties)

    def planned() -> None:
        for warning in said_before(found, memory=memory):
            warnings.warn(warning, stacklevel=2)

    # Before the coordinator sends out what would cost everybody's budget for noise. Where sizes are private nobody can tell.
    _, warned = despite_noise(
        planned, in_new(columns="--columns"), even_if_noise=even_if_noise, deed="write", kept="Nothing was written"
    )
    # Read it back before it is written: a study file that others cannot read is worse than none.
    text = found.text()
    require(StudyFile.parse(text) == found, "the study file would not read back as it was written")
    with whole_file(file) as temporary:
        temporary.write_text(text, encoding="utf-8")
        # For everyone to read. Parties refuse a study file that others than its owner may change.
        temporary.chmod(0o644)
    wrote(file)

    from eigenveil.show.agreement import words_of

    def view() -> "View":
        yield from words_of(found)
        for words in warned:
            yield Text(f"warning: {words}", style="yellow")
        yield Line(f"\nstudy written to {file}, with the digest {found.digest}")
        yield Line(f"send it to every party; they can read it with: eigenveil study show {file.name}", "dim")

    from rich.text import Text

    return Answer(view=view)


def _surviving(found: "StudyFile", given: Mapping[str, Any], parties: Mapping[str, Any]) -> "StudyFile":
    """The study itself, or between peers one that survives the loss of a peer, if no option says otherwise.

    One that is killed in the middle cannot come back. Without room for one restart the budgets of all the others are lost.
    """
    from eigenveil.network.rules import fatal_peers
    from eigenveil.network.study import StudyFile

    if given["topology"] != "gossip" or not found.private or given["noise"] == "published" or "restarts" in given:
        return found
    names = [place.name for place in found.peers]
    candidates = [{**given, "restarts": 1}]
    if given["noise"] == "pairwise" and "noise_graph" not in given and len(names) <= _ALL_PAIRS:
        # A ring without one peer is a path, and noise between its neighbours alone would protect nobody from a colluder.
        pairs = tuple((one, other) for at, one in enumerate(names) for other in names[at + 1 :])
        candidates.append({**given, "restarts": 1, "noise_graph": pairs})
    best, fewest = found, len(names)
    for candidate in candidates:
        study = StudyFile.made(candidate, parties)
        fatal = len(fatal_peers(study))
        if fatal < fewest:
            best, fewest = study, fatal
        if fatal == 0:
            break
    # Where no choice of ours helps, nothing is reserved for it. `study show` says so.
    return best


COMMAND = Group(
    name="study",
    about=group,
    commands=(
        Command(run=new, params=NewStudy, alone=True, words=in_new(columns="--columns")),
        Command(run=show),
    ),
    panel="Studies across organisations",
)
