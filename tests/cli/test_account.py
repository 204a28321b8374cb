"""`eigenveil account`: the numbers of the accountant, and a clear no to everything that is not a question."""

import re

import pytest

from cli.cli_tables import eigenveil, refusal
from eigenveil.privacy import Loss, mu_for, price


def shown(pattern: str, text: str) -> float:
    found = re.search(pattern, text)
    assert found is not None, text
    return float(found.group(1))


def test_gaussian_releases_cost_what_the_closed_form_says() -> None:
    result = eigenveil("account", "--gaussian", "4.0x3", "--gaussian", "5", "--delta", "1e-6")
    expected = price([Loss("gaussian", 4.0, 3), Loss("gaussian", 5.0)], delta=1e-6)
    assert shown(r"together: epsilon = ([\d.]+)", result.stdout) == pytest.approx(expected, abs=1e-4)


def test_laplace_releases_go_through_the_loss_distribution() -> None:
    result = eigenveil("account", "--gaussian", "4.0x3", "--laplace", "10", "--delta", "1e-6")
    expected = price([Loss("gaussian", 4.0, 3), Loss("laplace", 10.0)], delta=1e-6)
    assert shown(r"together: epsilon = ([\d.]+)", result.stdout) == pytest.approx(expected, abs=1e-4)


@pytest.mark.parametrize("releases", [1, 3])
def test_a_budget_needs_the_noise_that_spends_it(releases: int) -> None:
    result = eigenveil("account", "--epsilon", 0.5, "--delta", "1e-6", "--releases", releases)
    needed = shown(r"noise = ([\d.]+) x sensitivity", result.stdout)
    assert 0 <= needed / (releases**0.5 / mu_for(0.5, 1e-6)) - 1 < 1e-4
    assert "published: PPM Alg. 1" in result.stdout
    assert ("textbook" in result.stdout) == (releases == 1)


def test_a_published_calibration_is_not_stretched_beyond_its_proof() -> None:
    assert "no proof here" in eigenveil("account", "--epsilon", 99, "--delta", "1e-6").stdout


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ("", "nothing to add up"),
        ("--gaussian 4 --epsilon 1", "Give one pair or the other"),
        ("--laplace 4 --releases 2", "Give one pair or the other"),
        ("--releases 2", "nothing to add up"),
        ("--gaussian four", "must be a number such as 4.0, or 4.0x3"),
        ("--gaussian 4x", "got '4x'"),
        ("--gaussian 4x2.5", "got '4x2.5'"),
        ("--gaussian 4x0", "between 1 and"),
        ("--gaussian 4x99999999999", "between 1 and"),
        ("--gaussian 0", "the noise must be positive"),
        ("--laplace nan", "the noise must be positive"),
        ("--laplace inf", "the noise must be positive"),
        ("--laplace 0.001x1000", "protects nobody"),
        ("--epsilon 0", "--epsilon must be positive"),
        ("--epsilon inf", "--epsilon must be positive"),
        ("--epsilon 1 --releases 0", "--releases must lie between"),
        ("--epsilon 1 --delta 0", "--delta must be above 0 and below 1"),
        ("--gaussian 1 --delta 1", "--delta must be above 0 and below 1"),
        ("--gaussian 1 --delta nan", "--delta must be above 0 and below 1"),
    ],
)
def test_every_mistake_is_one_line(arguments: str, words: str) -> None:
    assert words in refusal("account", "--delta", "1e-6", *arguments.split())


def test_a_question_needs_a_delta_and_something_to_ask() -> None:
    assert "nothing to add up" in refusal("account")
    assert "--delta is missing" in refusal("account", "--gaussian", 4)
