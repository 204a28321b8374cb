"""`PeerAgent`: a peer of a study without a hub, over the network. What leaves is in its ledger first.

`eigenveil peer` runs it. Peers begin when each has heard, from neighbour to neighbour, that all are connected. A peer that
was stopped in the middle cannot come back: its neighbours have gone on without it, and saying anything again would be
charged again.
"""

import json
from collections.abc import Callable, Collection, Set
from typing import Final, Unpack, final

from eigenveil.errors import PeerError, ProtocolError, require
from eigenveil.estimators.gossip.parties import gossip_guarantee, peers_settings
from eigenveil.estimators.terms import model_of
from eigenveil.ledger.durable import StudyRecord
from eigenveil.model import Model, clipping_of
from eigenveil.network.agents.runner import Runner
from eigenveil.network.agents.site_data import Holder, HolderOptions, SiteData, account_of
from eigenveil.network.agents.steps import Cause, DurableParty, Event, LedgerSteps, Outgoing, outgoing_of
from eigenveil.network.parties import peer_parties_of, study_settings
from eigenveil.network.rules import MEMORY, limits_of
from eigenveil.network.study import StudyFile
from eigenveil.protocols.gossip.peer import Peer, PeerRound
from eigenveil.protocols.messages import Message, PartialSum, PeerKey

__all__ = ["PeerAgent"]

# Notes between agents: a peer has its result, or these peers are connected as far as it has heard.
_DONE: Final = b"done"
_READY: Final = b"ready "


@final
class _DurablePeer(DurableParty):
    """A peer whose new charges, and what they pay for, are in the ledger before anything leaves. Changes in place."""

    def __init__(self, agent: "PeerAgent", party: Peer) -> None:
        super().__init__(limits=agent.limits, on_event=agent.on_event)
        self.party: Peer = party
        self._ledger = agent.parties.ledgers.get(party.name)
        self._steps, self._charged = LedgerSteps(agent.ledger, agent.study.digest, on_event=agent.on_event), 0

    @property
    def over(self) -> bool:
        return self.party.over

    def _refuse(self, error: PeerError) -> None:
        self._steps.refuse(error)

    def _move(self, cause: Cause, step: Callable[[], list[Message]]) -> list[Outgoing]:
        messages = step()
        outgoing = outgoing_of(messages)
        charges = () if self._ledger is None else self._ledger.charges[self._charged :]
        # Without a guarantee nothing is charged. That something left is still written once: it voids the dataset's life.
        first = self._steps.number == 0 and any(isinstance(message.body, PartialSum) for message in messages)
        if charges or first:
            self._steps.commit(cause.data, [raw for _, raw in outgoing], charges)
            self._charged += len(charges)
            for charge in charges:
                self._on_event(Event("said", "", f"{charge.label} at mu {charge.mu:.4g}"))
        return outgoing


