"""The consent screen of every situation, word for word, as a terminal of 80 columns shows it: consent_screens.txt.

`python tests/commands/network/test_consent_screens.py` writes that file anew. Read the difference before you keep it.
"""

import io
import re
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from rich.console import Console

from commands.network.network_folders import COLUMNS, Folders
from eigenveil.commands._consent import question_of
from eigenveil.commands.peer import _Peer
from eigenveil.commands.site import _Site
from eigenveil.core.accounting import Budget
from eigenveil.core.ledger import Charge
from eigenveil.ledger.durable import DurableLedger, StudyBudget
from eigenveil.network.agents.peer import PeerAgent
from eigenveil.network.agents.site_data import SiteData
from eigenveil.network.agents.star import SiteAgent
from eigenveil.network.certificates import Keys
from eigenveil.network.policy import Policy
from eigenveil.network.study import StudyFile
from eigenveil.show.disclosure import disclose
from eigenveil.show.progress import StatusWriter

GOLDEN: Final = Path(__file__).with_name("consent_screens.txt")
WIDTH: Final = 80
EXACT: Final = {"epsilon": None, "delta": None, "no_privacy": True}
LIFE: Final = Budget(9.0, 1e-5)

# The settings of `Folders`, and `rules`: True for a policy with pins, or further sections of it.
SITUATIONS: Final[dict[str, dict[str, Any]]] = {
    "masked, with a policy": {"rules": True, "study": {"purpose": "what goes with high blood pressure"}},
    "masked, without a policy": {},
    "masked, after another study on the same people": {"rules": True, "earlier": True},
    "masked, stopped before and started again": {"rules": True, "again": True},
    "noise at the sites, with a policy": {"rules": True, "privacy": {"trust": "site"}},
    "noise at the sites, rows of the same person": {
        "task": {"person": "patient_id"},
        "privacy": {"trust": "site", "person_sites": 2},
        "rules": True,
    },
    "noise at the hub, with a policy": {"privacy": {"trust": "hub"}, "rules": '[limits]\ntrust = ["hub"]\n'},
    "noise at the hub, without a policy": {"privacy": {"trust": "hub"}},
    "noise at both, without a policy": {"privacy": {"trust": "both", "epsilon": [5.0, 2.0]}},
    "noise at the sites of a tree, without a policy": {"sites": 5, "fanout": 2, "privacy": {"trust": "site"}},
    "peers with noise in pairs, with a policy": {"peers": 4, "rules": True},
    "peers with noise of their own, without a policy": {"peers": 4, "privacy": {"noise": "independent", "restarts": 2}},
    "a rehearsal": {"rehearsal": {"seed": 3}},
    "no privacy, under masks": {"privacy": EXACT},
    "no privacy, without masks": {"privacy": {"trust": None, **EXACT}},
    "no privacy, between peers": {"peers": 4, "privacy": {"noise": None, **EXACT}},
}


def fixed(study: StudyFile) -> StudyFile:
    """The same study at addresses that do not change from run to run."""
    document = study.document()
    for role in ("node", "peer"):
        for at, party in enumerate(document.get(role, [])):
            party["address"] = f"{role}{at}.example.org:7443"
    if "hub" in document:
        document["hub"]["address"] = "hub.example.org:7443"
    return StudyFile.of(document)


