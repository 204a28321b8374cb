"""Shares: any `threshold` of them are the secret, any fewer are nothing, and what is not a share is refused."""

from collections.abc import Callable, Mapping, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigenveil.protocols.masked.shamir import LARGEST_POINT, PRIME, SHARE_BYTES, Joiner, join, split, split_many

TOP = 2**256
SECRETS = st.one_of(st.sampled_from([bytes(32), b"\xff" * 32]), st.binary(min_size=32, max_size=32))
HOLDERS = st.lists(st.integers(1, LARGEST_POINT), min_size=1, max_size=12, unique=True)


def drawing(*numbers: int) -> Callable[[int], bytes]:
    """Gives these and no more."""
    left = list(numbers)
    return lambda size: left.pop(0).to_bytes(size, "big")


def numbers(shares: Mapping[int, bytes]) -> dict[int, int]:
    return {holder: int.from_bytes(share, "big") for holder, share in shares.items()}


def is_prime(number: int, *, bases: int) -> bool:
    """Miller and Rabin: a composite number passes one random base with probability below 1/4."""
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    random = Random(0)

    def passes(base: int) -> bool:
        powers = [pow(base, odd << step, number) for step in range(twos)]
        return powers[0] == 1 or number - 1 in powers

    return all(passes(random.randrange(2, number - 1)) for _ in range(bases))


def interpolated(values: Mapping[int, int]) -> list[int]:
    """Coefficients, lowest first, of the one polynomial of degree below len(values) that takes them: Newton's differences."""
    points = list(values)
    table = [values[point] for point in points]
    for step in range(1, len(points)):
        for place in range(len(points) - 1, step - 1, -1):
            table[place] = (
                (table[place] - table[place - 1]) * pow(points[place] - points[place - step], -1, PRIME) % PRIME
            )
    found = [0] * len(points)
    for point, difference in zip(reversed(points), reversed(table), strict=True):
        shifted = [0, *found[:-1]]
        found = [(up - point * same) % PRIME for up, same in zip(shifted, found, strict=True)]
        found[0] = (found[0] + difference) % PRIME
    return found


def test_the_field_is_the_first_prime_above_all_secrets() -> None:
    assert is_prime(PRIME, bases=100)
    assert not any(is_prime(above, bases=20) for above in range(TOP + 1, PRIME, 2))
    assert not is_prime((2**127 - 1) * (2**89 - 1), bases=20)


@pytest.mark.parametrize(
    ("secret", "drawn", "expected"),
    [
        (5, [2, 3], {1: 10, 2: 19, 3: 32}),  # 2 x^2 + 3 x + 5
        (TOP - 1, [PRIME - 1], {1: TOP - 2, 2: TOP - 3}),  # minus x
        # (2^256)(x + 1) - 1, and 2^256 is -297.
        (TOP - 1, [TOP], {1: PRIME - 595, 2: PRIME - 892}),
        # By bc and by Perl's bigint.
        (
            int("7" * 64, 16),
            [int("3" * 64, 16), int("c" * 64, 16)],
            {
                1: 0x777777777777777777777777777777777777777777777777777777777777764D,
                2: 0xDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDB89,
                77: 0xDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDDD83247,
                65536: 0x7777777777777777777777777777777777777777777777777777773BDCEF7777,
            },
        ),
        (9, [], {1: 9, 400: 9}),  # One holder is enough: everybody has the secret.
    ],
)
def test_known_polynomials(secret: int, drawn: list[int], expected: dict[int, int]) -> None:
    whole = secret.to_bytes(32, "big")
    shares = split(whole, threshold=len(drawn) + 1, holders=list(expected), draw=drawing(*drawn))
    assert numbers(shares) == expected
    assert all(len(share) == SHARE_BYTES for share in shares.values())
    if len(expected) > len(drawn):
        assert join(shares, threshold=len(drawn) + 1) == whole


def test_draws_are_uniform_in_the_field() -> None:
    # 33 bytes hold 255 whole copies of the field, and what is left above them is drawn again.
    for drawn in ([7], [PRIME + 7], [254 * PRIME + 7], [255 * PRIME, 7], [256**33 - 1, 255 * PRIME + 3, 7]):
        assert numbers(split(bytes(32), threshold=2, holders=[1, 2], draw=drawing(*drawn))) == {1: 7, 2: 14}
    assert 255 * PRIME < 256**33 < 256 * PRIME


@given(st.lists(SECRETS, max_size=4), HOLDERS, st.data())
def test_any_threshold_of_the_holders_have_the_secrets(
    secrets: list[bytes], holders: list[int], data: st.DataObject
) -> None:
    threshold = data.draw(st.integers(1, len(holders)))
    some = data.draw(st.lists(st.sampled_from(holders), min_size=threshold, unique=True))
    shares = split_many(secrets, threshold=threshold, holders=holders)
    assert list(shares) == holders
    joiner = Joiner(some, threshold)
    assert joiner.points == tuple(sorted(some)[:threshold])
    for place, secret in enumerate(secrets):
        known = {holder: shares[holder][place] for holder in some}
        assert joiner.join(known) == join(known, threshold=threshold) == secret
        values = numbers(dict(list(known.items())[:threshold]))
        assert interpolated(values)[0] == int.from_bytes(secret, "big")


