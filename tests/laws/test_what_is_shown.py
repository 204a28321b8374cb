"""What is shown follows from what was released: with equal released values, neighbouring tables have the same public results.

A second run, on neighbouring rows, gets the first one's released values in place of its own: shares of masked sums and noisy
parts of peers too. Then the model's file to the last byte, its report, all warnings and the sizes of all messages must be the
same: an exact count, norm or share in any of them would differ.
"""

import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, assume, given, settings
from scipy import sparse

from eigenveil import FederatedPCA, FederatedStream, GossipPCA, PrivatePCA, StreamingPCA
from eigenveil.linalg import Array
from eigenveil.protocols.messages import Contribution, Message
from eigenveil.protocols.wire import encode
from eigenveil.runtimes.local import Faults
from eigenveil.show.report import model_report
from laws.parties.transcripts import Transcript
from laws.tapes import Tape, taped
from laws.test_whole_fit import fits

# A plan rehearses on rows of its own, and what it releases there is not meant.
pytestmark = pytest.mark.usefixtures("unplanned")
DIM = 5


def shown(run: Callable[[], Any], path: Path) -> tuple[Any, ...]:
    """All that others may see of a fit: the model's file, its report as data, its guarantee, and what it warned of."""
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = run().model_
        report = model_report(model, kind="fit", title="a fit")
    model.save(path)
    told = sorted(str(warning.message) for warning in caught)
    return path.read_bytes(), repr(report), repr(model), str(model.guarantee), told


def require_alike(fitted: Callable[[Any], Any], tables: Sequence[Any], path: Path) -> tuple[Any, ...]:
    """Assert that fits of two tables show the same, the second of which sees what the first released."""
    first = Transcript()
    second = Transcript(first)
    found = []
    for table, transcript in zip(tables, (first, second), strict=True):
        with pytest.MonkeyPatch.context() as patch:
            transcript.watch(patch)
            found.append(shown(partial(fitted, table), path))
    # What is protected did differ: otherwise nothing would have been compared.
    pairs = zip(first.values, second.values, strict=True)
    assert any(not np.array_equal(left, right) for left, right in pairs)
    assert found[0] == found[1]
    return found[0]


class Post:
    """Who sent how many bytes of what to whom, in order. Changes in place."""

    def __init__(self) -> None:
        self.lines: list[tuple[str, str, str, int]] = []
        self.faults = Faults(meddle=self._note)

    def _note(self, message: Message) -> Iterable[Message]:
        self.lines.append((type(message.body).__name__, message.sender, message.receiver, len(encode(message))))
        return [message]


def require_alike_between_parties(fitted: Callable[[Any, Faults], Any], tables: Sequence[Any], path: Path) -> None:
    """The same where parties release for themselves: messages have equal sizes as well."""
    first = Tape()
    tapes, found = (first, first.playing()), []
    for table, tape in zip(tables, tapes, strict=True):
        post = Post()

        def run(table: Any = table, faults: Faults = post.faults, tape: Tape = tape) -> Any:
            with taped(tape):
                return fitted(table, faults)

        found.append((shown(run, path), sorted(post.lines)))
        assert len(post.lines) > 0
    assert tapes[1].at == len(first.released)
    pairs = zip(*(tape.held for tape in tapes), strict=True)
    assert any(not np.array_equal(one.value, other.value) for one, other in pairs)
    assert found[0] == found[1]


def people(count: int = 2000) -> Array:
    return np.random.default_rng(4).standard_t(3, (count, DIM)) * [5, 3, 2, 1, 0.5] + 2


def neighbours_of(rows: Array, relation: str) -> Array:
    """The same without a row, or with a long one in place of another."""
    if relation == "add-remove":
        return rows[1:]
    other = rows.copy()
    other[0] = 1e6
    return other


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(case=fits())
def test_fits_of_small_tables_show_what_was_released(case: tuple[dict[str, Any], Any, Any], tmp_path: Path) -> None:
    options, *tables = case
    if options["neighbours"] == "zero-out":
        # A table without somebody has another number of people, which this relation makes public.
        return

    # A row of zeros in the place of another one changes no sum, whatever the signs of its zeros.
    assume(not np.array_equal(*(data.toarray() if sparse.issparse(data) else data for data, _ in tables)))

    def fitted(table: Any) -> Any:
        data, ids = table
        return PrivatePCA(2, person=ids, random_state=1, **options).fit(data)

    # Four people are too few to find a bound among, and the law holds for any number.
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("eigenveil.tasks.fit.search._ENOUGH", -math.inf)
        patch.setattr("eigenveil.tasks.fit.units._ENOUGH", -math.inf)
        require_alike(fitted, tables, tmp_path / "m.safetensors")


@pytest.mark.parametrize("relation", ["add-remove", "replace-one", "zero-out"])
@pytest.mark.parametrize("more", [{}, {"scale": "private"}, {"row_bound": 9.0}, {"method": "power"}], ids=str)
def test_a_fit_shows_what_was_released(relation: str, more: dict[str, Any], tmp_path: Path) -> None:
    rows = people()
    options: dict[str, Any] = {"epsilon": 2.0, "delta": 1e-6, "neighbours": relation, "random_state": 1} | more
    tables = (rows, neighbours_of(rows, relation))
    text = require_alike(PrivatePCA(2, **options).fit, tables, tmp_path / "m.safetensors")
    assert (b"norms" in text[0]) == (not more or "method" in more)