def screen(
    folder: Path, *, rules: bool | str = False, earlier: bool = False, again: bool = False, terminal: bool = True, **settings: Any
) -> str:
    """What is shown up to the question, with pins and digests as x."""
    folders = Folders(folder, **settings)
    study, me = fixed(folders.study), folders.names[0]
    kind: Any = _Peer(None, Path("ledger.db")) if study.topology == "gossip" else _Site(None)
    keys = Keys.load(folders.of(me) / f"{folders.of(me).name}.key")
    table = folders.of(me) / "people.parquet"
    if study.params.person is not None:
        people = np.arange(len(folders.tables[me])) // 5
        pq.write_table(pq.read_table(table).append_column(study.params.person, pa.array(people)), table)
    policy = folders.policy(me, more=rules if isinstance(rules, str) else "")
    holding = SiteData.read(table, study)
    with DurableLedger.open(folder / "ledger.db") as ledger:
        if earlier:
            ledger.join(
                StudyBudget(
                    study="1" * 64,
                    title="lungs",
                    dataset="patients",
                    trust="masked",
                    epsilon=2.0,
                    delta=1e-6,
                    mu=0.4,
                    unit=study.unit,
                ),
                life=LIFE,
            )
            ledger.commit("1" * 64, 0, came=b"", replies=[b"x"], charges=[Charge("mean", 0.1)])
        made: Any = PeerAgent if study.topology == "gossip" else SiteAgent
        agent: SiteAgent | PeerAgent = made(
            study, keys=keys, holding=holding, ledger=ledger, dataset="patients", policy=Policy.read(policy) if rules else None
        )
        if again:
            ledger.join(agent.account, life=LIFE)
        joined = kind.joined(ledger.studies()[-1]) if again else None
        voice, shown = StatusWriter(), io.StringIO()
        voice.terminal = terminal
        voice._console = Console(file=shown, width=WIDTH, highlight=False, markup=False, emoji=False)
        where = {"data": table, "ledger": Path("/srv/ledger.db")}
        disclose(voice, agent, holding, ledger, leaving=kind.leaving(agent), joined=joined, **where)
    lines = [line.rstrip() for line in shown.getvalue().splitlines()]
    text = re.sub(r"\b[0-9a-f]{4}( [0-9a-f]{4}){7}\b", " ".join(["xxxx"] * 8), "\n".join(lines))
    text = re.sub(r"\b[0-9a-f]{64}\b", "x" * 64, text)
    text = re.sub(r"\d{4}-\d\d-\d\d", "2026-01-01", text)
    # A study that goes on is not asked about again.
    return f"{text}\n" + ("" if again else f"{question_of(study)}\n")


def written(screens: Mapping[str, str]) -> str:
    return "\n".join(f"=== {name} ===\n\n{shown}" for name, shown in screens.items())


def kept() -> dict[str, str]:
    found = re.split(r"^=== (.*) ===\n\n", GOLDEN.read_text(encoding="utf-8"), flags=re.M)[1:]
    return {name: text.rstrip("\n") + "\n" for name, text in zip(found[::2], found[1::2], strict=True)}


@pytest.mark.parametrize("name", SITUATIONS)
def test_the_screen_is_word_for_word_the_one_in_the_file(tmp_path: Path, name: str) -> None:
    assert screen(tmp_path, **SITUATIONS[name]) == kept()[name]


def test_the_file_has_these_situations_and_fits_a_small_terminal() -> None:
    screens = kept()
    assert list(screens) == list(SITUATIONS)
    for name, shown in screens.items():
        assert all(len(line) <= WIDTH for line in shown.splitlines())
        # In this order: who asks, what is learned, the columns, the rows, the cost, the rounds, and only then the question.
        order = ["wants to use your data", "learn", "- Columns used: ", "- Rows: ", "- People: ", "- Cost to each ", "- Rounds: "]
        places = [shown.lower().index(part.lower()) for part in order]
        assert places == sorted(places)
        asked = name == "masked, stopped before and started again" or shown.splitlines()[-1] in (
            "Take part? [y/N]",
            'Type "no privacy" to take part',
        )
        assert asked


def test_the_columns_of_the_study_are_all_named(tmp_path: Path) -> None:
    shown = screen(tmp_path)
    assert f"{', '.join(COLUMNS)} (5 of the 6 in people.parquet)" in " ".join(shown.split())


if __name__ == "__main__":
    screens = {}
    for name, settings in SITUATIONS.items():
        with tempfile.TemporaryDirectory() as folder:
            screens[name] = screen(Path(folder), **settings)
    GOLDEN.write_text(written(screens), encoding="utf-8")
