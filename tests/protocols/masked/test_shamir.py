"""Shares: any `threshold` of them are the secret, any fewer are nothing, and what is not a share is refused."""

import os
from collections.abc import Callable, Mapping, Sequence
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eigenveil.protocols.masked.shamir import (
    LARGEST_POINT,
    PRIME,
    SHARE_BYTES,
    Joiner,
    Polynomial,
    blended,
    polynomial,
    split,
    value_at,
)

ELEMENTS = st.one_of(st.sampled_from([0, 1, PRIME - 1]), st.integers(0, PRIME - 1))
SECRETS = ELEMENTS.map(lambda number: number.to_bytes(32, "big"))
HOLDERS = st.lists(st.integers(1, LARGEST_POINT), min_size=1, max_size=12, unique=True)


def split_one(
    secret: bytes, *, threshold: int, holders: Sequence[int], draw: Callable[[int], bytes] = os.urandom
) -> dict[int, bytes]:
    shares = split([polynomial(secret, threshold=threshold, draw=draw)], holders=holders)
    return {holder: pieces[0] for holder, pieces in shares.items()}


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
            table[place] = (table[place] - table[place - 1]) * pow(points[place] - points[place - step], -1, PRIME) % PRIME
    found = [0] * len(points)
    for point, difference in zip(reversed(points), reversed(table), strict=True):
        shifted = [0, *found[:-1]]
        found = [(up - point * same) % PRIME for up, same in zip(shifted, found, strict=True)]
        found[0] = (found[0] + difference) % PRIME
    return found


def highest_first(values: Mapping[int, int]) -> Polynomial:
    """That polynomial as a dealer has it."""
    return tuple(reversed(interpolated(values)))


def test_the_field_is_that_of_the_group_of_keys() -> None:
    """Its order as FIPS 186 gives it, and a prime; that the generator has this order is in test_curve.py."""
    assert PRIME == 2**256 - 2**224 + 2**192 - 0x4319055258E8617B0C46353D039CDAAF
    assert is_prime(PRIME, bases=100)
    assert not is_prime((2**127 - 1) * (2**89 - 1), bases=20)


@pytest.mark.parametrize(
    ("secret", "drawn", "expected"),
    [
        (5, [2, 3], {1: 10, 2: 19, 3: 32}),  # 2 x^2 + 3 x + 5
        (PRIME - 1, [PRIME - 1], {1: PRIME - 2, 2: PRIME - 3}),  # minus x minus 1
        # By Python and by Perl's bigint.
        (
            int("7" * 64, 16),
            [int("3" * 64, 16), int("c" * 64, 16)],
            {
                1: 0x77777778777777767777777777777777BA907CC9D05FD8F283BDACB47B145225,
                2: 0xDDDDDDDFDDDDDDDBDDDDDDDDDDDDDDDE640FE8828FAEA0D3F66A4857E5179339,
                77: 0xDDDDE2BCDDDDD8FEDDDDDDDDDDDDDF24B4BEC9FCF1D0B43EA7DB321276EB136F,
                65536: 0xAAAB7777444377777777777784E3149BF3E7D216C7E7F2556F9472E48CCF7777,
            },
        ),
        (9, [], {1: 9, 400: 9}),  # One holder is enough: everybody has the secret.
    ],
)
def test_known_polynomials(secret: int, drawn: list[int], expected: dict[int, int]) -> None:
    whole = secret.to_bytes(32, "big")
    shares = split_one(whole, threshold=len(drawn) + 1, holders=list(expected), draw=drawing(*drawn))
    assert numbers(shares) == expected
    assert all(len(share) == SHARE_BYTES for share in shares.values())
    if len(expected) > len(drawn):
        assert Joiner([*shares], threshold=len(drawn) + 1).join(shares) == whole


def test_draws_are_uniform_in_the_field() -> None:
    # What is not below the order is drawn again: its remainder would make small numbers likelier.
    for drawn in ([7], [PRIME, 7], [256**32 - 1, PRIME + 3, 7]):
        assert numbers(split_one(bytes(32), threshold=2, holders=[1, 2], draw=drawing(*drawn))) == {1: 7, 2: 14}


