"""Small versions of benchmarks/gossip/: they run, and what they print is what they say it is."""

import math
from typing import Any

import numpy as np
import pytest

from benchmarks.gossip import convergence, figure2, figure3, runs

EPSILON = 5.0


def small() -> Any:
    """Forty rows of four columns in the unit ball."""
    rows = np.random.default_rng(5).standard_normal((40, 4)) * [3.0, 1.5, 1.0, 0.5]
    return runs.Table.of("wine", rows / np.linalg.norm(rows, axis=1).max())


def large(count: int = 4000) -> Any:
    """Enough rows that every noise is small beside them."""
    rows = np.random.default_rng(6).standard_normal((count, 4)) * [3.0, 1.5, 1.0, 0.5]
    return runs.Table.of("wine", rows / np.linalg.norm(rows, axis=1).max())


def test_alg_1_without_noise_finds_the_left_vector() -> None:
    table = small()
    errors = [
        runs.sine(runs.run_published(table.parts, runs.Tuned.by_corollary(table, rounds=rounds, scale=0.0), seed=1), table.left)
        for rounds in (2, 8, 30)
    ]
    assert errors[0] > errors[1] > errors[2]
    assert errors[2] < 1e-6


def test_the_law_that_is_tuned_by_is_that_of_the_runs() -> None:
    table = small()
    tuned = runs.Tuned.by_corollary(table, rounds=3, scale=0.5)
    errors = [runs.sine(runs.run_published(table.parts, tuned, seed=seed), table.left) for seed in range(60)]
    off = np.std(errors) / math.sqrt(len(errors))
    # Five standard errors.
    assert abs(np.mean(errors) - tuned.expected_error(table)) < 5 * off
    shorter = runs.Tuned.by_corollary(table, rounds=1, scale=0.5)
    assert abs(shorter.expected_error(table) - np.mean(errors)) > 5 * off


def test_one_person_alone_in_a_column_is_seen_with_certainty_and_dropping_hides_it() -> None:
    table = small()
    tuned = runs.Tuned.by_corollary(table, rounds=3, scale=0.1)
    assert "infinite divergence" in figure3.infinite(table, tuned, share=1e-2)
    alone = figure3.with_a_column_of_one(table)
    assert np.linalg.norm(alone.rows, axis=1).max() <= 1
    assert np.count_nonzero(alone.rows[:, -1]) == 1
    assert runs.delta_of(runs.leaks(alone, tuned, share=1e-2), EPSILON) < 1


def test_what_is_tuned_is_within_the_limit_of_the_paper() -> None:
    table = small()
    for epsilon, (tuned, delta) in figure2.tune(table, [EPSILON, 100.0], share=1e-4).items():
        assert delta <= runs.LIMITS["wine"][runs.EPSILONS.index(epsilon)]
        assert delta == runs.delta_of(runs.leaks(table, tuned, share=1e-4), epsilon)


@pytest.fixture(scope="module")
def errors() -> dict[tuple[str, float], list[tuple[float, float]]]:
    """Of a few runs of every method but the published one."""
    table = large()
    wanted = {method: (40 if "covariance" in method else 4) for method in figure2.methods(table)}
    return {
        (method, EPSILON): [run(seed, EPSILON) for seed in range(wanted[method])]
        for method, run in figure2.methods(table).items()
    }


def test_pairwise_noise_is_near_a_curators_and_noise_at_every_peer_is_not(errors: Any, capsys: Any) -> None:
    right = {method: float(np.mean([pair[1] for pair in found])) for (method, _), found in errors.items()}
    # The noise is sqrt(4 / 3) and 2 times the curator's; 40 runs tell means to about a tenth.
    assert 0.9 < right["pairwise, covariance"] / right["curator, covariance"] < 1.5
    assert 1.5 < right["independent, covariance"] / right["curator, covariance"] < 2.6
    assert right["LDP, exact calibration"] > right["independent, covariance"]
    figure2.judge(large(40), errors, "covariance")
    assert "| 40 and 40 |" in capsys.readouterr().out


def test_the_judge_sees_what_is_too_far(capsys: Any) -> None:
    def of(ratio: float, size: float) -> dict[tuple[str, float], list[tuple[float, float]]]:
        pair = (size, size)
        return {("curator, power", 1.0): [pair], ("pairwise, power", 1.0): [(ratio * size, ratio * size)]}

    assert figure2.judge(small(), of(1.2, 0.1), "power")
    assert not figure2.judge(small(), of(1.4, 0.1), "power")
    assert figure2.judge(small(), of(1.0, 0.95), "power")
    assert "saturated" in capsys.readouterr().out


@pytest.mark.parametrize("kind", convergence.KINDS)
@pytest.mark.parametrize("consensus", ["metropolis", "chebyshev"])
def test_differences_shrink_as_predicted(kind: str, consensus: Any) -> None:
    ((_, graph),) = convergence.graphs([9], [kind])
    shares: list[float] = []
    for steps in (1, 3, 9):
        predicted, measured = convergence.left_over(graph, consensus, steps)
        assert abs(measured - predicted) <= max(0.01 * predicted, 1e-13)
        shares.append(predicted)
    assert shares == sorted(shares, reverse=True)
