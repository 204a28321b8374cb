"""The options of `eigenveil simulate` that are not parameters of a fit, and which fit is meant by those that are.

`eigenveil study` shares some options, which stand at the end of the list.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias, TypeVar

import typer

from eigenveil.errors import ParameterError, require, require_param
from eigenveil.params import FederatedParams, GossipParams, checked, declared
from eigenveil.params.simulate import FOR_HUBS, FOR_PEERS

__all__ = ["PANELS", "asked_of", "dead_from", "local_steps_from", "number_or_share"]

Kind = TypeVar("Kind")
_SITES: Final = "Sites"
_PRIVACY: Final = "Privacy"
_METHOD: Final = "Method"
_PEERS: Final = "Peers with no hub (all but the first only with --graph)"
_FAULTS: Final = "What goes wrong (on a simulated clock and network)"
# The headings of this command for those of the declarations.
PANELS: Final = {"Peers with no hub": _PEERS, "Waiting": _FAULTS}
# Why parameters of a fit around a hub mean nothing between peers.
_WITHOUT_HUB: Final = {
    "topology": "that says who talks to whom",
    "fanout": "that says who talks to whom",
    "trust": "there is no hub to be trusted, and {noise} says what is added",
    "survivors": "{quorum} says how many peers must be left",
    "local_steps": "fedpower needs a hub",
    "align": "fedpower needs a hub",
    "participation": "there is no hub that could draw",
    "calibration": "what is published for peers is {noise=published}",
    "person_sites": "each person has rows at one peer only",
}

Output: TypeAlias = Annotated[
    Path | None,
    typer.Option(
        "--output", "-o", help="Write the model to this .safetensors file.", show_default="no model is written"
    ),
]
ShowGuarantee: TypeAlias = Annotated[
    bool, typer.Option("--guarantee", help="Show the whole guarantee in words, with its ledger.")
]
Compare: TypeAlias = Annotated[
    bool | None,
    typer.Option(
        "--compare/--no-compare",
        help="Compare with the exact components of the whole table. No guarantee covers that.",
        show_default="only with --no-privacy",
    ),
]
Sites: TypeAlias = Annotated[
    int | None,
    typer.Option(min=1, metavar="M", help="How many sites.", rich_help_panel=_SITES, show_default=False),
]
Split: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="HOW",
        help="Who gets which rows. iid: rows are shuffled and dealt out evenly. by:COLUMN: one site for each value of a "
        "column of a csv or parquet file, which is then left out of the data. skewed: site i, from 0 on, gets a share in "
        "proportion to 1 / (i + 1), and from another population: rows are sorted along the first principal direction of the "
        "whole table, except that half of them, drawn at random, fall anywhere, and sites get them in that order. With "
        "--person, people are dealt out, each with all their rows.",
        rich_help_panel=_SITES,
    ),
]
Loss: TypeAlias = Annotated[
    float, typer.Option(help="The chance that a message is lost. It is asked for again.", rich_help_panel=_FAULTS)
]
Duplicate: TypeAlias = Annotated[
    float, typer.Option(help="The chance that a message comes twice.", rich_help_panel=_FAULTS)
]
Delay: TypeAlias = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        help="The longest time a message takes, on a simulated clock.",
        rich_help_panel=_FAULTS,
    ),
]
Dead: TypeAlias = Annotated[
    list[str] | None,
    typer.Option(
        metavar="SITE",
        help="A site that never answers: its name or number, or its value with --split by:COLUMN. SITE@3 stops after three "
        "messages, any:2 takes two sites at random. May be repeated.",
        rich_help_panel=_FAULTS,
        show_default=False,
    ),
]

# Those that only `eigenveil study` has.
Components: TypeAlias = Annotated[
    int, typer.Option("--components", "-k", metavar="K", help="How many components.", show_default=False)
]
Epsilon: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER",
        help="How much the result may depend on one person: smaller is more private. A pair such as 3,1 with --trust both: "
        "against the hub, and against everybody else.",
        rich_help_panel=_PRIVACY,
        show_default=False,
    ),
]
Delta: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER",
        help="The chance that the promise of epsilon fails; well below one over the number of people. May be a pair, too.",
        rich_help_panel=_PRIVACY,
        show_default=False,
    ),
]
Survivors: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER",
        help="For --trust masked: how many sites must be in each sum, such as 8, or which share of them, such as 0.8. With fewer "
        "nothing is unmasked.",
        rich_help_panel=_PRIVACY,
        show_default="all",
    ),
]
Colluders: TypeAlias = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="For --trust masked: how many sites may tell the hub all they know. For --graph with pairwise noise: how many peers "
        "may tell each other.",
        rich_help_panel=_PRIVACY,
        show_default="1",
    ),
]
PersonSites: TypeAlias = Annotated[
    int, typer.Option(min=1, help="At how many sites at most one person's rows are.", rich_help_panel=_PRIVACY)
]
Rounds: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help="For krylov, power, fedpower, and for each component of segments: at most how many; a budget is reserved for all "
        "of them.",
        rich_help_panel=_METHOD,
        show_default="planned",
    ),
]
Tolerance: TypeAlias = Annotated[
    float | None,
    typer.Option(
        help="For krylov, power, fedpower, segments: stop at this sine. 1e-8 without privacy, and 0, never, with it.",
        rich_help_panel=_METHOD,
        show_default=False,
    ),
]
Oversample: TypeAlias = Annotated[
    int | None,
    typer.Option(help="Directions carried beyond the components.", rich_help_panel=_METHOD, show_default="planned"),
]
NoiseGraph: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="WHICH",
        help="For pairwise: which pairs share noise, said as for --graph. It must hold together without any --colluders peers.",
        rich_help_panel=_PEERS,
        show_default="those that talk",
    ),
]
Consensus: TypeAlias = Annotated[
    Literal["metropolis", "chebyshev", "tree"] | None,
    typer.Option(
        metavar="WHICH",
        help="How peers add up. metropolis: averages with neighbours, over and over. chebyshev: the same in about the root of as "
        "many steps. tree: up and down a spanning tree, which is exact.",
        rich_help_panel=_PEERS,
        show_default="metropolis",
    ),
]
Steps: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help="How many exchanges with neighbours a sum takes.",
        rich_help_panel=_PEERS,
        show_default="as many as leave nothing to speak of",
    ),
]
Restarts: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help="For how many rounds that are begun again, when peers vanish, to keep some of the budget.",
        rich_help_panel=_PEERS,
        show_default="0",
    ),
]


def asked_of(settings: Mapping[str, Any], given: Collection[str]) -> FederatedParams | GossipParams:
    """The parameters of the fit, checked: around a hub, or between peers where there is a graph. `given` were written out."""
    return _around_a_hub(settings, given) if settings["graph"] is None else _between_peers(settings, given)


def _around_a_hub(settings: Mapping[str, Any], given: Collection[str]) -> FederatedParams:
    for name in settings:
        if name in FOR_PEERS and name in given:
            raise ParameterError(f"{{{name}}} is for {{graph}}, which says who talks to whom without a hub")
    masked = settings["trust"] == "masked"
    require_param(settings["method"] != "segments", "{method=segments} is for {graph}: peers without a hub")
    require_param(
        "trust" not in given or masked or settings["epsilon"] is not None,
        "{trust} says who adds the noise, and with {epsilon=None} nobody does",
    )
    require_param("colluders" not in given or masked, "{colluders} is for {trust=masked} or {graph}")
    return _checked(FederatedParams, settings, given)


def _between_peers(settings: Mapping[str, Any], given: Collection[str]) -> GossipParams:
    for name in settings:
        if name in FOR_HUBS and name in given:
            raise ParameterError(f"{{{name}}} has no meaning with {{graph}}: {_WITHOUT_HUB[name]}")
    method = "power" if settings["method"] == "auto" else settings["method"]
    *most, last = declared(GossipParams)["method"].words
    require_param(
        method in (*most, last),
        f"{{method=}} needs a hub: with {{graph}} it is {', '.join(most)} or {last}",
        method=method,
    )
    private, noise = settings["epsilon"] is not None, settings["noise"]
    require_param(
        "noise" not in given or private or noise == "published",
        "{noise=} is for a budget, and {epsilon=None} says there is none",
        noise=noise,
    )
    require_param(
        not private or noise != "published",
        "{noise=published} keeps no promise, so there is no {epsilon} to it: say {epsilon=None}",
    )
    require_param(
        "colluders" not in given or (private and noise == "pairwise"),
        "{colluders} is for {noise=pairwise} and a budget",
    )
    return _checked(GossipParams, {**settings, "method": method}, given)


def _checked(kind: type[Kind], settings: Mapping[str, Any], given: Collection[str]) -> Kind:
    own = {name: settings[name] for name in declared(kind) if name in settings}
    return checked(kind, kind(**own), given=given)


def local_steps_from(text: str) -> int | list[int] | tuple[str, int]:
    """A number, a list of numbers, or a decay from a number.

    >>> local_steps_from("4"), local_steps_from("4,3,2"), local_steps_from("decay:4")
    (4, [4, 3, 2], ('decay', 4))
    """
    kind, colon, rest = text.partition(":")
    try:
        if colon and kind == "decay":
            return "decay", int(rest)
        found = [int(part) for part in text.split(",")]
    except ValueError:
        raise ValueError(
            f"--local-steps must be a number such as 4, a list such as 4,3,2,1, or decay:4, got {text!r}"
        ) from None
    return found if len(found) > 1 else found[0]


def number_or_share(name: str, text: str | None) -> int | float | None:
    """A number of sites, or a share of them, for the option of this name.

    >>> number_or_share("--quorum", "4"), number_or_share("--quorum", "0.8")
    (4, 0.8)
    """
    if text is None:
        return None
    try:
        return int(text)
    except ValueError:
        pass
    try:
        return float(text)
    except ValueError:
        raise ValueError(f"{name} must be a number of sites such as 4, or a share such as 0.8, got {text!r}") from None


def dead_from(texts: Sequence[str], names: Sequence[str], *, stem: str, rng: Any) -> dict[str, int]:
    """Which of the sites called `names` stop, and after how many messages. What stands behind `stem` is enough of a name.

    >>> dead_from(["2", "site 0@3"], ["site 0", "site 1", "site 2"], stem="site ", rng=None)
    {'site 2': 0, 'site 0': 3}
    """
    found: dict[str, int] = {}
    for text in texts:
        name, at, after = text.rpartition("@")
        # A site may have an @ in its name.
        which, messages = (name, int(after)) if at and after.isdecimal() else (text, 0)
        for site in _called(which, names, stem, rng):
            found[site] = messages
    return found


def _called(which: str, names: Sequence[str], stem: str, rng: Any) -> list[str]:
    for name in (which, f"{stem}{which}"):
        if name in names:
            return [name]
    kind, colon, count = which.partition(":")
    if colon and kind == "any" and count.isdecimal():
        require(int(count) <= len(names), f"--dead {which} asks for more than the {len(names)} sites")
        return [names[place] for place in sorted(rng.choice(len(names), size=int(count), replace=False).tolist())]
    shown = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    raise ValueError(f"--dead {which}: there is no such site; they are called {shown}")
