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
from eigenveil.commands._ending import despite_noise
from eigenveil.commands._files import require_output, write_public
from eigenveil.commands._network import MEMORY, Memory, bytes_allowed
from eigenveil.commands._options import argument, flag, option
from eigenveil.data.formats import TableParams, known_format, open_named
from eigenveil.errors import join_names, require, require_param
from eigenveil.params.declarations.federated import PEERS
from eigenveil.params.declarations.study import NewStudy, in_new
from eigenveil.show.console import Line

if TYPE_CHECKING:
    from eigenveil.network.certificates import Certificate
    from eigenveil.network.study import StudyFile
    from eigenveil.show.console import View

__all__ = ["COMMAND"]

_WHO: Final = "Who takes part"
# A list of column names is never larger than this; a larger file is something else.
_LARGEST: Final = 4 << 20

File: TypeAlias = Annotated[Path, argument("FILE", "The study file, a .toml.")]


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
    format_ = known_format(source)
    if format_ is not None:
        require(format_.has_names, f"--columns-from {source}: its column names cannot be read")
        # Only the header is read: rows of this file must not be looked at. The person column says whose row it is. It is no
        # variable of the study.
        return [name for name in open_named(source, TableParams()).names if name != person]
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
    pairs: dict[str, str] = {}
    for text in texts or []:
        # From the right: names may have any character, and addresses and numbers have no "=".
        name, equals, value = text.rpartition("=")
        require(bool(equals and name and value), f"{option} must be NAME=VALUE, got {text!r}")
        require(name not in pairs, f"{option} {name} was given twice")
        pairs[name] = value
    return pairs


def require_current(folder: Path, authority: str, certificates: "Sequence[Certificate]") -> None:
    """Refuse certificates that have ended or not begun, all at once, with the command that renews them."""
    from eigenveil.network.authority import AUTHORITY, HUB, file_stem
    from eigenveil.network.certificates import authority_in

    now, signer = datetime.now(UTC), authority_in(authority)
    dated = [("the authority", AUTHORITY, signer.not_valid_before_utc, signer.not_valid_after_utc)]
    for certificate in certificates:
        # `keys init` writes hub.crt, whatever the name of the hub is.
        stem = HUB if certificate.role == "hub" else file_stem(certificate.name)
        dated.append((certificate.name, stem, certificate.begins, certificate.ends))
    early = [f"{name} on {begins:%Y-%m-%d}" for name, _, begins, _ in dated if now < begins]
    require(not early, f"certificates that have not begun: {join_names(early)}. Set the clock of this computer, or wait")
    over = [(f"{name} on {ends:%Y-%m-%d}", folder / f"{stem}.crt") for name, stem, _, ends in dated if now > ends]
    files = " ".join(shlex.quote(str(path)) for _, path in over)
    require(
        not over,
        f"certificates that have ended: {join_names(name for name, _ in over)}. Renew them, which keeps their pins, with: "
        f"eigenveil keys renew {files} --authority {shlex.quote(str(folder))}",
    )


