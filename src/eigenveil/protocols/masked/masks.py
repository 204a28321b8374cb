"""Masks: words of a cipher's stream, added to a part by one site and subtracted by another, or by the hub, modulo 2^64."""

from collections.abc import Iterable
from typing import Final

import numpy as np
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from numpy.typing import NDArray

from eigenveil.protocols.keys import digest

__all__ = ["add_masks"]

Words = NDArray[np.uint64]
# Words handled at a time, so that the working memory stays in the inner cache.
_BLOCK: Final = 1 << 14


def add_masks(words: Words, masks: Iterable[tuple[bytes, bool]], asked: bytes) -> None:
    """Add to `words`, in place, the mask of each key for the question `asked`, or subtract it where `plus` is False.

    `asked` is the digest of the question that `words` answer. A key makes one mask for each question, so masks between two
    sites cancel only if both got the same question. Answers to different questions have their noise in different steps, and
    their sum can never be read.

    >>> words = np.arange(3, dtype=np.uint64)
    >>> add_masks(words, [(bytes(32), True)], b"what?")
    >>> add_masks(words, [(bytes(32), False)], b"what?")
    >>> words.tolist()
    [0, 1, 2]
    """
    room = min(_BLOCK, len(words))
    zeros, raw = memoryview(bytes(8 * room)), memoryview(bytearray(8 * room))
    mask = np.frombuffer(raw, dtype="<u8")
    # Counting from zero is safe: each pair, round and question has an AES key of its own.
    streams = [
        (Cipher(algorithms.AES(digest("mask", key, asked)), modes.CTR(bytes(16))).encryptor(), plus)
        for key, plus in masks
    ]
    for start in range(0, len(words), _BLOCK):
        piece = words[start : start + _BLOCK]
        for stream, plus in streams:
            stream.update_into(zeros[: 8 * len(piece)], raw[: 8 * len(piece)])
            if plus:
                np.add(piece, mask[: len(piece)], out=piece)
            else:
                np.subtract(piece, mask[: len(piece)], out=piece)
