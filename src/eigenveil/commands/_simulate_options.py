"""The options of `eigenveil simulate` that are not parameters of a fit, and the fit that the parameters ask for.

With --graph that is a fit between peers, otherwise one around a hub.
"""

from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias, TypeVar

from eigenveil.commands._option import flag, option
from eigenveil.errors import ParameterError, require, require_param
from eigenveil.params import FederatedParams, GossipParams, checked, declared
from eigenveil.params.declarations.gossip import PEERS
from eigenveil.params.declarations.simulate import FOR_HUBS, FOR_PEERS

__all__ = ["PANELS", "asked_of", "dead_from"]

Kind = TypeVar("Kind")
_SITES: Final = "Sites"
_PEERS: Final = f"{PEERS} (with --graph)"
_FAULTS: Final = "Faults (simulated network and clock)"
# This command's panels in place of those in the declarations.
PANELS: Final = {PEERS: _PEERS, "Waiting": _FAULTS}
# Why a parameter of a fit around a hub does not apply between peers.
_WITHOUT_HUB: Final = {
    "topology": "the graph says who talks to whom",
    "fanout": "the graph says who talks to whom",
    "trust": "there is no hub to trust. Choose the noise with {noise}",
    "survivors": "use {quorum} for how many peers must be left",
    "local_steps": "fedpower needs a hub",
    "align": "fedpower needs a hub",
    "participation": "there is no hub that could choose sites",
    "calibration": "the published noise for peers is {noise=published}",
    "person_sites": "each person has rows at one peer only",
}

Output: TypeAlias = Annotated[
    Path | None,
    option("--output", "-o", "FILE", "Write the model to this .safetensors file.", unset="no model is written"),
]
ShowGuarantee: TypeAlias = Annotated[bool, flag("--guarantee", "Print the whole guarantee, with its ledger.")]
# Three values: on, off, and by whether there is a budget.
Compare: TypeAlias = Annotated[
    bool | None,
    option(
        "--compare/--no-compare",
        None,
        "Compare with the exact components of the whole table. The guarantee does not cover the comparison.",
        unset="only with --no-privacy",
    ),
]
Sites: TypeAlias = Annotated[int | None, option("M", "How many sites to deal the rows out to.", panel=_SITES, min=1)]
# Sites of real studies differ. A method that fails there should fail in a simulation first.
Split: TypeAlias = Annotated[
    str,
    option(
        "HOW",
        "Which site gets which rows. iid: rows are shuffled and dealt out evenly. by:COLUMN: one site for each value "
        "of a column of a csv or parquet file. That column is left out of the data. skewed: site i, counted "
        "from 0, gets a share in proportion to 1 / (i + 1). Rows are sorted along the first principal direction of the table, "
        "except for a random half, so populations differ too. With --person, a person's rows stay together.",
        shows=True,
        panel=_SITES,
    ),
]
Loss: TypeAlias = Annotated[
    float, option("SHARE", "The chance that a message is lost. It is then sent again.", shows=True, panel=_FAULTS)
]
Duplicate: TypeAlias = Annotated[
    float, option("SHARE", "The chance that a message arrives twice.", shows=True, panel=_FAULTS)
]
Delay: TypeAlias = Annotated[
    float, option("SECONDS", "The longest time a message takes, in simulated seconds.", shows=True, panel=_FAULTS)
]
Dead: TypeAlias = Annotated[
    list[str] | None,
    option(
        "SITE",
        "A site that never answers: its name or number, or its value with --split by:COLUMN. SITE@3 stops after three "
        "messages. any:2 is two random sites. May be repeated.",
        panel=_FAULTS,
    ),
]


def asked_of(settings: Mapping[str, Any], given: Collection[str]) -> FederatedParams | GossipParams:
    """The checked parameters of the fit: around a hub, or between peers if there is a graph. `given` are those typed."""
    return _around_a_hub(settings, given) if settings["graph"] is None else _between_peers(settings, given)


def _around_a_hub(settings: Mapping[str, Any], given: Collection[str]) -> FederatedParams:
    for name in settings:
        if name in FOR_PEERS and name in given:
            raise ParameterError(
                f"{{{name}}} is for peers without a hub. Leave it out, or give {{graph}}, such as ring"
            )
    # Rules on how options go together. What a single option may be was checked when it was read.
    masked = settings["trust"] == "masked"
    require_param(
        settings["method"] in declared(FederatedParams)["method"].words,
        "{method=} is for peers without a hub. Give {graph}, such as ring, or another {method}",
        method=settings["method"],
    )
    require_param(
        "trust" not in given or masked or settings["epsilon"] is not None,
        "{trust} says who adds the noise, and with {epsilon=None} there is none. Leave it out",
    )
    require_param(
        "colluders" not in given or masked,
        "{colluders} is for {trust=masked} or {graph}. Leave it out, or give one of them",
    )
    return _checked(FederatedParams, settings, given)


def _between_peers(settings: Mapping[str, Any], given: Collection[str]) -> GossipParams:
    for name in settings:
        if name in FOR_HUBS and name in given:
            raise ParameterError(f"{{{name}}} does not apply with {{graph}}: {_WITHOUT_HUB[name]}")
    known = declared(GossipParams)["method"]
    method = known.default if settings["method"] == "auto" else settings["method"]
    *most, last = known.words
    require_param(
        method in (*most, last),
        f"{{method=}} needs a hub. With {{graph}} use {', '.join(most)} or {last}",
        method=method,
    )
    private, noise = settings["epsilon"] is not None, settings["noise"]
    require_param(
        "noise" not in given or private or noise == "published",
        "{noise=} needs a budget, and {epsilon=None} says there is none. Leave out one of them",
        noise=noise,
    )
    require_param(
        not private or noise != "published",
        "{noise=published} gives no guarantee, so it takes no {epsilon}. Give {epsilon=None} instead",
    )
    require_param(
        "colluders" not in given or (private and noise == "pairwise"),
        "{colluders} is for {noise=pairwise} with a budget. Leave it out",
    )
    return _checked(GossipParams, {**settings, "method": method}, given)


def _checked(kind: type[Kind], settings: Mapping[str, Any], given: Collection[str]) -> Kind:
    # `simulate` has the parameters of both kinds of fit. Each kind takes its own.
    own = {name: settings[name] for name in declared(kind) if name in settings}
    return checked(kind, kind(**own), given=given)


def dead_from(texts: Sequence[str], names: Sequence[str], *, stem: str, rng: Any) -> dict[str, int]:
    """Which of the sites `names` stop, and after how many messages. A name may be given without its `stem`.

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
        require(int(count) <= len(names), f"--dead {which}: there are only {len(names)} sites")
        return [names[place] for place in sorted(rng.choice(len(names), size=int(count), replace=False).tolist())]
    shown = names[0] if len(names) == 1 else f"{names[0]} to {names[-1]}"
    raise ValueError(f"--dead {which}: no site has this name. The sites are {shown}")