def certificates_in(folder: Path) -> tuple[str, dict[str, "Certificate"]]:
    """The authority's certificate (PEM) in a coordinator's folder, and all parties' by name. No private key is read."""
    from eigenveil.network.authority import AUTHORITY
    from eigenveil.network.certificates import Certificate, contents

    authority = folder / f"{AUTHORITY}.crt"
    require(authority.is_file(), f"--authority {folder}: {authority.name} is missing. Make it with: eigenveil keys init")
    certificates: dict[str, Certificate] = {}
    for path in sorted(folder.glob("*.crt")):
        if path == authority:
            continue
        try:
            certificate = Certificate.read(contents(path))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        require(certificate.name not in certificates, f"{path}: another file in {folder} has the name {certificate.name!r} too")
        certificates[certificate.name] = certificate
    return contents(authority).decode(errors="replace"), certificates


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
    columns: Annotated[
        str | None, option("NAMES", "The columns by name, such as age,weight. All parties use them in this order.")
    ] = None,
    columns_from: Annotated[
        Path | None,
        option(
            "FILE",
            "Read the column names from a .csv or .parquet, or from a text file with one name on each line. Only names are read.",
        ),
    ] = None,
    authority: Annotated[
        Path,
        option(
            "FOLDER",
            "The coordinator's folder, with authority.crt, hub.crt and the signed .crt of each other party. Private keys in "
            "it are not read.",
            shows=True,
            panel=_WHO,
        ),
    ] = Path(),
    # In the order given, because sums run in that order, and so do their last bits.
    site: Annotated[
        list[str] | None,
        option(
            "NAME",
            "A site, or peer, that takes part; repeat it for several, in order.",
            none_means="all in the folder, by name",
            panel=_WHO,
        ),
    ] = None,
    address: Annotated[
        str | None, option("HOST:PORT", "Where sites reach the hub.", none_means="none with --graph", panel=_WHO)
    ] = None,
    node_address: Annotated[
        list[str] | None, option("NAME=HOST:PORT", "Where a node of the tree listens; repeat it for each.", panel=_WHO)
    ] = None,
    size: Annotated[
        list[str] | None,
        option(
            "NAME=PEOPLE",
            "The number of people at a site, if --neighbours makes it public. Repeat it for each site.",
            panel="Privacy",
        ),
    ] = None,
    peer_address: Annotated[
        list[str] | None, option("NAME=HOST:PORT", "Where a peer listens; repeat it for each.", panel=f"{PEERS} (with --graph)")
    ] = None,
    memory: Memory = MEMORY,
    force: Annotated[bool, flag("--force", "Overwrite the file if it exists.")] = False,
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

    Peers that are killed in the middle cannot come back, so the budget
    keeps room for one round to begin again without one, which makes the
    noise of every round larger. --restarts 0 leaves that out: then one
    lost peer ends the study, and what the others were charged is spent.

    The study finds a bound on rows privately. Nothing in this file comes
    from anyone's rows: if you give bounds, take them from elsewhere. The
    file is public and has no secrets. All parties need the same file:
    changing one key makes another study.
    """
    require_output(file, endings=(".toml",), force=force, inputs=[], option="the study file")
    allowed = bytes_allowed(memory)
    # For these two None is an answer: no privacy, and rows left where they are. Elsewhere it means "not given".
    params = {
        name: value
        for name, value in settings.items()
        if (value is not None and value is not False) or name in ("epsilon", "row_bound", "center")
    }
    if params.get("slot_seconds") is not None and "begins" not in params:
        # Written out, so that every site begins at the same moment.
        params["begins"] = float(math.ceil(time.time()))
    params |= {"columns": columns_of(columns, columns_from, person=settings["person"]), "id": secrets.token_hex(16)}
    # The file's name is the study's name, unless --name gives another.
    params |= {"name": file.stem} | params | _new_options(params)
    # Public only under some relations. `StudyFile.made` refuses them under the others.
    sizes = pairs_from("--size", size)
    for name, text in sizes.items():
        # Checked before `int`, which also takes signs, underscores and other scripts' digits.
        is_number = text.isascii() and text.isdecimal() and len(text) < 17
        require(is_number, f"--size {name} must be a whole number, got {text!r}")
    parties: dict[str, Any] = {"sizes": {name: int(text) for name, text in sizes.items()}} if sizes else {}
    if params["topology"] == "gossip":
        require(
            address is None and not node_address,
            "--address and --node-address are for a study with a hub, and --graph has no hub",
        )
        parties |= _between_peers(authority, site, peer_address, params)
    else:
        require(not peer_address, "--peer-address is for --graph: peers with no hub")
        parties |= _around_hub(authority, site, address, params.get("fanout"), node_address)
    return _write(file, params, parties, memory=allowed, even_if_noise=even_if_noise)


def _new_options(params: Mapping[str, Any]) -> dict[str, Any]:
    """The topology that the options imply, and who adds the noise unless that was given."""
    require_param(
        "graph" not in params or "fanout" not in params,
        "{graph} is for a study without a hub, and {fanout} for a tree below one; give one of them",
    )
    private = params["epsilon"] is not None
    if "graph" in params:
        return {"topology": "gossip"} | ({"noise": params.get("noise", "pairwise")} if private else {})
    # Masks need a star. In a tree the sites' own noise is what protects from the nodes.
    topology, trust = ("tree", "site") if "fanout" in params else ("star", "masked")
    if params.get("streaming"):
        trust = "site"
    return {"topology": topology} | ({"trust": params.get("trust", trust)} if private else {})


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

    study_file = StudyFile.read(file)
    return Answer(view=lambda: study_view(study_file))


def _chosen(certificates: "Mapping[str, Certificate]", role: str, names: list[str] | None, folder: Path) -> "list[Certificate]":
    """The certificates of a role: all of them, sorted by name, or those that were named, in that order."""
    # Sorted, so that the order of parties does not depend on the disk.
    present = {name: certificate for name, certificate in sorted(certificates.items()) if certificate.role == role}
    require(bool(present), f"--authority {folder}: it has no certificate of a {role}")
    for name in names or []:
        require(name in present, f"--site {name}: no {role} of that name has a certificate here; these do: {', '.join(present)}")
    return [present[name] for name in (names or present)]


def _listening(certificates: "list[Certificate]", option_name: str, texts: list[str] | None) -> list[dict[str, str]]:
    """Tables of parties that listen, each with the address given for it."""
    # Both directions are checked: a name that is not there, and a party without an address.
    addresses = pairs_from(option_name, texts)
    names = [certificate.name for certificate in certificates]
    for name in addresses:
        require(name in names, f"{option_name} {name}: no party of that name takes part; these do: {', '.join(names)}")
    for name in names:
        require(name in addresses, f'{option_name} "{name}=HOST:PORT" is missing: where {name} listens')
    return [{"address": addresses[certificate.name], "certificate": certificate.pem} for certificate in certificates]


def _around_hub(
    keys: Path, site: list[str] | None, address: str | None, fanout: int | None, node_address: list[str] | None
) -> dict[str, Any]:
    from eigenveil.protocols.star.rounds import tree

    if address is None:
        raise ValueError("--address is missing: give HOST:PORT where sites reach the hub")
    authority, certificates = certificates_in(keys)
    sites = _chosen(certificates, "site", site, keys)
    hubs = [certificate for certificate in certificates.values() if certificate.role == "hub"]
    require(len(hubs) == 1, f"--authority {keys}: the folder must have one hub certificate, and it has {len(hubs)}")
    parties: dict[str, Any] = {
        "authority": {"certificate": authority},
        "hub": {"address": address, "certificate": hubs[0].pem},
        "site": [{"certificate": certificate.pem} for certificate in sites],
    }
    if fanout is None:
        require(not node_address, "--node-address is for a tree: give --fanout")
        require_current(keys, authority, [hubs[0], *sites])
        return parties
    # The tree decides which nodes there are, and certificates of other nodes may lie in the folder.
    names = tree([certificate.name for certificate in sites], fanout=fanout, hub=hubs[0].name).nodes
    for name in names:
        is_node = name in certificates and certificates[name].role == "node"
        require(is_node, f"--authority {keys}: the certificate of {name!r} is missing, and this tree needs that node")
    require_current(keys, authority, [hubs[0], *(certificates[name] for name in names), *sites])
    nodes = _listening([certificates[name] for name in names], "--node-address", node_address)
    return parties | ({"node": nodes} if nodes else {})


def _between_peers(keys: Path, site: list[str] | None, peer_address: list[str] | None, params: dict[str, Any]) -> dict[str, Any]:
    """The parties; the graphs in `params` become edges between them."""
    from eigenveil.estimators.gossip.spec import read_graph
    from eigenveil.network.rules import named_parameters

    authority, certificates = certificates_in(keys)
    peers = _chosen(certificates, "peer", site, keys)
    require_current(keys, authority, peers)
    names, graphs = tuple(peer.name for peer in peers), {"graph", "noise_graph"}.intersection(params)
    with named_parameters():
        params |= {name: read_graph(name, params[name], names)[0].edges for name in sorted(graphs)}
    return {"authority": {"certificate": authority}, "peer": _listening(peers, "--peer-address", peer_address)}


def _write(file: Path, params: Mapping[str, Any], parties: Mapping[str, Any], *, memory: int, even_if_noise: bool) -> Answer:
    from eigenveil.network.parties import said_before
    from eigenveil.network.study import StudyFile

    # A study that no site could run is found here, before the coordinator sends it out.
    study_file = _surviving(StudyFile.made(params, parties), params, parties)

    def planned() -> None:
        for warning in said_before(study_file, memory=memory):
            warnings.warn(warning, stacklevel=2)

    # Before the coordinator sends out a study that would spend all budgets on noise. It cannot be told where sizes are private.
    _, warned = despite_noise(
        planned, in_new(columns="--columns"), even_if_noise=even_if_noise, deed="write", outcome="Nothing was written"
    )
    # Read it back before it is written: a study file that others cannot read is worse than none.
    text = study_file.text()
    require(StudyFile.parse(text) == study_file, "the study file would not read back as it was written")
    # Parties refuse a study file that others than its owner may change.
    write_public(file, text)
    from rich.text import Text

    from eigenveil.show.agreement import words_of

    def view() -> "View":
        yield from words_of(study_file)
        for warning in warned:
            yield Text(f"warning: {warning}", style="yellow")
        yield Line(f"\nstudy written to {file}, with the digest {study_file.digest}")
        yield Line(f"send it to every party; they can read it with: eigenveil study show {file.name}", "dim")

    return Answer(view=view)


def _surviving(study_file: "StudyFile", params: Mapping[str, Any], parties: Mapping[str, Any]) -> "StudyFile":
    """The study itself, or between peers one that survives the loss of a peer, if no option says otherwise.

    One that is killed in the middle cannot come back. Without room for one restart the budgets of all the others are lost.
    """
    from eigenveil.network.rules import fatal_peers
    from eigenveil.network.study import StudyFile

    if params["topology"] != "gossip" or not study_file.private or "restarts" in params:
        return study_file
    names = [peer.name for peer in study_file.peers]
    candidates = [{**params, "restarts": 1}]
    if params["noise"] == "pairwise" and "noise_graph" not in params and len(names) <= _ALL_PAIRS:
        # A ring without one peer is a path, and noise between its neighbours alone would protect no one from a colluder.
        pairs = tuple((name, other) for at, name in enumerate(names) for other in names[at + 1 :])
        candidates.append({**params, "restarts": 1, "noise_graph": pairs})
    best, fewest = study_file, len(names)
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
    commands=(Command(run=new, params=NewStudy, alone=True, spelling=in_new(columns="--columns")), Command(run=show)),
    panel="Studies across organisations",
)
