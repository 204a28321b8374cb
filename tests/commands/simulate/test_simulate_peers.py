"""`eigenveil simulate --graph`: peers without a hub, on every kind of graph and with every noise; every mistake one line."""

import math
import os
import pty
import re
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from commands.command_tables import COUNT, NAMES, PRIVATE, eigenveil, files_in, refusal, rows, written
from commands.forked import Forked, run_forked
from commands.simulate.test_simulate import visits
from commands.simulate.test_simulate_process import _read
from commands.test_process import QUIET
from eigenveil import FederatedPCA, GossipPCA, Model, PrivatePCA
from eigenveil.core.ledger import Ledger
from eigenveil.data.rows import FILL_PUBLICLY
from eigenveil.errors import BudgetExceeded, ParameterError
from eigenveil.estimators.terms import Unfinished
from eigenveil.linalg import sines
from eigenveil.params.declarations.federated import FederatedParams, GossipParams
from eigenveil.params.declare import in_options

IN_OPTIONS = FILL_PUBLICLY.replace("{missing=counts}", "--missing counts")
EXACT = ("-k", 2, "--no-privacy", "--graph")
SECRET = ("-k", 2, *PRIVATE, "--graph")

# The second round is seen, and then nothing more happens.
SLOW = r"""
import os, time
from eigenveil.commands import app
from eigenveil.show.simulation import SimulationView

see = SimulationView.see

def slow(self, done):
    see(self, done)
    if done.number == 1:
        time.sleep(0.5)
        os.write(1, b"begun\n")
        time.sleep(60)

SimulationView.see = slow
app()
"""


def flat(text: str) -> str:
    """Without frames and the ends of lines."""
    return " ".join(re.sub(r"[│\n]", " ", text).split())


@pytest.mark.parametrize("graph", ["ring", "path", "grid", "star", "complete", "random-regular:4"])
def test_every_graph_finds_the_exact_components(tmp_path: Path, graph: str) -> None:
    target = tmp_path / "model.safetensors"
    result = eigenveil("simulate", written(tmp_path, "csv"), *EXACT, graph, "--sites", 6, "-o", target)
    assert result.exit_code == 0, result.output
    assert result.stderr == ""
    model = Model.load(target)
    assert sines(model.subspace.basis, PrivatePCA(2, epsilon=None).fit(rows()).subspace_.basis)[0] < 1e-7
    assert (model.columns, model.settings["split"], model.settings["peers"]) == (NAMES, "iid", 6)
    said = flat(result.stdout)
    assert "100.0000% of the variance" in said
    assert f"{graph}: 6 peers, " in said
    assert re.search(r"disagreement \d\.\de-1\d, the sine of the largest principal angle between peers", said)
    assert re.search(r"traffic [\d.]+ [kM]B from site \d, the busiest peer; [\d.]+ [kM]B in all", said)
    assert "No privacy: exact PCA was asked for." in said


@pytest.mark.parametrize("method", ["auto", "power", "krylov", "covariance", "segments"])
@pytest.mark.parametrize(
    ("consensus", "words"),
    [
        ("chebyshev", r"chebyshev: \d\d steps for each sum; \d\.\de-1\d of the differences between peers remains"),
        ("tree", r"tree: \d steps for each sum; exact"),
    ],
)
def test_every_method_and_consensus(tmp_path: Path, method: str, consensus: str, words: str) -> None:
    arguments = ("ring", "--sites", 4, "--method", method, "--consensus", consensus, "--seed", 1)
    result = eigenveil("simulate", written(tmp_path, "npy"), *EXACT, *arguments)
    assert result.exit_code == 0, result.output
    said = flat(result.stdout)
    assert re.search(words, said)
    assert re.search(rf"method {'power' if method == 'auto' else method}", said)
    assert "100.0000% of the variance" in said


@pytest.mark.parametrize(
    ("noise", "kind", "least", "against"),
    [
        ((), "pairwise, against one colluder", math.sqrt(5 / 4), "even if one peer tells them everything"),
        (
            ("--colluders", 2, "--noise-graph", "complete"),
            "pairwise, against 2 colluders",
            math.sqrt(5 / 3),
            "even if up to 2 peers tell them everything",
        ),
        (("--noise", "independent"), "independent", math.sqrt(5), "including all other peers together"),
    ],
    ids=["pairwise", "colluders", "independent"],
)
def test_every_noise_shows_its_charges_and_its_guarantee(
    tmp_path: Path, noise: tuple[object, ...], kind: str, least: float, against: str
) -> None:
    source, target = written(tmp_path, "npy"), tmp_path / "model.safetensors"
    result = eigenveil("simulate", source, *SECRET, "ring", "--sites", 5, *noise, "--guarantee", "-o", target)
    assert result.exit_code == 0, result.output
    said = flat(result.stdout)
    assert "charge, mu" in said
    factor = re.search(rf"noise {kind}: ([\d.]+) times that of a trusted hub", said)
    assert factor is not None
    # Pairs come within a thousandth of the limit, in squares; four digits are shown.
    assert least - 5e-4 <= float(factor[1]) <= least * 1.0005 + 5e-4
    assert against in said
    assert "(1, 1e-06)-differential privacy for each person" in said and "Each person, who has one row at one peer." in said
    assert "A simulation: one process had all rows" in said
    assert "captured" not in said
    model = Model.load(target)
    assert model.guarantee.epsilon == 1
    shown = eigenveil("inspect", target).stdout
    assert "5 peers, 5 edges" in shown
    assert files_in(tmp_path) == {source.name, target.name}


