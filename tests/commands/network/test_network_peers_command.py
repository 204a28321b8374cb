"""`eigenveil peer`: what it says before anything runs, how it ends early, and whole studies as processes on loopback."""

import asyncio
import re
import signal
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path

import numpy as np
import pytest

from commands.command_tables import eigenveil, refusal
from commands.network.network_folders import COUNT, Folders, started
from eigenveil import Guarantee, Model
from eigenveil.core.ledger import Charge
from eigenveil.data.rows import DenseRows
from eigenveil.errors import PeersLost
from eigenveil.ledger.durable import DurableLedger
from eigenveil.network.agents.peer import PeerAgent
from eigenveil.network.agents.site_data import SiteData
from eigenveil.network.agents.steps import Event
from eigenveil.network.certificates import Keys

ME = "peer 1"


def command(folders: Folders, name: str = ME, *more: object, rules: str = "") -> list[str]:
    """A peer that a policy lets take part."""
    return folders.site(name, "--policy", folders.policy(name, more=rules), "--yes", "--dataset", "patients", *more)


def test_a_policy_without_the_pins_of_all_other_peers_refuses(tmp_path: Path) -> None:
    folders = Folders(tmp_path, peers=4)
    policy = folders.policy(ME, pins=False)
    done = eigenveil(*folders.site(ME, "--policy", policy, "--yes", "--dataset", "patients"))
    assert (done.exit_code, done.stdout) == (2, "")
    first, *reasons = done.stderr.splitlines()
    assert first == "error: the policy of this peer refuses the study. Nothing was sent:"
    assert [reason.split(" is not there")[0] for reason in reasons] == [
        "- [pins.peers] 'peer 0'",
        "- [pins.peers] 'peer 2'",
        "- [pins.peers] 'peer 3'",
    ]
    unpinned = eigenveil(*folders.site(ME, "--dataset", "patients"))
    assert unpinned.stdout.count("NOT verified: compare this fingerprint by telephone") == 3
    assert "consent needs a person at a terminal" in unpinned.stderr


def test_where_to_listen_is_checked_before_anything_is_said(tmp_path: Path) -> None:
    folders = Folders(tmp_path, peers=4)
    line = refusal(*command(folders, ME, "--listen", "somewhere"))
    assert line.startswith("error: --listen: an address must be host:port")
    done = eigenveil(*command(folders, ME, "--listen", "127.0.0.1:0", "--dry-run"))
    assert "this peer listens at 127.0.0.1:0 for" in done.stdout


@pytest.mark.parametrize(
    "restarts, released, words",
    [
        (None, False, "nothing was sent and nothing was charged: the same command begins again"),
        (None, True, "this peer cannot come back: its neighbours must stop too, because [privacy] restarts does not allow"),
        (1, True, "this peer cannot come back: its neighbours continue without it; what was charged stays charged, and"),
    ],
)
def test_one_that_is_ended_is_told_whether_it_can_come_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, restarts: int | None, released: bool, words: str
) -> None:
    folders = Folders(tmp_path, peers=4, privacy={"restarts": restarts})
    digest = folders.study.digest

    async def run(self: PeerAgent, *_: object, **__: object) -> None:
        self.ledger.join(self.account, life=None if self.policy is None else self.policy.life)
        self._on_event(Event("began"))
        if released:
            self.ledger.commit(digest, 0, came=b"", replies=[b"x"], charges=[Charge("mean", 0.1)])
        signal.raise_signal(signal.SIGTERM)
        await asyncio.Event().wait()

    with monkeypatch.context() as patched:
        patched.setattr(PeerAgent, "run", run)
        done = eigenveil(*command(folders))
    assert done.exit_code == 143
    assert done.stderr.startswith(f"ended by SIGTERM; {words}")
    if not released:
        again = eigenveil(*command(folders, ME, "--dry-run"))
        assert "has not been charged, and begins again" in again.stdout
        return
    line = refusal(*command(folders))
    assert "this peer was stopped in the middle of the study 'heart'" in line
    close = re.search(r"`eigenveil (ledger close \S+ [0-9a-f]+)` frees", line)
    assert close is not None
    closed = eigenveil(*close[1].split(), "--yes")
    assert closed.exit_code == 0
    assert "was closed for good in the ledger of this peer" in refusal(*command(folders))