@given(st.lists(SECRETS, max_size=4), HOLDERS, st.data())
def test_any_threshold_of_the_holders_have_the_secrets(secrets: list[bytes], holders: list[int], data: st.DataObject) -> None:
    threshold = data.draw(st.integers(1, len(holders)))
    some = data.draw(st.lists(st.sampled_from(holders), min_size=threshold, unique=True))
    shares = split([polynomial(one, threshold=threshold) for one in secrets], holders=holders)
    assert list(shares) == holders
    joiner = Joiner(some, threshold)
    assert joiner.points == tuple(sorted(some)[:threshold])
    for place, secret in enumerate(secrets):
        known = {holder: shares[holder][place] for holder in some}
        assert joiner.join(known) == Joiner([*known], threshold=threshold).join(known) == secret
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
    shares = split_one(secret, threshold=threshold, holders=holders)
    known = {holder: shares[holder] for holder in seen}
    drawn = others(candidate, known, threshold)
    again = split_one(candidate, threshold=threshold, holders=holders, draw=drawing(*drawn))
    assert {holder: again[holder] for holder in seen} == known
    # And those draws differ from the real ones unless the secrets are the same: the map from draws to shares is one to one.
    assert (again == shares) == (candidate == secret)


@given(SECRETS, st.integers(1, 6), st.integers(0, 5), st.integers(1, PRIME - 1))
def test_a_false_share_makes_another_secret(secret: bytes, threshold: int, place: int, change: int) -> None:
    holders = list(range(3, 3 + threshold))
    shares = split_one(secret, threshold=threshold, holders=holders)
    holder = holders[place % threshold]
    shares[holder] = ((int.from_bytes(shares[holder], "big") + change) % PRIME).to_bytes(SHARE_BYTES, "big")
    assert Joiner([*shares], threshold=threshold).join(shares) != secret


@given(st.lists(st.tuples(SECRETS, ELEMENTS), min_size=1, max_size=5), st.integers(1, 6), st.integers(0, LARGEST_POINT))
def test_a_blend_is_the_sum_of_polynomials_at_every_point(terms: list[tuple[bytes, int]], threshold: int, point: int) -> None:
    them = [polynomial(secret, threshold=threshold) for secret, _ in terms]
    blend = blended(them, [factor for _, factor in terms])
    assert len(blend) == threshold
    values = [value_at(one, point) * factor for one, (_, factor) in zip(them, terms, strict=True)]
    assert value_at(blend, point) == sum(values) % PRIME


def test_shares_beyond_the_threshold_are_not_looked_at() -> None:
    shares = split_one(b"s" * 32, threshold=2, holders=[1, 2, 3])
    assert Joiner([*shares], threshold=2).join(shares | {3: b"nonsense"}) == b"s" * 32


def elements(*values: int) -> dict[int, bytes]:
    return {holder: value.to_bytes(SHARE_BYTES, "big") for holder, value in enumerate(values, 1)}


@pytest.mark.parametrize(
    ("shares", "threshold", "why"),
    [
        (elements(1, 2), 3, "threshold must lie between 1 and the number of holders, 2,"),
        (elements(1, 2), 0, "threshold must lie between"),
        ({}, 1, "threshold must lie between 1 and the number of holders, 0,"),
        (elements(1, PRIME), 2, "below the order"),
        (elements(1, 256**32 - 1), 2, "below the order"),
        ({1: bytes(31), 2: bytes(32)}, 2, "32 bytes, got 31"),
        ({1: bytes(32), 2: bytes(33)}, 2, "32 bytes, got 33"),
        ({0: bytes(32), 2: bytes(32)}, 2, "from 1 to 65536, got 0"),
        ({True: bytes(32), 2: bytes(32)}, 2, "from 1 to 65536, got True"),
    ],
)
def test_what_is_no_share_is_refused(shares: dict[int, bytes], threshold: int, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        Joiner([*shares], threshold=threshold).join(shares)