def test_options_reach_the_estimator(tmp_path: Path) -> None:
    source, target, edges = visits(tmp_path), tmp_path / "model.safetensors", tmp_path / "who.txt"
    edges.write_text("# a line\n0, 1\nhospital north, hospital south\n")
    arguments = "--split by:hospital --drop patient --method power --consensus chebyshev --steps 40 --rounds 3 --oversample 1 "
    arguments += "--noise pairwise --noise-graph complete --colluders 1 --restarts 2 --neighbours zero-out --origin 0 "
    arguments += "--mean-bound 30 --scale 1,1,1,1,2 --column-bounds -20,20 --tolerance 0 --quorum 3 --deadline 7 --retries 2 "
    arguments += "--seed 7"
    result = eigenveil("simulate", source, *SECRET, edges, *arguments.split(), "-o", target)
    assert result.exit_code == 0, result.output
    assert "3 peers, 2 edges, at most 2 links apart, split by hospital" in flat(result.stdout)
    hospital = np.array([("north", "south", "X")[i // 2 % 3] for i in range(COUNT)])
    expected = GossipPCA(
        2,
        graph="path",
        epsilon=1,
        delta=1e-6,
        row_bound=12,
        column_bounds=(-20, 20),
        method="power",
        consensus="chebyshev",
        steps=40,
        rounds=3,
        tolerance=0.0,
        oversample=1,
        noise_graph="complete",
        restarts=2,
        quorum=3,
        deadline=7,
        retries=2,
        origin=0.0,
        mean_bound=30,
        scale=[1, 1, 1, 1, 2],
        neighbours="zero-out",
        random_state=7,
    ).fit({f"hospital {name}": rows()[hospital == name] for name in ("X", "north", "south")})
    model = Model.load(target)
    assert np.allclose(model.components, expected.components_, atol=1e-9)
    assert model.guarantee.charges == expected.guarantee_.charges


def test_a_file_of_edges_by_name_and_number(tmp_path: Path) -> None:
    edges = tmp_path / "edges.csv"
    edges.write_text("0,1\nsite 1, site 2\n2\t3\n3 0\n")
    result = eigenveil("simulate", written(tmp_path, "npy"), *EXACT, edges, "--sites", 4)
    assert result.exit_code == 0, result.output
    assert "4 peers, 4 edges, at most 2 links apart" in flat(result.stdout)
    edges.write_text("0,1\n1,4\n")
    line = refusal("simulate", written(tmp_path, "npy"), *EXACT, edges, "--sites", 4)
    assert line == f"error: --graph: {edges}, line 2: '4' is not among the names"
    edges.write_text("0,1\n1,2\n")
    line = refusal("simulate", visits(tmp_path), *EXACT, edges, "--split", "by:patient", "--drop", "hospital")
    assert line.startswith("error: --graph must be connected: there is no path from patient p0 to patient p100")


def test_a_persons_rows_are_one(tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    arguments = ("complete", "--sites", 4, "--person", "patient", "--drop", "hospital", "-o", target)
    result = eigenveil("simulate", visits(tmp_path), *SECRET, *arguments)
    assert result.exit_code == 0, result.output
    assert "with all of their rows" in Model.load(target).guarantee.unit


def test_no_private_number_is_in_what_a_private_run_says_or_writes(tmp_path: Path) -> None:
    target = tmp_path / "model.safetensors"
    source = visits(tmp_path)
    for noise in ("pairwise", "independent"):
        arguments = ("ring", "--split", "by:hospital", "--drop", "patient", "--noise", noise, "--guarantee")
        result = eigenveil("simulate", source, *SECRET, *arguments, "-o", target, "--force")
        assert result.exit_code == 0, result.output
        content = target.read_bytes()
        said = content.decode("latin-1") + result.output.replace(str(tmp_path), "")
        for number in (COUNT, 338, 336, 335):
            # Digits inside a noisy number are chance.
            assert re.search(rf"(?<![\d.]){number}(?!\d)", said) is None
            for kind in (np.float64, np.int64):
                assert kind(number).tobytes() not in content


def test_a_network_that_loses_message_changes_nothing(tmp_path: Path) -> None:
    arguments = ("ring", "--sites", 5, "--seed", 1, "--duplicate", 0.3, "--delay", 3, "--loss", 0.05)
    result = eigenveil("simulate", written(tmp_path, "npy"), *EXACT, *arguments)
    assert result.exit_code == 0, result.output
    assert "100.0000% of the variance" in flat(result.stdout)
    assert "left behind" not in result.stdout


def test_a_budget_that_does_not_suffice_says_what_was_charged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger = Ledger(epsilon=1.0, delta=1e-6)
    ledger.spend(0.125, label="a sum")

    def broken(self: GossipPCA, peers: Any, **_: Any) -> None:
        self.unfinished_ = Unfinished((), {"site 0": ledger}, ())
        raise BudgetExceeded("it does not suffice")

    monkeypatch.setattr(GossipPCA, "fit", broken)
    line = refusal("simulate", written(tmp_path, "npy"), *SECRET, "ring", "--sites", 4, code=1)
    assert line == "error: it does not suffice; charged so far: mu = 0.125"


RING = (*EXACT, "ring", "--sites", 5)
PLAIN = ("-k", 2, "--no-privacy", "--sites", 5)


def test_a_site_is_called_as_it_is_called() -> None:
    """Its name may look like a parameter, a table or a part of a message."""
    broken = rows()
    broken[3, 1] = np.nan
    sites = {"X {noise=} --steps: X": broken[:600], "graph": broken[600:]}
    peers, hub = GossipPCA(2, graph="complete", epsilon=None), FederatedPCA(2, epsilon=None)
    for pca, asked in ((peers, GossipParams), (hub, FederatedParams)):
        with pytest.raises(ParameterError) as caught:
            pca.fit(sites)
        line = caught.value.said(in_options(asked, X="the table"))
        assert line == f"X {{noise=}} --steps: X: the table contains NaN. {IN_OPTIONS}"


def test_the_example_in_the_docs_says_what_it_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    page = (Path(__file__).parents[3] / "docs" / "command-line.md").read_text(encoding="utf-8")
    script = re.findall(r"\$ python -c '(.*?)'\n\$ eigenveil simulate wards", page, flags=re.DOTALL)[0]
    command, shown = re.findall(r"\$ eigenveil (simulate wards[^\n]* --graph ring [^\n]*)\n(.*?)```", page, flags=re.DOTALL)[0]
    monkeypatch.chdir(tmp_path)
    subprocess.run([sys.executable, "-c", script], check=True)
    said = eigenveil(*command.split()).stdout
    # How far directions move, and the last digits of the answer, depend on noise.
    plain = [re.sub(r"\d\.\d+e-\d\d|(?<=usage: )[\d.]+", "~", " ".join(text.split())) for text in (shown, said)]
    assert plain[0] == plain[1]
    again = re.findall(r"\$ eigenveil (simulate wards[^\n]* --restarts [^\n]*)\n", page)[0]
    assert "left behind   site 3 in round" in eigenveil(*again.split()).stdout


def test_peers_as_a_process(tmp_path: Path) -> None:
    source, target = written(tmp_path, "npy"), tmp_path / "model.safetensors"
    done = run_forked("simulate", source, *SECRET, "ring", "--sites", 5, "-o", target, env=QUIET)
    assert (done.returncode, done.stderr) == (0, "")
    assert Model.load(target).guarantee.epsilon == 1
    lost = run_forked("simulate", source, *EXACT, "star", "--sites", 5, "--dead", 0, env=QUIET)
    assert (lost.returncode, lost.stdout) == (3, "")
    assert re.fullmatch(r"error: peers lost in round 1: site 0, .* cannot be reached, .*\n", lost.stderr)


def test_ctrl_c_says_which_round_was_reached(tmp_path: Path) -> None:
    source = written(tmp_path, "npy")
    command = ["simulate", source, *EXACT, "ring", "--sites", 3]
    screen, stderr = pty.openpty()
    with Forked(command, program=SLOW, stderr=stderr, env=QUIET | {"TERM": "xterm"}, cwd=tmp_path) as started:
        os.close(stderr)
        assert started.stdout.readline() == "begun\n"
        started.send_signal(signal.SIGINT)
        assert started.wait(30) == 130
    said = _read(screen)
    assert "interrupted; round 2 (power 1) had ended, and nothing was written\n" in said.replace("\r", "")
    assert "round 2 (power 1): 3 of 3 peers answered, " in said
    assert files_in(tmp_path) == {source.name}