@final
class PeerAgent(Holder):
    """One peer: its place in the `study`, its table, and the name of its `dataset` in its ledger. Changes in place: it spends.

    Nothing is connected and nothing is spent before `run`. A study that needs more than `memory` bytes is refused.
    """

    def __init__(
        self, study: StudyFile, *, holding: SiteData, dataset: str, memory: int = MEMORY, **options: Unpack[HolderOptions]
    ) -> None:
        require(study.topology == "gossip", f"{study.name!r} has a hub: run `eigenveil site`")
        super().__init__(study, role="peer", **options)
        self.parties, self._holding = peer_parties_of(study, memory=memory), holding
        spec, me = self.parties.request, self.place.name
        self.require_allowed(holding, method=spec.fit.plan.method)
        mu = 0.0 if spec.budget is None else spec.budget.mu
        self.account = account_of(study, dataset, party=me, budget=spec.budget, mu=mu)
        # Only neighbours on the graph may connect. The others are strangers here, though they are in the study.
        self.hears = spec.graph.neighbours(me)
        # Exactly one of two neighbours must call, and the one later in the study file does.
        order = [peer.name for peer in study.peers]
        self.calls = tuple(name for name in self.hears if order.index(name) < order.index(me))
        self.limits, self.longest_note = limits_of(study, spec, "peer"), len(_ready_note(self.parties.names))
        # Every peer's key, and the numbers of two steps.
        key, numbers = (self.limits.kinds[kind, ""].size for kind in (PeerKey, PartialSum))
        self.early_bytes = len(self.parties.names) * key + 2 * numbers
        self._ready: set[str] = {me}
        self._done: set[str] = set()

    async def run(
        self,
        deliver: Callable[[Model], None],
        *,
        listen: str,
        note: str | None = None,
        ready: Callable[[int], None] = lambda port: None,
    ) -> Model:
        """Take part until the result is here. `deliver` gets the model before the study is closed in the ledger.

        `listen` is where others reach this peer, and `ready` is called with the port. `note` is for the ledger.
        """
        with self.entered(note) as entered:
            party = self.parties.peer(
                self.place.name, self._holding.rows, watch=self._round_done, identity=self.keys.identity, secret=entered.secret
            )
            durable = _DurablePeer(self, party)
            async with self.connected(durable, listen=listen, ready=ready) as runner:
                self.on_event(Event("waiting", "", f"for {len(self.parties.names) - 1} others to connect"))
                # All of them, not only neighbours: a peer that begins without one far away would leave it behind.
                await runner.gather(
                    self.parties.names, seconds=self.study.params.join_timeout, patience=self.study.params.deadline
                )
                self.on_event(Event("began"))
                await runner.begin()
                await runner.run(lambda: durable.over)
                # The study stays open in the ledger: what was charged is charged, and a person decides about the rest.
                if party.error is not None:
                    raise party.error
                # The model is on disk before the ledger closes the study and wipes what it kept.
                model = self._model(party)
                deliver(model)
                self.ledger.finish(self.study.digest)
                await runner.note(_DONE, *self.hears)
                # Neighbours may still need this peer's numbers of the last round.
                transport = self.transport
                assert transport is not None
                # A neighbour that has gone does not need this peer any more.
                await runner.linger(
                    seconds=self.study.patience, over=lambda: self._done.issuperset({*self.hears} & {*transport.connected()})
                )
                return model

    def require_can_go_on(self, entered: StudyRecord) -> None:
        """A peer that was stopped in the middle of a study cannot come back."""
        if entered.steps:
            raise ProtocolError(
                f"this peer was stopped in the middle of the study {self.study.name!r}, and its neighbours have continued "
                "without it. What was charged stays charged; `eigenveil ledger close` frees the rest of the reserve"
            )

    async def on_joined(self, runner: Runner, name: str) -> None:
        await super().on_joined(runner, name)
        await runner.note(_ready_note(self._ready), name)

    async def on_note(self, runner: Runner, sender: str, note: bytes) -> None:
        if note == _DONE:
            self._done.add(sender)
        elif self._learnt(note):
            await runner.note(_ready_note(self._ready), *self.hears)

    def may_connect(self, name: str) -> bool:
        return self.study.place(name).pin not in self._withdrawn()

    def counts_as_present(self, connected: Set[str]) -> Collection[str]:
        """Peers that others have heard of, and of the neighbours those that this peer itself is connected to.

        A neighbour that was only heard of would miss the first numbers, and ask for them after its whole deadline.
        """
        return {name for name in self._ready if name not in self.hears or name in connected}

    def _learnt(self, note: bytes) -> bool:
        """Whether a neighbour knows of a peer that this one had not heard of. Anything but a list of peers is ignored."""
        if not note.startswith(_READY):
            return False
        try:
            listed = json.loads(note[len(_READY) :])
        except (ValueError, RecursionError):
            return False
        names = {name for name in listed if isinstance(name, str)} if isinstance(listed, list) else set()
        # Unknown names are dropped: a neighbour must not make this peer wait for, or count, strangers.
        new = (names & set(self.parties.names)) - self._ready
        # The set only grows, and only news is passed on, so the chatter ends by itself.
        self._ready |= new
        return bool(new)

    def _round_done(self, peer: Peer, round_: PeerRound) -> None:
        dropped = len(self.parties.names) - len(round_.counted)
        text = f"{len(round_.counted)} peers" + (f", without {dropped}" if dropped else "")
        self.on_event(Event("round", f"{round_.stage} {round_.step + 1}".strip(), text))

    def _model(self, party: Peer) -> Model:
        result, counted = party.result, party.counted
        # The guarantee says from which round on only the final set of peers was counted.
        since = next((round_.number for round_ in party.rounds if set(round_.counted) <= set(counted)), 0)
        return model_of(
            result,
            verdict=self.parties.verdict(result, counted=counted, names=self.study.columns),
            guarantee=gossip_guarantee(self.parties, result, counted=counted, since=since),
            columns=self.study.columns,
            clipping=clipping_of(result.domain),
            settings=study_settings(
                self.study, peers_settings(self.parties, result, peers=len(counted), rounds=len(party.rounds), sent=None)
            ),
        )


def _ready_note(names: Collection[str]) -> bytes:
    return _READY + json.dumps(sorted(names)).encode()