def test_without_a_guarantee_what_was_sent_stays_sent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    privacy = {"epsilon": None, "delta": None, "noise": None, "no_privacy": True}
    folders = Folders(tmp_path, peers=4, privacy=privacy)

    async def run(self: PeerAgent, *_: object, **__: object) -> None:
        self.ledger.join(self.account, life=None)
        self._on_event(Event("began"))
        signal.raise_signal(signal.SIGINT)
        await asyncio.Event().wait()

    monkeypatch.setattr(PeerAgent, "run", run)
    rules = '[budget]\nstudy_epsilon = inf\nlifetime_epsilon = inf\n[limits]\ntrust = ["none"]\n'
    done = eigenveil(*command(folders, rules=rules))
    assert done.exit_code == 130
    assert done.stderr == "interrupted; what was sent stays sent; its neighbours continue without it\n"
    assert "THE OTHER PEERS WILL LEARN THIS PEER'S OWN SUMS WITHOUT NOISE" in done.stdout


def test_a_model_that_is_there_is_said_to_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = Folders(tmp_path, peers=4)
    model = folders.of(ME) / "model.safetensors"

    async def run(self: PeerAgent, deliver: Callable[[Model], None], **_: object) -> None:
        values = np.array([2.0, 1.0])
        guarantee, settings = Guarantee.none("a test"), {"study_digest": self.study.digest}
        deliver(
            Model(
                components=np.eye(5)[:2],
                mean=np.zeros(5),
                values=values,
                explained_variance=values,
                explained_variance_ratio=values / 4,
                guarantee=guarantee,
                settings=settings,
            )
        )
        # Its neighbours are not done yet, and it is waiting for them.
        signal.raise_signal(signal.SIGTERM)
        await asyncio.Event().wait()

    monkeypatch.setattr(PeerAgent, "run", run)
    done = eigenveil(*command(folders))
    assert done.exit_code == 143
    assert done.stderr.startswith(f"ended by SIGTERM; the model is in {model}; neighbours may lack")


def test_peers_that_are_lost_before_anything_left_are_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders = Folders(tmp_path, peers=4)

    async def run(self: PeerAgent, *_: object, **__: object) -> None:
        self.ledger.join(self.account, life=None if self.policy is None else self.policy.life)
        self._on_event(Event("began"))
        raise PeersLost(("peer 2", "peer 3"), round_=0, why="2 peers that can reach each other are left, and 3 must be")

    monkeypatch.setattr(PeerAgent, "run", run)
    done = eigenveil(*command(folders))
    assert done.exit_code == 3
    assert done.stderr.startswith("error: without peer 2, peer 3, round 1") and done.stderr.count("\n") == 1
    assert charged(folders, ME) == 0


def test_peers_that_do_not_come_are_named_and_the_same_command_begins_again(tmp_path: Path) -> None:
    folders = Folders(tmp_path, peers=4, network={"join_timeout": 1.0})
    for said in ("Consent: --yes", "has not been charged, and begins again"):
        done = eigenveil(*command(folders))
        assert done.exit_code == 3
        assert done.stderr == (
            "error: peer 0, peer 2, peer 3 did not join within 1 seconds, and no questions were asked; run the same command "
            "again when they are there\n"
        )
        assert said in done.stdout
        assert f"listening at {folders.study.place(ME).address}" in done.stdout
    with DurableLedger.reading(folders.of(ME) / "ledger.db") as ledger:
        (study,) = ledger.studies()
        assert (study.steps, study.spent) == (0, 0)


def models_of(folders: Folders, names: list[str]) -> list[Model]:
    return [Model.load(folders.of(name) / "model.safetensors") for name in names]


def charged(folders: Folders, name: str) -> float:
    """The mu that the ledger of a peer has for its one study."""
    with DurableLedger.reading(folders.of(name) / "ledger.db") as ledger:
        (study,) = ledger.studies()
        return study.spent


def require_agreement(models: list[Model]) -> None:
    """Signs and rotations aside."""
    first = models[0].components
    for model in models[1:]:
        np.testing.assert_allclose(model.components.T @ model.components, first.T @ first, atol=1e-6, err_msg="peers disagree")


