"""What to type for what a plan has chosen: the planner's Python call with its gaps filled, and the same call as a command."""

import ast
import shlex
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from eigenveil.plan import Facts

__all__ = ["call_with", "command_of", "parameters_of", "rehearsal_of"]

_HUB: Final = {"hub": "curator", "site": "site", "masked": "masked"}
_PEERS: Final = {"peers": "pairwise", "peers-independent": "independent"}
# Parameters that no command has an option for, or that are said in other words.
_ELSEWHERE: Final = ("people", "center")


def parameters_of(method: str) -> str:
    """The parameters of an estimator that mean `method`, "setting/method".

    >>> parameters_of("masked/covariance"), parameters_of("stream/sync")
    ("trust='masked', method='covariance'", "publish='sync'")
    """
    setting, _, how = method.partition("/")
    if setting == "curator":
        return f"mechanism={how!r}"
    if setting == "stream":
        return f"publish={how!r}"
    who = f"trust={_HUB[setting]!r}" if setting in _HUB else f"noise={_PEERS[setting]!r}"
    return f"{who}, method={how!r}"


def call_with(facts: "Facts", call: str, *, row_bound: float | None) -> str:
    """The planner's call with the bound that is known, and with a bound on the mean where the plan counts on one."""
    known = call if row_bound is None else call.replace("row_bound=...", f"row_bound={row_bound:.12g}")
    near = facts.center == "private" and not facts.search and not call.startswith("StreamingPCA")
    return f"{known.removesuffix(')')}, mean_bound=...)" if near else known


def command_of(facts: "Facts", method: str, call: str) -> str:
    """What to type for a fit by `method`, as `call` says it. Capitals stand for what a plan does not know.

    Sites that are organisations of their own write a study; `rehearsal_of` runs the same in one process.
    """
    setting, _, how = method.partition("/")
    if setting in ("curator", "stream"):
        return _line("fit" if setting == "curator" else "stream", "TABLE", *_options(call))
    if how == "segments":
        # A study has no segments: they run in one process.
        return rehearsal_of(facts, method, call)
    where = ["--address", "HOST:7443"] if setting in _HUB else ["--peer-address", "NAME=HOST:7443"]
    sizes = ["--size", "NAME=PEOPLE"] if facts.neighbours.count_is_public else []
    head = ["study", "new", "study.toml", "--keys", "FOLDER", *where, "--columns-from", "PUBLIC_TABLE"]
    return _line(*head, *_options(call), *sizes)


def rehearsal_of(facts: "Facts", method: str, call: str) -> str:
    """What to type to run a fit over sites in one process, on a public table like the private ones; empty for one holder."""
    if method.partition("/")[0] in ("curator", "stream"):
        return ""
    return _line("simulate", "PUBLIC_TABLE", "--sites", str(facts.sites), *_options(call))


def _line(*words: str) -> str:
    return shlex.join(["eigenveil", *words])


def _options(call: str) -> Iterator[str]:
    """The parameters of a call to an estimator as options. Whatever the call says, the command says."""
    made = ast.parse(call, mode="eval").body
    assert isinstance(made, ast.Call)
    given: Mapping[str, object] = {word.arg: ast.literal_eval(word.value) for word in made.keywords if word.arg}
    yield from ("-k", str(ast.literal_eval(made.args[0])))
    for name, value in given.items():
        if name not in _ELSEWHERE:
            shown = name.upper() if value is ... else f"{value:.12g}" if isinstance(value, float) else str(value)
            yield from ("--" + name.replace("_", "-"), shown)
    if "center" in given:
        # A center of one's own is for Python; as a command, rows that lie around it are left where they are.
        yield from ("--no-center",) if given["center"] is False else ("--center", "none")
