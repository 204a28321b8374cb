"""The options of `eigenveil simulate` that are not parameters of a fit, and which fit is meant by those that are.

`eigenveil study` shares some options, which stand at the end of the list.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, TypeVar

import typer

from eigenveil.errors import ParameterError, require, require_param
from eigenveil.params import FederatedParams, GossipParams, checked, declared
from eigenveil.params.declarations.simulate import FOR_HUBS, FOR_PEERS

__all__ = ["PANELS", "asked_of", "dead_from"]

Kind = TypeVar("Kind")
_SITES: Final = "Sites"
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
        "--output",
        "-o",
        metavar="FILE",
        help="Write the model to this .safetensors file.",
        show_default="no model is written",
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
        help="Who gets which rows. With iid, rows are shuffled and dealt out evenly. With by:COLUMN, there is one site for "
        "each value of a column of a csv or parquet file, which is then left out of the data. With skewed, sites differ in "
        "size and population. Site i, from 0 on, gets a share in proportion to 1 / (i + 1). Rows are sorted along the first "
        "principal direction of the whole table, except that half of them, drawn at random, fall anywhere. Sites get them "
        "in that order. With --person, people are dealt out, each with all their rows.",
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
        "{noise=published} keeps no guarantee, so there is no {epsilon} to it: say {epsilon=None}",
    )
    require_param(
        "colluders" not in given or (private and noise == "pairwise"),
        "{colluders} is for {noise=pairwise} and a budget",
    )
    return _checked(GossipParams, {**settings, "method": method}, given)


def _checked(kind: type[Kind], settings: Mapping[str, Any], given: Collection[str]) -> Kind:
    own = {name: settings[name] for name in declared(kind) if name in settings}
    return checked(kind, kind(**own), given=given)


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