@pytest.mark.slow
def test_four_processes_on_a_ring_come_to_the_same_model_and_are_charged_once(tmp_path: Path) -> None:
    folders = Folders(tmp_path, peers=4, network={"deadline": 30.0, "join_timeout": 120.0})
    commands = [(command(folders, name), folders.of(name)) for name in folders.names]
    with started(*commands, first_alone=True) as running:
        for peer in running:
            code, said, error = peer.ended()
            assert (code, error) == (0, "")
            assert not re.search(rf"\b({COUNT}|{COUNT:,})\b", said)
            assert "mu = 1.02" in said
    models = models_of(folders, folders.names)
    require_agreement(models)
    for name, model in zip(folders.names, models, strict=True):
        folder = folders.of(name)
        assert model.guarantee.private
        assert (folder / "model.guarantee.txt").read_text() == f"{model.guarantee}\n"
        scores = folder / "scores.csv"
        assert scores.stat().st_mode & 0o777 == 0o600
        found = np.loadtxt(scores, delimiter=",", skiprows=1)
        np.testing.assert_allclose(found, model.transform(folders.tables[name]), rtol=1e-12, atol=1e-12)
        with DurableLedger.reading(folder / "ledger.db") as ledger:
            ledger.verify()
            (study,) = ledger.studies()
            assert study.state == "finished"
            assert study.spent == pytest.approx(study.account.mu, rel=1e-3)
            notes = [line.body["words"] for line in ledger.entries() if line.kind == "note"]
        assert len(notes) == 1
        assert notes[0].startswith("consent: --yes under the policy policy.toml")
    assert "this peer has finished the study 'heart'" in refusal(*command(folders))


# The command, killed when its second release is in the ledger and has not left; the first one has.
KILLED = """
import os, signal
from eigenveil.commands import app
from eigenveil.ledger.durable import DurableLedger

commit = DurableLedger.commit

def fatal(self, study, number, **more):
    commit(self, study, number, **more)
    if number == 1:
        os.kill(os.getpid(), signal.SIGKILL)

DurableLedger.commit = fatal
app()
"""


async def take_part(folders: Folders, name: str) -> None:
    """A peer in this process."""
    with DurableLedger.open(folders.of(name) / "ledger.db") as ledger:
        keys = Keys.load(folders.of(name) / f"{folders.of(name).name}.key")
        holding = SiteData.of(DenseRows(folders.tables[name]), folders.study)
        agent = PeerAgent(folders.study, keys=keys, holding=holding, ledger=ledger, dataset="patients", policy=None)
        assert agent.place.address is not None
        model = folders.of(name) / "model.safetensors"
        await agent.run(lambda learned: learned.save(model), listen=agent.place.address)


@pytest.mark.slow
@pytest.mark.parametrize("restarts", [None, 1])
def test_when_one_is_killed_the_others_stop_or_go_on_and_it_cannot_come_back(tmp_path: Path, restarts: int | None) -> None:
    folders = Folders(
        tmp_path,
        peers=3,
        privacy={"noise": "independent", "restarts": restarts},
        network={"deadline": 4.0, "retries": 1, "join_timeout": 120.0, "quorum": 2},
    )
    rules = "[limits]\norganisations = 2\n"
    first, _, last = ((command(folders, name, rules=rules), folders.of(name)) for name in folders.names)
    with started(last, program=KILLED) as (killed,), started(first) as (other,):
        end: AbstractContextManager[object] = nullcontext()
        if restarts is None:
            end = pytest.raises(PeersLost, match="without peer 2")
        with end:
            asyncio.run(take_part(folders, "peer 1"))
        assert killed.ended()[0] == -signal.SIGKILL
        code, said, error = other.ended()
    if restarts is None:
        assert code == 3
        assert error.startswith("error: without peer 2, round 2") and error.count("\n") == 1
        assert "[privacy] restarts" in error and "`eigenveil" in error
    else:
        assert (code, error) == (0, "")
        assert "2 peers, without 1" in said
        require_agreement(models_of(folders, folders.names[:2]))
    for name in folders.names:
        with DurableLedger.reading(folders.of(name) / "ledger.db") as ledger:
            ledger.verify()
            (study,) = ledger.studies()
            assert 0 < study.spent <= study.account.mu
            assert study.state == ("finished" if restarts and name != "peer 2" else "open")
    assert "was stopped in the middle of the study" in refusal(*command(folders, "peer 2", rules=rules))
