"""The options of `eigenveil study new`, each with the words its --help shows, and how their texts become sections of a study."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final, Literal, TypeAlias

import typer

from eigenveil.cli.files import column_names
from eigenveil.errors import require

if TYPE_CHECKING:
    from eigenveil.network.identity import Certificate

__all__ = ["certificates_in", "columns_of", "in_new_words", "pairs_from"]

_WHO: Final = "Who takes part"
_PRIVACY: Final = "Privacy"
_METHOD: Final = "Method"
_PEERS: Final = "Peers with no hub (all but the first only with --graph)"
_NETWORK: Final = "Waiting"
# A file with a name on each line is no larger, or it is something else.
_LARGEST: Final = 4 << 20

File: TypeAlias = Annotated[Path, typer.Argument(metavar="FILE", help="The study file, a .toml.", show_default=False)]
Force: TypeAlias = Annotated[bool, typer.Option("--force", help="Overwrite the file if it exists.")]
Name: TypeAlias = Annotated[
    str | None, typer.Option(metavar="TEXT", help="What the study is called.", show_default="as the file is")
]
Purpose: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="TEXT", help="What it is for, for those at the sites who decide. One line.", show_default=False
    ),
]
Keys: TypeAlias = Annotated[
    Path,
    typer.Option(
        metavar="FOLDER",
        help="The coordinator's folder, with authority.crt, hub.crt and the signed .crt of everybody else. Private keys in it "
        "are not read.",
        rich_help_panel=_WHO,
    ),
]
Site: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME",
        help="A site, or peer, that takes part; repeat it for several, in order.",
        rich_help_panel=_WHO,
        show_default="all in the folder, by name",
    ),
]
Address: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="HOST:PORT", help="Where sites reach the hub.", rich_help_panel=_WHO, show_default="none with --graph"
    ),
]
Fanout: TypeAlias = Annotated[
    int | None,
    typer.Option(
        metavar="NUMBER",
        help="A tree: at most so many below the hub and below each node between it and the sites.",
        rich_help_panel=_WHO,
        show_default="a star, all below the hub",
    ),
]
NodeAddress: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=HOST:PORT",
        help="Where a node of the tree listens; repeat it for each.",
        rich_help_panel=_WHO,
        show_default=False,
    ),
]
Columns: TypeAlias = Annotated[
    str | None,
    typer.Option(metavar="A,B,C", help="The columns by name, in the order for everybody.", show_default=False),
]
ColumnsFrom: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE",
        help="The same from the head of a .csv or .parquet, or from a text with a name on each line. Only names are read.",
        show_default=False,
    ),
]
Person: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="COLUMN",
        help="The column at every site that says whose row it is. A person's rows then count as one.",
        rich_help_panel=_PRIVACY,
        show_default=False,
    ),
]
Trust: TypeAlias = Annotated[
    Literal["masked", "site", "curator", "both"] | None,
    typer.Option(
        metavar="WHO",
        help="Who adds the noise. masked: the sites together, under masks that come off the sum alone, and the hub sees no "
        "site's part. site: every site, against the hub too, for sqrt(M) times the noise. curator: the hub, WHICH SEES RAW "
        "PARTS. both: sites and hub, for two budgets. With --no-privacy: masked, or left out.",
        rich_help_panel=_PRIVACY,
        show_default="masked; site with --fanout",
    ),
]
Size: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=PEOPLE",
        help="How many people a site has, for neighbours that declare it public; repeat it for each.",
        rich_help_panel=_PRIVACY,
        show_default=False,
    ),
]
RehearsalSeed: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help="A test run with this seed: reproducible, NOT PRIVATE, and sites refuse it unless their policy allows "
        "rehearsals.",
        rich_help_panel=_PRIVACY,
        show_default=False,
    ),
]
Method: TypeAlias = Annotated[
    Literal["auto", "krylov", "power", "fedpower", "covariance", "merge", "uda", "wda", "dr-svd"],
    typer.Option(
        metavar="WHICH",
        help="auto, krylov, power, fedpower, covariance, merge, uda, wda or dr-svd; under masks krylov, power, covariance or "
        "dr-svd. With --graph: power, which auto is then, krylov or covariance.",
        rich_help_panel=_METHOD,
    ),
]
LocalSteps: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="STEPS",
        help="For fedpower: power steps at a site in each round: 4, or 4,3,2,1 round by round, or decay:4.",
        rich_help_panel=_METHOD,
        show_default="1",
    ),
]
Align: TypeAlias = Annotated[
    Literal["procrustes", "sign", "none"] | None,
    typer.Option(
        metavar="WHICH",
        help="For fedpower: how sites turn their products: procrustes, sign or none.",
        rich_help_panel=_METHOD,
        show_default="procrustes",
    ),
]
GraphOfPeers: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--graph",
        metavar="WHICH",
        help="Peers talk to their neighbours on this graph, with no hub: ring, path, grid, star, complete, random-regular:4, or "
        "a file with an edge on each line, two names with a comma between.",
        rich_help_panel=_PEERS,
        show_default="a hub",
    ),
]
PeerAddress: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="NAME=HOST:PORT",
        help="Where a peer listens; repeat it for each.",
        rich_help_panel=_PEERS,
        show_default=False,
    ),
]
NoiseName: TypeAlias = Annotated[
    Literal["pairwise", "independent"] | None,
    typer.Option(
        "--noise",
        metavar="WHICH",
        help="pairwise: noise that cancels between pairs of peers, against --colluders of them. independent: all of it at every "
        "peer, for sqrt(M) times as much.",
        rich_help_panel=_PEERS,
        show_default="pairwise with --epsilon",
    ),
]
Quorum: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER",
        help="How many must answer, such as 4, or which share of them, such as 0.8. Under masks there is --survivors.",
        rich_help_panel=_NETWORK,
        show_default="all; more than half with --graph",
    ),
]
Deadline: TypeAlias = Annotated[
    float,
    typer.Option(metavar="SECONDS", help="How long to wait for an answer.", rich_help_panel=_NETWORK),
]
Retries: TypeAlias = Annotated[
    int, typer.Option(metavar="NUMBER", help="How often to ask again.", rich_help_panel=_NETWORK)
]
Join: TypeAlias = Annotated[
    float,
    typer.Option(metavar="SECONDS", help="How long to wait until all have joined.", rich_help_panel=_NETWORK),
]
Largest: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="BYTES",
        help="The largest message that is taken, such as 64MB.",
        rich_help_panel=_NETWORK,
        show_default="1 GiB",
    ),
]


def columns_of(text: str | None, source: Path | None, *, person: str | None) -> list[str]:
    """The columns that were named, or those of a file without the one that names people.

    >>> columns_of("age, weight", None, person=None)
    ['age', 'weight']
    """
    require((text is None) != (source is None), "give the columns with --columns A,B,C, or with --columns-from FILE")
    if text is not None:
        return [name.strip() for name in text.split(",")]
    assert source is not None
    require(source.is_file(), f"--columns-from {source} does not exist or is not a file")
    if source.suffix.lower() in (".csv", ".parquet"):
        names = column_names(source)
        require(names is not None, f"--columns-from {source}: the names of its columns cannot be read")
        return [name for name in names or () if name != person]
    require(source.stat().st_size <= _LARGEST, f"--columns-from {source} is too large for a list of names")
    try:
        lines = source.read_text(encoding="utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise ValueError(f"--columns-from {source} must be text in UTF-8, .csv or .parquet") from None
    return [line.strip() for line in lines if line.strip() and line.strip() != person]


def pairs_from(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    """What was given by name.

    >>> pairs_from("--peer-address", ["north=10.0.0.1:7000"])
    {'north': '10.0.0.1:7000'}
    """
    found: dict[str, str] = {}
    for text in texts or []:
        name, equals, value = text.rpartition("=")
        require(bool(equals and name and value), f"{option} must be a name, an equals sign and a value, got {text!r}")
        require(name not in found, f"{option} {name} is there twice")
        found[name] = value
    return found


def certificates_in(folder: Path) -> tuple[str, dict[str, "Certificate"]]:
    """The authority's certificate (PEM) of a coordinator's folder, and those of all parties by name. No private key is read."""
    from eigenveil.network.authority import AUTHORITY
    from eigenveil.network.identity import Certificate, contents

    authority = folder / f"{AUTHORITY}.crt"
    require(authority.is_file(), f"--keys {folder}: there is no {authority.name}; eigenveil keys init makes it")
    found: dict[str, Certificate] = {}
    for path in sorted(folder.glob("*.crt")):
        if path == authority:
            continue
        try:
            certificate = Certificate.read(contents(path))
        except ValueError as error:
            raise ValueError(f"{path}: {error}") from error
        require(
            certificate.name not in found, f"{path}: another file in {folder} is in the name {certificate.name!r} too"
        )
        found[certificate.name] = certificate
    return contents(authority).decode(errors="replace"), found


_OPTIONS: Final[Mapping[str, str]] = {
    "none = true": "--no-privacy",
    "noise_edges": "--noise-graph",
    "edges": "--graph",
    "kind": "--graph",
    "seed": "--rehearsal-seed",
}


def in_new_words(message: str) -> str:
    """A message about a study file with its keys replaced by the options that write them.

    >>> in_new_words("[task] row_bound must be positive, or [privacy] none = true")
    '--row-bound must be positive, or --no-privacy'
    >>> in_new_words('[task] components = 9 is too much for [privacy] trust = "masked"')
    '--components 9 is too much for --trust masked'
    """

    def option(found: re.Match[str]) -> str:
        key = found[1]
        return _OPTIONS.get(key, f"--{key.replace('_', '-')}") + (" " if found[2] else "")

    sections = r"\[(?:study|task|privacy|network|tree|graph|rehearsal)\] "
    message = re.sub(rf"{sections}(none = true|\w+)( = )?", option, message)
    return re.sub(r'(--[\w-]+ )"([\w-]+)"', r"\1\2", message)
