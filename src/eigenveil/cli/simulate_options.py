"""The options of `eigenveil simulate` that no other command has, each with the words its --help shows, and how texts become
settings."""

from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any, Final, Literal, TypeAlias

import typer

from eigenveil.errors import require

__all__ = ["dead_from", "hub_settings", "local_steps_from", "number_or_share", "participation_from"]

_SITES: Final = "Sites"
_PRIVACY: Final = "Privacy"
_METHOD: Final = "Method"
_PEERS: Final = "Peers with no hub (all but the first only with --graph)"
_FAULTS: Final = "What goes wrong (on a simulated clock and network)"

Components: TypeAlias = Annotated[
    int, typer.Option("--components", "-k", metavar="K", help="How many components.", show_default=False)
]
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
Topology: TypeAlias = Annotated[
    Literal["star", "tree"],
    typer.Option(
        metavar="WHICH",
        help="star: every site talks to the hub. tree: at most --fanout to each node.",
        rich_help_panel=_SITES,
    ),
]
Fanout: TypeAlias = Annotated[
    int | None,
    typer.Option(help="For tree: how many at most below one node.", rich_help_panel=_SITES, show_default="8"),
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
Trust: TypeAlias = Annotated[
    Literal["curator", "site", "both", "masked"] | None,
    typer.Option(
        metavar="WHO",
        help="Who adds the noise. curator: the hub, which sees raw parts. site: every site, against the hub too, for sqrt(M) "
        "times the noise. both: both, for two budgets. masked: the sites together, under masks that come off the sum alone: "
        "against the hub too, for the noise of a curator. With --no-privacy, masks without noise.",
        rich_help_panel=_PRIVACY,
        show_default="curator",
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
Seed: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help="Fixes the split, the start, what goes wrong and the noise. Reproducible, and with --epsilon NOT PRIVATE.",
        rich_help_panel=_PRIVACY,
        show_default=False,
    ),
]
Method: TypeAlias = Annotated[
    Literal["auto", "krylov", "power", "fedpower", "covariance", "merge", "uda", "wda", "dr-svd", "segments"],
    typer.Option(
        metavar="WHICH",
        help="auto, krylov, power, fedpower, covariance, merge, uda, wda or dr-svd. auto is krylov without privacy, and with it "
        "one noisy covariance while that fits in memory, else noisy products. With --graph: power, which auto is then, krylov, "
        "covariance, or segments, one component after another (D-DP-PM).",
        rich_help_panel=_METHOD,
    ),
]
GraphOfPeers: TypeAlias = Annotated[
    str | None,
    typer.Option(
        "--graph",
        metavar="WHICH",
        help="Sites are peers that talk to their neighbours on this graph, with no hub: ring, path, grid, star, complete, "
        "random-regular:4 (four neighbours each), or a file with an edge on each line: two sites with a comma between, by name, "
        "such as site 3, or by number, counted from 0.",
        rich_help_panel=_PEERS,
        show_default="a hub",
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
NoiseName: TypeAlias = Annotated[
    Literal["pairwise", "independent", "published"] | None,
    typer.Option(
        "--noise",
        metavar="WHICH",
        help="pairwise: noise that cancels between pairs of peers, for little more than that of a curator in the sum, against "
        "--colluders of them. independent: all the noise at every peer, against all others, for sqrt(M) times as much. "
        "published: D-DP-PM's own, with --no-privacy, because nothing is promised.",
        rich_help_panel=_PEERS,
        show_default="pairwise with --epsilon",
    ),
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
Restarts: TypeAlias = Annotated[
    int | None,
    typer.Option(
        help="For how many rounds that are begun again, when peers vanish, to keep some of the budget.",
        rich_help_panel=_PEERS,
        show_default="0",
    ),
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
LocalSteps: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="STEPS",
        help="For fedpower: power steps at a site in each round. 4, or 4,3,2,1 round by round (the last one is repeated), or "
        "decay:4 (FedPower (3.15)). With --epsilon each is charged, and sites must add the noise.",
        rich_help_panel=_METHOD,
    ),
]
Align: TypeAlias = Annotated[
    Literal["procrustes", "sign", "none"],
    typer.Option(
        metavar="WHICH",
        help="For fedpower: how sites turn their products towards the last basis: procrustes, sign or none.",
        rich_help_panel=_METHOD,
    ),
]
Participation: TypeAlias = Annotated[
    str,
    typer.Option(
        metavar="WHO",
        help="For power and fedpower: full, or K sites drawn in each round: with-replacement:K by size, "
        "without-replacement:K evenly.",
        rich_help_panel=_METHOD,
    ),
]
Calibration: TypeAlias = Annotated[
    Literal["exact", "paper"],
    typer.Option(
        metavar="WHICH",
        help="exact: noise by exact accounting. paper: as FedPower prints it, with nothing promised, for comparison.",
        rich_help_panel=_METHOD,
    ),
]
Quorum: TypeAlias = Annotated[
    str | None,
    typer.Option(
        metavar="NUMBER",
        help="How many sites must answer, such as 4, or which share of them, such as 0.8. Others are left out from there on. "
        "With --graph: how many peers must be left, more than half.",
        rich_help_panel=_FAULTS,
        show_default="all; more than half with --graph",
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
Deadline: TypeAlias = Annotated[
    float,
    typer.Option(
        metavar="SECONDS",
        help="How long the hub, or a peer, waits before it asks again, on a simulated clock.",
        rich_help_panel=_FAULTS,
    ),
]
Retries: TypeAlias = Annotated[
    int, typer.Option(help="How often it asks again before it goes on without a site.", rich_help_panel=_FAULTS)
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


def hub_settings(
    *,
    private: bool,
    trust: str | None,
    survivors: str | None,
    colluders: int | None,
    topology: str,
    fanout: int | None,
    local_steps: str,
    participation: str,
    **others: Any,
) -> dict[str, Any]:
    """Settings that `FederatedPCA` has and `GossipPCA` has not, or has in other words; `others` are settings as they are."""
    masked = trust == "masked"
    require(trust is None or masked or private, "--trust says who adds the noise, and with --no-privacy nobody does")
    require(survivors is None or masked, "--survivors is for --trust masked; for other trust there is --quorum")
    require(colluders is None or masked, "--colluders is for --trust masked or --graph")
    require(fanout is None or topology == "tree", "--fanout is for --topology tree")
    return {
        "topology": topology,
        "fanout": 8 if fanout is None else fanout,
        "trust": "curator" if trust is None else trust,
        "survivors": number_or_share("--survivors", survivors),
        "colluders": 1 if colluders is None else colluders,
        "local_steps": local_steps_from(local_steps),
        "participation": participation_from(participation),
        **others,
    }


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


def participation_from(text: str) -> str | tuple[str, int]:
    """Everybody, or a scheme and how many it draws.

    >>> participation_from("full"), participation_from("with-replacement:5")
    ('full', ('with-replacement', 5))
    """
    scheme, colon, count = text.partition(":")
    if text == "full":
        return text
    good = colon and scheme in ("with-replacement", "without-replacement") and count.isdecimal()
    require(bool(good), f"--participation must be full, with-replacement:K or without-replacement:K, got {text!r}")
    return scheme, int(count)


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
