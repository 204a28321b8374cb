"""`eigenveil peer`: take part in a study without a hub, with one's own table, after a person or a policy has agreed."""

import shlex
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, final

from eigenveil.commands import _network as network
from eigenveil.commands._command import Command
from eigenveil.commands._files import require_file
from eigenveil.commands._joining import TABLE, Joining, JoinOptions, Kind, take_part
from eigenveil.commands._options import option
from eigenveil.data.formats import FileParams
from eigenveil.errors import PeersLost, ProtocolError
from eigenveil.params.declarations.study import PeerStudy
from eigenveil.params.declare import in_study
from eigenveil.show import disclosure
from eigenveil.show.progress import StatusWriter

if TYPE_CHECKING:
    from eigenveil.ledger.durable import StudyReplay
    from eigenveil.model import Model
    from eigenveil.network.agents.peer import PeerAgent
    from eigenveil.network.study import StudyFile
    from eigenveil.show.agreement import Fact

__all__ = ["COMMAND"]

_NOTHING: Final = "nothing was sent and nothing was charged"


@final
@dataclass(frozen=True, kw_only=True)
class _PeerOptions(JoinOptions):
    data: Annotated[Path, option("--data", "FILE", TABLE)]
    listen: network.Listen = None


def peer(settings: dict[str, Any], options: _PeerOptions) -> None:
    """Take part in a study without a hub, with the table of this peer.

    With the keys of the peer next to the study file:

      eigenveil peer heart.toml --data patients.parquet \\
        --policy policy.toml --dataset patients

    First it shows what it would reveal, to whom and at what cost, and
    asks. --dry-run stops there. Then it waits until all peers are
    connected, and adds up with its neighbours. Every sum and its charge
    are in the ledger before the sum leaves.

    A peer that is stopped before it sends anything begins again with the
    same command. AFTER THAT IT CANNOT COME BACK: its neighbours
    continue without it, if the study allows for that, and what was charged stays
    charged.

    It writes the model, its guarantee in a text file next to it, and the
    scores of this peer's own rows. SCORES ARE RAW DATA: only you can read
    them (mode 0600), and they never leave. --passthrough id,label puts columns
    of your table next to them.

    Unattended, rules consent in place of a person:

      eigenveil peer heart.toml --data patients.parquet \\
        --policy policy.toml --yes

    Exit codes: 1 if the person says no or the total budget is too small,
    2 if the policy refuses, 3 if others did not join or are gone. It is
    130 after Ctrl-C and 143 after SIGTERM.
    """
    require_file(options.study)
    network.require_grpc()
    options.address()
    # Refused before the table is read, which may take minutes.
    network.require_listen(options.listen)
    take_part(options, options.data, settings, _Peer(options.listen, options.ledger))


@final
@dataclass(frozen=True, slots=True)
class _Peer(Kind["PeerAgent"]):
    """A peer listens, at `listen` if given, and calls the neighbours that come before it in the study file."""

    role = "peer"
    listen: str | None
    ledger: Path

    def agent(self, study: "StudyFile", **settings: Any) -> "PeerAgent":
        from eigenveil.network.agents.peer import PeerAgent

        return PeerAgent(study, **settings)

    def leaving(self, agent: "PeerAgent") -> Iterator["Fact"]:
        near = [agent.study.place(name) for name in agent.hears]
        return disclosure.leaving_peer(agent.study, agent.parties, near=near, listens=self._where(agent))

    def joined(self, state: "StudyReplay") -> str:
        # With a step in the ledger something may have left, and saying it again would be charged again.
        if state.steps > 0:
            raise ValueError(
                f"this peer was stopped in the middle of the study {state.account.title!r} and cannot come back, because its "
                f"neighbours have continued without it; {self._charged(state)}"
            )
        return f"This peer joined the study on {state.joined}, has not been charged, and begins again."

    def run(
        self, agent: "PeerAgent", deliver: Callable[["Model"], None], *, note: str | None, voice: StatusWriter
    ) -> Coroutine[Any, Any, "Model"]:
        where = self._where(agent)

        def ready(port: int) -> None:
            voice.write_line(f"listening at {where.rpartition(':')[0]}:{port}")

        return agent.run(deliver, listen=where, note=note, ready=ready)

    def left(self, agent: "PeerAgent", standing: Joining) -> str:
        state = standing.state
        if standing.model is not None:
            still = "" if state is None or state.state != "open" else f"; in the ledger the study is open: {self._charged(state)}"
            return f"the model is in {standing.model}; neighbours may lack this peer's last numbers{still}"
        # With a step in the ledger something has left, and the neighbours will not wait for more.
        if state is not None and state.steps > 0:
            return f"this peer cannot come back: {_neighbours(agent)}; {self._charged(state)}"
        if standing.begun and not agent.study.private:
            return f"what was sent stays sent; {_neighbours(agent)}"
        return f"{_NOTHING}: the same command begins again"

    def lost(self, agent: "PeerAgent", error: ProtocolError, standing: Joining) -> str | None:
        state = standing.state
        # The error names parameters. Here they are keys of the study file.
        why = error.said(in_study(PeerStudy)) if isinstance(error, PeersLost) else str(error)
        if state is not None and state.steps > 0:
            return f"{why}; {self._charged(state)}" if isinstance(error, PeersLost) else None
        if not standing.begun:
            return f"{why}; {disclosure.WHEN_THERE}"
        if isinstance(error, PeersLost):
            return f"{why}; {_NOTHING}" if agent.study.private else why
        return None

    def _charged(self, state: "StudyReplay") -> str:
        close = f"eigenveil ledger close {shlex.quote(str(self.ledger))} {state.account.study[:16]}"
        return f"what was charged stays charged, and `{close}` frees the rest of the reserve"

    def _where(self, agent: "PeerAgent") -> str:
        assert agent.place.address is not None
        return network.listening_address(self.listen, agent.place.address)


def _neighbours(agent: "PeerAgent") -> str:
    params = agent.study.params
    if agent.study.private and isinstance(params, PeerStudy) and not params.restarts:
        return "its neighbours must stop too, because [privacy] restarts does not allow a round to begin again without it"
    return "its neighbours continue without it"


COMMAND = Command(run=peer, params=FileParams, panel="Studies across organisations", leave=("features", "one_based"))
