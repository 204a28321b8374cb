"""`Noise`: normal variates and random words from a cryptographic stream, over a hundred million a second on one core.

AES-256 in counter mode gives 64-bit words. Two words make two normals (Box and Muller 1958). The angle goes through its
half-angle tangent, which vectorises where sine and cosine do not. No privacy may rest on these normals, because they are
floating-point numbers. Noise for releases is drawn from the words, exactly (`eigenveil.privacy.noise.rounded`).
"""

import hashlib
import math
import os
import threading
import time
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final, NoReturn, final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from eigenveil.errors import require
from eigenveil.linalg import Array

__all__ = ["Noise", "Words"]

# Normals or words per round: the working arrays of one round stay in the inner cache.
_ROUND = 1 << 15
# The plaintext: encrypting zeros in counter mode gives the key stream itself.
_ZEROS = memoryview(bytes(8 * _ROUND))


@final
class Noise:
    """A source of random words and normals. Changes in place: it never gives the same words twice.

    `Noise.fresh()` takes its key, and more entropy for each draw, from the operating system. `Noise.seeded(n)` is for tests and
    studies that must be repeated. Anyone who knows the seed can subtract the noise, so results made with it say "reproducible,
    not private".

    >>> Noise.seeded(7).normal((2,)).round(3).tolist()
    [0.75, -1.454]
    """

    def __init__(self, key: bytes, *, reproducible: bool, renewed: bool = False) -> None:
        """The words of one stream, which `key` alone decides: whoever has it draws the same. If `renewed`, see `batch`."""
        require(len(key) == 32, f"key must have 32 bytes, got {len(key)}")
        self._key, self._reproducible, self._renewed = key, reproducible, renewed
        # Of one stream each draw takes the next part. How much all draws have taken, in bytes, and which thread draws now.
        self._lock, self._stream = threading.Lock(), _stream_of(key)
        self._taken, self._thread = 0, 0
        if not renewed:
            _SHARED.add(self)

    @classmethod
    def fresh(cls) -> "Noise":
        """Unpredictable noise, for real releases."""
        return cls(os.urandom(32), reproducible=False, renewed=True)

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
        with self.batch() as batch:
            for start in range(0, len(out), _ROUND):
                piece = out[start : start + _ROUND]
                whole = piece if len(piece) % 2 == 0 else np.empty(len(piece) + 1)
                raw = words[: 8 * len(whole)]
                batch.fill(raw)
                _box_muller(raw.view(np.uint64), whole, squares[: len(whole) // 2])
                if whole is not piece:
                    piece[:] = whole[:-1]
        return out.reshape(shape)

    def words(self, count: int) -> NDArray[np.uint64]:
        """The next `count` words of the stream, each of 64 uniform and independent bits.

        >>> Noise.seeded(7).words(2).dtype
        dtype('uint64')
        """
        with self.batch() as words:
            return words(count)

    @contextmanager
    def batch(self) -> Iterator["Words"]:
        """Words for one draw. `fresh` noise gives those of a new stream, because forks and clones of the machine have ours.

        Noise that is made twice is never renewed: two peers add theirs with opposite signs, and mirrored entries have the same.

        Its key is SHA-256 of this source's key, fresh entropy of the kernel and the time. Forks get other entropy. A clone of a
        virtual machine may get the same until its kernel notices, but not at the same nanosecond. To whoever lacks this
        source's key, digests of different texts under it are independent keys.
        """
        if not self._renewed:
            with self._lock:
                self._thread, words = threading.get_ident(), Words(self._stream)
                try:
                    yield words
                finally:
                    self._thread, self._taken = 0, self._taken + words.taken
        else:
            times = f"{time.time_ns()} {time.perf_counter_ns()} {threading.get_ident()} {os.getpid()}".encode()
            yield Words(_stream_of(hashlib.sha256(self._key + os.urandom(32) + times).digest()))

    def forked(self) -> None:
        """In a child: forget a draw of another thread, which is not here to end it. Its words are drawn by whoever draws next."""
        if self._thread not in (0, threading.get_ident()):
            self._lock, self._thread, self._stream = threading.Lock(), 0, _stream_of(self._key, skip=self._taken)

    def __reduce__(self) -> NoReturn:
        raise TypeError("a Noise cannot be copied or stored: two copies would draw the same noise")


@final
class Words:
    """Random words for one release: `words(count)` are the next ones. Changes in place, and is used up with its batch."""

    __slots__ = ("_stream", "taken")

    def __init__(self, stream: Any) -> None:
        self._stream, self.taken = stream, 0

    def __call__(self, count: int) -> NDArray[np.uint64]:
        out = np.empty(count, dtype=np.uint64)
        raw = out.view(np.uint8)
        for start in range(0, len(raw), len(_ZEROS)):
            self.fill(raw[start : start + len(_ZEROS)])
        return out

    def fill(self, raw: NDArray[np.uint8]) -> None:
        """Put the next words into `raw`, which has at most as many bytes as one round."""
        self._stream.update_into(_ZEROS[: len(raw)], raw)
        self.taken += len(raw)


def _stream_of(key: bytes, *, skip: int = 0) -> Any:
    """The stream of a key, without its first `skip` bytes."""
    stream = Cipher(algorithms.AES(key), modes.CTR((skip // 16).to_bytes(16, "big"))).encryptor()
    stream.update(bytes(skip % 16))
    return stream


# Sources with one stream for all draws, which one lock guards.
_SHARED: Final = weakref.WeakSet[Noise]()


def _after_fork() -> None:
    for noise in list(_SHARED):
        noise.forked()


os.register_at_fork(after_in_child=_after_fork)


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