@pytest.mark.parametrize("relation", ["add-remove", "replace-one", "zero-out"])
@pytest.mark.parametrize("trust", ["hub", "site", "both", "masked"])
def test_a_fit_over_sites_shows_what_was_released(relation: str, trust: str, tmp_path: Path) -> None:
    rows = people(6000)
    epsilon = (8.0, 4.0) if trust == "both" else 4.0
    options: dict[str, Any] = {"epsilon": epsilon, "delta": 1e-6, "neighbours": relation, "trust": trust}
    options["random_state"] = 1
    sites = [[table, rows[:2000], rows[2000:4000]] for table in (rows[4000:], neighbours_of(rows[4000:], relation))]

    def fitted(tables: Any, faults: Faults) -> Any:
        return FederatedPCA(2, **options, faults=faults).fit(tables)

    require_alike_between_parties(fitted, sites, tmp_path / "m.safetensors")


@pytest.mark.parametrize("relation", ["add-remove", "replace-one", "zero-out"])
@pytest.mark.parametrize("noise", ["independent", "pairwise"])
@pytest.mark.parametrize("method", ["power", "covariance"])
def test_a_fit_between_peers_shows_what_was_released(relation: str, noise: str, method: str, tmp_path: Path) -> None:
    rows = people(6000)
    options: dict[str, Any] = {"epsilon": 6.0, "delta": 1e-6, "neighbours": relation, "noise": noise, "method": method}
    options |= {"graph": "complete", "random_state": 1}
    first, *others = np.split(rows, 4)
    peers = [[table, *others] for table in (first, neighbours_of(first, relation))]

    def fitted(tables: Any, faults: Faults) -> Any:
        return GossipPCA(2, **options, faults=faults).fit(tables)

    require_alike_between_parties(fitted, peers, tmp_path / "m.safetensors")


@pytest.mark.parametrize("relation", ["add-remove", "replace-one", "zero-out"])
@pytest.mark.parametrize("trust", ["site", "masked"])
def test_slots_show_what_was_released(relation: str, trust: str, tmp_path: Path) -> None:
    rows = people(6000)
    options: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-6, "neighbours": relation, "trust": trust, "row_bound": 9.0}
    first, *others = np.split(rows, 4)
    tables = [[table, *others] for table in (first, neighbours_of(first, relation))]

    def fitted(sites: Any, faults: Faults) -> Any:
        pca = FederatedStream(2, **options, slots=3, random_state=1, faults=faults)
        for at in range(2):
            pca.partial_fit({f"site {name}": table[at::2] for name, table in enumerate(sites)})
        return pca

    require_alike_between_parties(fitted, tables, tmp_path / "m.safetensors")


@pytest.mark.parametrize("relation", ["replace-one", "zero-out"])
@pytest.mark.parametrize("publish", ["sync", "block", "continual"])
def test_a_stream_shows_what_was_released(relation: str, publish: str, tmp_path: Path) -> None:
    rows = people(3000)
    options: dict[str, Any] = {"epsilon": 4.0, "delta": 1e-6, "neighbours": relation, "publish": publish}
    options |= {"block_size": 1000, "random_state": 1} | ({"horizon": 3000} if publish == "continual" else {})

    def run(table: Array) -> Any:
        pca: Any = StreamingPCA(2, **options).partial_fit(table[:1500]).partial_fit(table[1500:])
        return pca.sync() if publish == "sync" else pca

    require_alike(run, (rows, neighbours_of(rows, relation)), tmp_path / "m.safetensors")


@pytest.mark.parametrize("leak", ["a setting", "a warning"])
def test_an_exact_count_is_convicted(leak: str, tmp_path: Path) -> None:
    rows = people()

    def fitted(table: Array) -> Any:
        pca: Any = PrivatePCA(2, epsilon=2.0, delta=1e-6, random_state=1).fit(table)
        if leak == "a warning":
            warnings.warn(f"{len(table)} rows", stacklevel=1)
        else:
            pca.model_ = replace(pca.model_, settings=pca.model_.settings | {"rows": len(table)})
        return pca

    with pytest.raises(AssertionError):
        require_alike(fitted, (rows, rows[1:]), tmp_path / "m.safetensors")


def test_a_message_as_long_as_a_table_is_convicted(tmp_path: Path) -> None:
    first, second = np.split(people(), 2)

    def fitted(tables: Any, faults: Faults) -> Any:
        assert faults.meddle is not None
        list(faults.meddle(Message("a site", "the hub", Contribution(round=0, arrays=(np.zeros(len(tables[0])),)))))
        return FederatedPCA(2, epsilon=2.0, delta=1e-6, trust="site", random_state=1, faults=faults).fit(tables)

    with pytest.raises(AssertionError):
        require_alike_between_parties(fitted, [[first, second], [first[1:], second]], tmp_path / "m.safetensors")
