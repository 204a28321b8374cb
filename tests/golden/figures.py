"""Forecasts to eleven digits, files that fits write, and verdicts of a short audit."""

import hashlib
import json
import re
import tempfile
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

import numpy as np
from safetensors import safe_open

from eigenveil import FederatedPCA, GossipPCA, Ledger, PrivatePCA, PrivateRecommender, StreamingPCA
from eigenveil.audit import CASES, audit
from eigenveil.core.accounting import Budget
from eigenveil.ledger.durable import DurableLedger
from eigenveil.ledger.replay import written_export
from eigenveil.ledger.store import NotedHead
from eigenveil.plan.facts import METHODS, Facts
from eigenveil.plan.rehearsal import forecast
from eigenveil.plan.spectrum import Spectrum
from eigenveil.show.report import model_report
from eigenveil.show.values import to_json

__all__ = ["files", "forecasts", "verdicts"]

_ROWS: Final = np.random.default_rng(22).standard_normal((600, 5)) * [5, 3, 1, 1, 1]
_GIVEN: Final[dict[str, Any]] = {"epsilon": 3.0, "delta": 1e-6, "row_bound": 12.0, "random_state": 4}
# The name of a stream, and digests.
_NAMES: Final = re.compile(r"(?<=stream )[0-9a-f]{16}|[0-9a-f]{64}|bits [0-9a-f]{12}")
# Enough for a seeded release of each case. What is refuted at full length is for `make audit`.
_RUNS: Final = 6
# Keys of secure aggregation come from the operating system, so what an attacker makes of messages differs from run to run.
_KEYED: Final = ("masked/messages",)


def forecasts() -> dict[str, str]:
    """What the planner expects of every method, for a narrow and a wide table."""
    entries = {}
    for dim, bound in ((20, 1.0), (20, None), (120, 1.0)):
        for method in METHODS:
            sites = 1 if method.partition("/")[0] in ("curator", "stream") else 6
            facts = Facts(
                dim=dim,
                rank=3,
                people=20_000,
                budget=Budget(1.0, 1e-6),
                spectrum=Spectrum.guessed(dim),
                sites=sites,
                row_bound=bound,
                trust=(),
            )
            expected = forecast(facts, method, fits=2)
            known = asdict(expected) | {"params": expected.call, "method": None, "unknown": None}
            entries[f"{method}, {dim} columns, bound {bound}"] = "\n".join(
                f"{name} {_rounded(value, indent=None)}" for name, value in known.items() if value is not None
            )
    return entries


def files() -> dict[str, str]:
    """The header of each kind of file, and a digest of its arrays; and the report of each fit."""
    fits: dict[str, Any] = {
        "one table": PrivatePCA(2, **_GIVEN).fit(_ROWS),
        "sites": FederatedPCA(2, **_GIVEN, trust="site").fit(np.array_split(_ROWS, 4)),
        "peers": GossipPCA(2, **_GIVEN, graph="complete", method="covariance").fit(np.array_split(_ROWS, 4)),
        "stream": StreamingPCA(2, **_GIVEN, block_size=100).fit(_ROWS),
        "exact": PrivatePCA(2, epsilon=None).fit(_ROWS),
    }
    entries = {}
    with tempfile.TemporaryDirectory() as folder:
        for name, fit in fits.items():
            path = Path(folder, "file")
            fit.save(path)
            entries[f"model, {name}"] = _contents(path)
            entries[f"report, {name}"] = _rounded(json.loads(to_json(model_report(fit.model_))))
        users = (np.random.default_rng(8).random((700, 8)) < np.repeat([0.7, 0.2], 4)).astype(float)
        budget: dict[str, Any] = {"epsilon": 3.0, "delta": 1e-4, "random_state": 4, "on_noise": "warn"}
        recommender = Path(folder, "recommender")
        PrivateRecommender(2, **budget).fit(users).save(recommender)
        entries["recommender"] = _contents(recommender)
        for name, given in {"private": _GIVEN, "exact": {"epsilon": None}}.items():
            state = Path(folder, name)
            StreamingPCA(2, **given, block_size=100).fit(_ROWS[:250]).save_state(state)
            # Each stream has a name of its own, which no other stream has.
            entries[f"state of a stream, {name}"] = _NAMES.sub("...", _contents(state))
        entries |= _ledger(Path(folder, "people.ledger"))
    return entries


def _ledger(path: Path) -> dict[str, str]:
    """What others see of a ledger: its export and its head, without what is drawn for it and the day."""
    ledger = Ledger.open(path, "patients", epsilon=4.0, delta=1e-5)
    PrivatePCA(2, **_GIVEN, ledger=ledger).fit(_ROWS)
    ledger.spend(0.125, label="by hand")
    with ledger.reserve(0.25, label="a study of mine") as reserve:
        reserve.spend(0.0625, label="first")
    with DurableLedger.reading(path) as kept:
        lines = list(written_export(kept.entries()))
        head = NotedHead.of(kept.last).text()
    shown = [_rounded(_public(json.loads(line)), indent=None) for line in lines]
    return {"ledger, export": "\n".join(shown), "ledger, head": _rounded(_public(json.loads(head)), indent=None)}


def _public(entry: dict[str, Any]) -> Any:
    """A line of an export, with dots for the day and for what is random."""
    known = {name: "..." if name == "time" else value for name, value in entry.items()}
    return json.loads(re.sub(r'(?<=")([0-9a-f]{64}|[0-9a-f]{32})(?=")', "...", json.dumps(known)))


def verdicts() -> dict[str, str]:
    """What a few runs of each case of the audit show, with one seed."""
    entries = {}
    for name, case in CASES.items():
        # Alone: cases that are attacked together share a level, and a new one would change what is found of all others.
        verdict = asdict(*audit([case], runs=_RUNS, seed=1, jobs=1))
        if name in _KEYED:
            verdict["findings"] = [{"hypothesis": finding["hypothesis"]} for finding in verdict["findings"]]
        findings = verdict.pop("findings")
        del verdict["seconds"], verdict["case"]
        entries[name] = "\n".join(_rounded(part, indent=None) for part in (verdict, *findings))
    return entries


def _contents(path: Path) -> str:
    with safe_open(str(path), framework="numpy") as file:
        header = {name: _parsed(text) for name, text in sorted(file.metadata().items())}
        arrays = {name: file.get_tensor(name) for name in sorted(file.keys())}
    shapes = {name: f"{array.dtype} {array.shape}" for name, array in arrays.items()}
    digest = hashlib.sha256(b"".join(np.ascontiguousarray(array).tobytes() for array in arrays.values())).hexdigest()
    return f"{_rounded(header)}\n{_rounded(shapes)}\nbits {digest[:12]}"


def _parsed(text: str) -> Any:
    try:
        return json.loads(text)
    except ValueError:
        return text


def _rounded(value: Any, *, indent: int | None = 1) -> str:
    """A value as JSON with eleven digits of every number."""

    def plain(one: Any) -> Any:
        if isinstance(one, float):
            return float(f"{one:.11g}")
        if isinstance(one, dict):
            return {str(name): plain(inner) for name, inner in one.items()}
        return [plain(inner) for inner in one] if isinstance(one, list | tuple) else one

    return json.dumps(plain(value), indent=indent, ensure_ascii=False, default=str)