def others(secret: bytes, shares: Mapping[int, bytes], threshold: int) -> list[int]:
    """The draws that make `secret` look like `shares`, threshold - 1 of them: there is exactly one such list."""
    assert len(shares) == threshold - 1
    return interpolated({0: int.from_bytes(secret, "big")} | numbers(shares))[:0:-1]


@given(SECRETS, SECRETS, HOLDERS.filter(lambda holders: len(holders) > 1), st.data())
def test_one_share_too_few_fits_every_secret_equally(
    secret: bytes, candidate: bytes, holders: list[int], data: st.DataObject
) -> None:
    threshold = data.draw(st.integers(2, len(holders)))
    seen = data.draw(st.lists(st.sampled_from(holders), min_size=threshold - 1, max_size=threshold - 1, unique=True))
    shares = split(secret, threshold=threshold, holders=holders)
    known = {holder: shares[holder] for holder in seen}
    drawn = others(candidate, known, threshold)
    again = split(candidate, threshold=threshold, holders=holders, draw=drawing(*drawn))
    assert {holder: again[holder] for holder in seen} == known
    # And those draws differ from the real ones unless the secrets are the same: the map from draws to shares is one to one.
    assert (again == shares) == (candidate == secret)


@given(SECRETS, st.integers(1, 6), st.integers(0, 5), st.integers(1, PRIME - 1))
def test_a_false_share_makes_another_secret(secret: bytes, threshold: int, place: int, change: int) -> None:
    holders = list(range(3, 3 + threshold))
    shares = split(secret, threshold=threshold, holders=holders)
    holder = holders[place % threshold]
    shares[holder] = ((int.from_bytes(shares[holder], "big") + change) % PRIME).to_bytes(33, "big")
    try:
        assert join(shares, threshold=threshold) != secret
    except ValueError as error:
        assert "one secret" in str(error)


def test_shares_beyond_the_threshold_are_not_looked_at() -> None:
    shares = split(b"s" * 32, threshold=2, holders=[1, 2, 3])
    assert join(shares | {3: b"nonsense"}, threshold=2) == b"s" * 32


def elements(*values: int) -> dict[int, bytes]:
    return {holder: value.to_bytes(SHARE_BYTES, "big") for holder, value in enumerate(values, 1)}


@pytest.mark.parametrize(
    ("shares", "threshold", "why"),
    [
        (elements(1, 2), 3, "threshold must lie between 1 and the number of holders, 2,"),
        (elements(1, 2), 0, "threshold must lie between"),
        ({}, 1, "threshold must lie between 1 and the number of holders, 0,"),
        (elements(1, PRIME), 2, "below the prime"),
        ({1: bytes(32), 2: bytes(33)}, 2, "33 bytes, got 32"),
        ({1: bytes(33), 2: bytes(34)}, 2, "33 bytes, got 34"),
        ({0: bytes(33), 2: bytes(33)}, 2, "from 1 to 65536, got 0"),
        ({True: bytes(33), 2: bytes(33)}, 2, "from 1 to 65536, got True"),
        (elements(TOP), 1, "one secret of 32 bytes"),
        (elements(PRIME - 1, PRIME - 1), 2, "one secret of 32 bytes"),
    ],
)
def test_what_is_no_share_is_refused(shares: dict[int, bytes], threshold: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        join(shares, threshold=threshold)


@pytest.mark.parametrize(
    ("secret", "threshold", "holders", "why"),
    [
        (bytes(31), 1, [1], "32 bytes, got 31"),
        (bytes(33), 1, [1], "32 bytes, got 33"),
        (bytes(32), 2, [1], "threshold must lie between 1 and the number of holders, 1,"),
        (bytes(32), 0, [1, 2], "threshold must lie between"),
        (bytes(32), 1, [], "threshold must lie between"),
        (bytes(32), 2, [0, 1], "got 0"),
        (bytes(32), 2, [1, LARGEST_POINT + 1], "got 65537"),
        (bytes(32), 2, [4, 4, 5], "distinct"),
    ],
)
def test_what_cannot_be_split_is_refused(secret: bytes, threshold: int, holders: Sequence[int], why: str) -> None:
    with pytest.raises(ValueError, match=why):
        split(secret, threshold=threshold, holders=holders)


def test_other_refusals() -> None:
    with pytest.raises(ValueError, match="draw must return the 33 bytes"):
        split(bytes(32), threshold=2, holders=[1, 2], draw=lambda size: bytes(size - 1))
    with pytest.raises(ValueError, match=r"got none for \[2\]"):
        Joiner([1, 2], threshold=2).join({1: bytes(33), 3: bytes(33)})
    assert "weights" not in repr(Joiner([1, 2], threshold=2))
