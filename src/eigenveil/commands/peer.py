"""`eigenveil peer`: take part in a study without a hub, with one's own table, after a person or a policy has agreed."""

import shlex
from collections.abc import Callable, Coroutine, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, final

from eigenveil.commands import _network as network
from eigenveil.commands._command import Command
from eigenveil.commands._files import PassphraseFile, require_file
from eigenveil.commands._joining import Joining, JoinOptions, Kind, take_part
from eigenveil.commands._network import require_grpc
from eigenveil.commands._options import Page, PageToken, page_at
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


def peer(
    study: network.Study,
    data: network.Data,
    settings: dict[str, Any],
    keys: network.Keys = None,
    policy: network.PolicyFile = None,
    ledger: network.Ledger = Path("ledger.db"),
    dataset: network.Dataset = None,
    listen: network.Listen = None,
    yes: network.Yes = False,
    model: network.HeldModel = None,
    scores: network.Scores = None,
    passthrough: network.OwnPassthrough = None,
    report: network.OwnReport = None,
    rehearsal: network.Rehearsal = False,
    dry_run: network.DryRun = False,
    memory: network.Memory = network.MEMORY,
    force: network.Force = False,
    passphrase_file: PassphraseFile = None,
    require_head: network.RequireHead = None,
    page: Page = None,
    page_token: PageToken = None,
) -> None:
    """Take part in a study without a hub, with the table of this peer.

    With the keys of the peer beside the study file:

      eigenveil peer heart.toml --data patients.parquet \\
        --policy policy.toml --dataset patients

    First it shows what it would reveal, to whom and at what cost, and
    asks. --dry-run stops there. Then it waits until all peers are
    connected, and adds up with its neighbours. Every sum and its charge
    are in the ledger before the sum leaves.

    A peer that is stopped before it sends anything begins again with the
    same command. AFTER THAT IT CANNOT COME BACK: its neighbours go on
    without it, if the study allows for that, and what was charged stays
    charged.

    It writes the model, its guarantee in a text file beside it, and the
    scores of this peer's own rows. SCORES ARE RAW DATA: only you can read
    them (mode 0600), and they go to nobody. --passthrough id,label puts columns
    of your table beside them.

    Unattended, rules consent in place of a person:

      eigenveil peer heart.toml --data patients.parquet \\
        --policy policy.toml --yes

    Exit codes: 1 if the person says no or the total budget is too small,
    2 if the policy refuses, 3 if others did not join or are gone. It is
    130 after Ctrl-C and 143 after SIGTERM.
    """
    require_file(study)
    require_grpc()
    allowed = network.bytes_allowed(memory)
    options = JoinOptions(
        study=study,
        data=data,
        keys=keys,
        policy=policy,
        ledger=ledger,
        dataset=dataset,
        yes=yes,
        model=model,
        scores=scores,
        rehearsal=rehearsal,
        dry_run=dry_run,
        force=force,
        memory=allowed,
        reading=settings,
        passphrase_file=passphrase_file,
        require_head=require_head,
        page=page_at(page, page_token),
        report=report,
        passthrough=tuple(passthrough or ()),
    )
    # Refused before the table is read, which may take minutes.
    network.require_listen(listen)
    take_part(options, _Peer(listen, ledger))


@final
@dataclass(frozen=True, slots=True)
class _Peer(Kind["PeerAgent"]):
    """A peer listens, at `listen` if given, and calls the neighbours that come before it in the study file."""

    listen: str | None
    ledger: Path

    @property
    def role(self) -> Literal["peer"]:
        return "peer"

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
                f"neighbours have gone on without it; {self._charged(state)}"
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
            still = (
                ""
                if state is None or state.state != "open"
                else f"; in the ledger the study is open: {self._charged(state)}"
            )
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
        return (
            "its neighbours must stop too, because [privacy] restarts does not allow a round to begin again without it"
        )
    return "its neighbours go on without it"


COMMAND = Command(run=peer, params=FileParams, panel="Studies across organisations", leave=("features", "one_based"))
