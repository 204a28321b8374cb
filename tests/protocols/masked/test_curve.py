"""Sums of points in plain Python, against those of `cryptography` and against the group's own laws."""

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from eigenveil.protocols.keys import ORDER, coordinates, public_of
from eigenveil.protocols.masked.shamir import weighted_sum

SCALARS = st.one_of(st.sampled_from([1, 2, 3, ORDER - 1, ORDER - 2]), st.integers(1, ORDER - 1))
FACTORS = st.one_of(st.sampled_from([0, 1, 2, 2**128 - 1, ORDER - 1, ORDER, ORDER + 1]), st.integers(0, 2**128))
# The generator, as FIPS 186 gives it.
GENERATOR = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)


def point(scalar: int) -> bytes:
    return public_of(scalar.to_bytes(32, "big"))


def expected(scalars: Sequence[int], factors: Sequence[int]) -> bytes | None:
    total = sum(scalar * factor for scalar, factor in zip(scalars, factors, strict=True)) % ORDER
    return point(total) if total else None


def test_the_generator_has_the_order_of_the_field_of_shares() -> None:
    assert coordinates(point(1)) == GENERATOR
    assert weighted_sum([point(1)], [ORDER]) is None
    assert weighted_sum([point(1)], [ORDER - 1]) == bytes([2 + (GENERATOR[1] + 1) % 2]) + point(1)[1:]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.tuples(SCALARS, FACTORS), max_size=5))
def test_sums_of_points_are_points_of_sums(pairs: list[tuple[int, int]]) -> None:
    scalars, factors = [scalar for scalar, _ in pairs], [factor for _, factor in pairs]
    assert weighted_sum([point(scalar) for scalar in scalars], factors) == expected(scalars, factors)


@pytest.mark.parametrize(
    ("scalars", "factors"),
    [
        # A point twice, a point and its opposite, zero on the way, and the next one after it.
        ([5, 5], [1, 1]),
        ([5, ORDER - 5], [1, 1]),
        ([5, ORDER - 5], [3, 3]),
        ([5, ORDER - 5, 7], [1, 1, 1]),
        # Doubled, the first is the second; or its opposite.
        ([1, 2], [2, 1]),
        ([1, ORDER - 2], [2, 1]),
        ([1, ORDER - 2, 9], [6, 3, 1]),
        ([4], [0]),
        ([], []),
    ],
)
def test_sums_where_the_formula_for_two_different_points_does_not_hold(scalars: list[int], factors: list[int]) -> None:
    assert weighted_sum([point(scalar) for scalar in scalars], factors) == expected(scalars, factors)


def test_what_is_no_point_is_refused() -> None:
    with pytest.raises(ValueError, match=r".+"):
        weighted_sum([point(1), bytes([2]) + (1).to_bytes(32, "big")], [1, 1])
    with pytest.raises(ValueError, match="33 bytes"):
        weighted_sum([point(1)[:-1]], [1])
