"""`Noise`: normal variates and random words from a cryptographic stream, over a hundred million a second on one core.

AES-256 in counter mode gives 64-bit words. Two words make two normals (Box and Muller 1958). The angle goes through its
half-angle tangent, which vectorises where sine and cosine do not. No privacy may rest on these normals, because they are
floating-point numbers. Noise for releases is drawn from the words, exactly (`eigenveil.privacy.noise.rounded`).
"""

import hashlib
import math
import os
import threading
from typing import Any, NoReturn, final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from eigenveil.errors import require
from eigenveil.linalg import Array

__all__ = ["Noise"]

# Normals or words per round: the working arrays of one round stay in the inner cache.
_ROUND = 1 << 15
# The plaintext: encrypting zeros in counter mode gives the key stream itself.
_ZEROS = memoryview(bytes(8 * _ROUND))


@final
class Noise:
    """A source of random words and normals. Changes in place: it never gives the same part of its stream twice.

    `Noise.fresh()` takes its key from the operating system. `Noise.seeded(n)` is for tests and studies that must be repeated.
    Anyone who knows the seed can subtract the noise, so results made with it say "reproducible, not private".

    >>> Noise.seeded(7).normal((2,)).round(3).tolist()
    [0.75, -1.454]
    """

    def __init__(self, key: bytes, *, reproducible: bool) -> None:
        require(len(key) == 32, f"key must have 32 bytes, got {len(key)}")
        self._reproducible = reproducible
        self._lock = threading.Lock()
        self._start(key)

    def _start(self, key: bytes) -> None:
        self._process = os.getpid()
        self._stream: Any = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()

    @classmethod
    def fresh(cls) -> "Noise":
        """Unpredictable noise, for real releases."""
        return cls(os.urandom(32), reproducible=False)

    @classmethod
    def seeded(cls, seed: int) -> "Noise":
        """The same noise every time, for tests: not private."""
        return cls(hashlib.sha256(f"eigenveil noise {seed}".encode()).digest(), reproducible=True)

    @property
    def reproducible(self) -> bool:
        """Whether someone who knows the seed can draw the same noise again. Such noise protects nobody."""
        return self._reproducible

    def normal(self, shape: tuple[int, ...]) -> Array:
        """Independent standard normals of this shape.

        Tails reach 9.4 standard deviations, as far as 64 bits go.
        """
        out = np.empty(math.prod(shape))
        room = min(len(out) + 1, _ROUND)
        words, squares = np.empty(8 * room, dtype=np.uint8), np.empty(room)
        with self._lock:
            self._part_from_parent()
            for start in range(0, len(out), _ROUND):
                piece = out[start : start + _ROUND]
                whole = piece if len(piece) % 2 == 0 else np.empty(len(piece) + 1)
                raw = words[: 8 * len(whole)]
                self._stream.update_into(_ZEROS[: len(raw)], raw)
                _box_muller(raw.view(np.uint64), whole, squares[: len(whole) // 2])
                if whole is not piece:
                    piece[:] = whole[:-1]
        return out.reshape(shape)

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` words of the stream, each of 64 uniform and independent bits.

        >>> Noise.seeded(7).words(2).dtype
        dtype('uint64')
        """
        out = np.empty(count, dtype=np.uint64)
        raw = out.view(np.uint8)
        with self._lock:
            self._part_from_parent()
            for start in range(0, len(raw), len(_ZEROS)):
                piece = raw[start : start + len(_ZEROS)]
                self._stream.update_into(_ZEROS[: len(piece)], piece)
        return out

    def _part_from_parent(self) -> None:
        """Take a new key after a fork. Otherwise parent and child would draw the same noise, which cancels between them."""
        if os.getpid() != self._process and not self._reproducible:
            self._start(os.urandom(32))

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Noise cannot be copied or stored: two copies would draw the same noise")


def _box_muller(words: NDArray[np.uint64], out: Array, squares: Array) -> None:
    """Fill `out`, of even length, from as many random words; `squares`, half that size, is working space."""
    half = len(out) // 2
    # radius = sqrt(-2 log u) with u in (0, 1), and t = tan(angle / 2) with angle uniform in (-pi, pi).
    radius, tangent = out[:half], out[half:]
    np.copyto(radius, words[:half], casting="unsafe")
    radius += 0.5
    radius *= 2.0**-64
    np.log(radius, out=radius)
    radius *= -2.0
    # A word that rounds up to 2^64 gives log(1) = 0, which becomes minus zero here; its root would stay negative.
    np.abs(radius, out=radius)
    np.sqrt(radius, out=radius)
    np.multiply(words[half:].view(np.int64), math.pi * 2.0**-64, out=tangent)
    np.tan(tangent, out=tangent)
    # cos = (1 - t^2) / (1 + t^2) and sin = 2 t / (1 + t^2); `squares` is 1 + t^2, then 1 - t^2.
    np.multiply(tangent, tangent, out=squares)
    squares += 1.0
    radius /= squares
    tangent *= radius
    tangent *= 2.0
    np.subtract(2.0, squares, out=squares)
    radius *= squares
