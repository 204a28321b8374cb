"""Digests of named values: the same on every machine, and different wherever values differ."""

from itertools import combinations
from typing import Any

import numpy as np

from eigenveil.protocols.keys import digest_of

# No two of these may share a digest, although Python calls some of them equal.
DIFFERENT: list[Any] = [
    None,
    True,
    1,
    1.0,
    "1",
    b"1",
    [1],
    [[1]],
    [],
    {},
    {"a": 1},
    {"b": 1},
    {"a": 1, "b": 1},
    ["a", 1],
    np.array([1.0]),
    np.array([[1.0]]),
    np.array([1.0, 0.0]),
    np.zeros((0, 2)),
    np.zeros((2, 0)),
    0.0,
    -0.0,
]


def test_values_that_differ_have_different_digests() -> None:
    digests = [digest_of("kind", value=value) for value in DIFFERENT]
    assert not [pair for pair in combinations(range(len(digests)), 2) if digests[pair[0]] == digests[pair[1]]]
    assert digest_of("kind", other=1) != digest_of("kind", value=1) != digest_of("other", value=1)


def test_equal_values_have_the_digest_that_every_machine_has() -> None:
    array = np.arange(6.0).reshape(2, 3)
    plain = digest_of("kind", shares=(0.5, 0.5), start=array, rounds=2)
    assert plain == digest_of("kind", rounds=np.int64(2), start=np.asfortranarray(array), shares=[0.5, np.float64(0.5)])
    assert plain == digest_of("kind", rounds=2, start=array.astype(">f8"), shares=[0.5, 0.5])
    assert digest_of("kind", rounds=2, share=0.1).hex()[:16] == "a6fc1ccec37a1c1c"
