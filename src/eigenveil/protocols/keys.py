"""Keys, signatures and sealed bundles: P-256, Ed25519, HKDF and ChaCha20-Poly1305, all from `cryptography`.

A site's `Identity` lasts for years and only signs. Every key that hides numbers is made anew for each study. Such a key is a
number x from 1 to q - 1, and its public half is the point x G of the curve P-256 (FIPS 186). The q points of that curve are a
group of prime order, so every point but one is a sound key, and x can be shared out in the field of the numbers modulo q.
"""

import hashlib
import struct
from collections.abc import Callable, Mapping, Sequence
from functools import lru_cache
from typing import Any, final

import numpy as np
from cryptography.exceptions import InvalidSignature, InvalidTag
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey, Ed25519PublicKey
from cryptography.hazmat.primitives.ciphers import Cipher, algorithms, modes
from cryptography.hazmat.primitives.ciphers.aead import ChaCha20Poly1305
from cryptography.hazmat.primitives.hashes import SHA256
from cryptography.hazmat.primitives.kdf.hkdf import HKDF
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat

from eigenveil.errors import require

__all__ = [
    "KEY",
    "ORDER",
    "POINT",
    "SEAL",
    "SIGNATURE",
    "Identity",
    "agree",
    "coordinates",
    "digest",
    "digest_of",
    "draw_key",
    "is_public_key",
    "open_bundle",
    "private_key",
    "public_of",
    "seal_bundle",
    "signed_by",
    "stream",
]

KEY = 32
SIGNATURE = 64
# The bytes that sealing adds to a bundle.
SEAL = 16
_PURPOSE = b"eigenveil masked sums 1"
# The number of points of P-256, a prime.
ORDER = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
# Bytes of a public key: a point, compressed.
POINT = 33
_CURVE = ec.SECP256R1()


@final
class Identity:
    """A site's long-term Ed25519 key, used only to sign. The `public` half is on the roster that all sites agree on.

    >>> me = Identity.fresh()
    >>> signed_by(me.public, b"words", me.sign(b"words"))
    True
    >>> Identity(me.private_bytes()).public == me.public
    True
    """

    def __init__(self, private: bytes) -> None:
        require(len(private) == KEY, f"an identity has {KEY} bytes, got {len(private)}")
        self._key = Ed25519PrivateKey.from_private_bytes(private)
        self.public = self._key.public_key().public_bytes_raw()

    @classmethod
    def fresh(cls) -> "Identity":
        """A new identity, from the operating system's random bytes."""
        return cls(Ed25519PrivateKey.generate().private_bytes_raw())

    def private_bytes(self) -> bytes:
        """The private key, to keep in a safe place: with it, anyone can sign for the site."""
        return self._key.private_bytes_raw()

    def sign(self, statement: bytes) -> bytes:
        return self._key.sign(statement)

    def __repr__(self) -> str:
        return f"Identity(public={self.public.hex()[:16]}...)"


# In a simulation all sites check the same signatures. Nothing here is secret: halves that are public, and digests.
@lru_cache(maxsize=4096)
def signed_by(public: bytes, statement: bytes, signature: bytes) -> bool:
    """Whether `signature` is the signature of `statement` by the identity with this public half."""
    try:
        Ed25519PublicKey.from_public_bytes(public).verify(signature, statement)
    except (InvalidSignature, ValueError):
        return False
    return True


def digest(kind: str, *fields: bytes | memoryview | int | str) -> bytes:
    """The SHA-256 of a statement of this `kind`. Each field comes with its length, so no two statements have the same bytes.

    >>> digest("list", b"ab", b"c") == digest("list", b"a", b"bc")
    False
    """
    # The purpose comes first, so that an identity never signs bytes that mean something in another protocol.
    state = hashlib.sha256(_PURPOSE)
    for field in (kind, *fields):
        if isinstance(field, int):
            field = field.to_bytes(8, "big")
        raw = field.encode() if isinstance(field, str) else field
        state.update(len(raw).to_bytes(8, "big"))
        state.update(raw)
    return state.digest()


def digest_of(kind: str, **values: Any) -> bytes:
    """The SHA-256 of public values by name, equal on every machine. What a class calls its fields does not matter.

    Values are None, truth values, numbers, texts, bytes, arrays, and lists and mappings of these.

    >>> digest_of("plan", rounds=2, shares=(0.5, 0.5)) == digest_of("plan", shares=[0.5, 0.5], rounds=2)
    True
    >>> digest_of("plan", rounds=2) == digest_of("plan", rounds=2.0)
    False
    """
    return digest(kind, _encoded(values))


def _encoded(value: Any) -> bytes:
    """The bytes of a value, which begin with its type, so that no two values have the same."""
    # Truth values are whole numbers to Python, so they come first.
    if value is None or isinstance(value, bool):
        return digest("constant", str(value))
    if isinstance(value, (int, np.integer)):
        return digest("integer", str(int(value)))
    if isinstance(value, float):
        return digest("number", struct.pack("<d", value))
    if isinstance(value, (str, bytes)):
        return digest("text" if isinstance(value, str) else "bytes", value)
    if isinstance(value, np.ndarray):
        # Little-endian, and with its shape, or two arrays with the same numbers would have one digest.
        return digest("array", *value.shape, b"", np.asarray(value, dtype="<f8").tobytes())
    if isinstance(value, Mapping):
        return digest("names", *(field for name in sorted(value) for field in (name, _encoded(value[name]))))
    if isinstance(value, Sequence):
        return digest("list", *map(_encoded, value))
    raise TypeError(f"a digest cannot cover a {type(value).__name__}")


def draw_key(draw: Callable[[int], bytes]) -> bytes:
    """A private key, evenly from 1 to q - 1; `draw(n)` gives n fresh random bytes.

    >>> len(draw_key(stream(bytes(32))))
    32
    """
    while True:
        drawn = draw(KEY)
        # A remainder would make small numbers likelier. One draw in 2^32 is repeated.
        if 0 < int.from_bytes(drawn, "big") < ORDER:
            return drawn


def private_key(raw: bytes) -> ec.EllipticCurvePrivateKey:
    """A key from its 32 bytes; a `ValueError` if they are not a number from 1 to q - 1."""
    require(len(raw) == KEY, f"a private key has {KEY} bytes, got {len(raw)}")
    return ec.derive_private_key(int.from_bytes(raw, "big"), _CURVE)


def public_of(private: bytes) -> bytes:
    """The public half of a private key. A `ValueError` where there is none."""
    return private_key(private).public_key().public_bytes(Encoding.X962, PublicFormat.CompressedPoint)


# Each point is read once when it comes and once when it is used. Nothing here is secret.
@lru_cache(maxsize=4096)
def _point(public: bytes) -> ec.EllipticCurvePublicKey:
    # Only one encoding of each point, or one key would have several digests. That the point is on the curve is checked below.
    require(len(public) == POINT, f"a public key has {POINT} bytes, got {len(public)}")
    return ec.EllipticCurvePublicKey.from_encoded_point(_CURVE, public)


def is_public_key(public: bytes) -> bool:
    """Whether these bytes are a public key. All points of this group are safe to agree with, except zero, which has other bytes.

    >>> is_public_key(bytes(33)), is_public_key(public_of(bytes(range(32))))
    (False, True)
    """
    try:
        _point(public)
    except ValueError:
        return False
    return True


def coordinates(public: bytes) -> tuple[int, int]:
    """The two coordinates of a public key. A `ValueError` if it is not one."""
    numbers = _point(public).public_numbers()
    return numbers.x, numbers.y


def agree(private: ec.EllipticCurvePrivateKey, public: bytes, purpose: bytes) -> bytes:
    """The secret that two holders of keys share, for one `purpose`. A `ValueError` for an invalid public key.

    >>> one, two = bytes(range(32)), bytes(range(1, 33))
    >>> agree(private_key(one), public_of(two), b"x") == agree(private_key(two), public_of(one), b"x")
    True
    """
    # Two keys always give the same raw secret. HKDF derives an independent one for each purpose.
    shared = private.exchange(ec.ECDH(), _point(public))
    return HKDF(SHA256(), KEY, salt=_PURPOSE, info=purpose).derive(shared)


def stream(key: bytes) -> Callable[[int], bytes]:
    """A source of bytes that look random without `key`, and are the same each time with it.

    >>> draw, again = stream(bytes(32)), stream(bytes(32))
    >>> draw(5) + draw(7) == again(12)
    True
    """
    source = Cipher(algorithms.AES(key), modes.CTR(bytes(16))).encryptor()
    return lambda count: source.update(bytes(count))


def seal_bundle(key: bytes, bundle: bytes, *, about: bytes) -> bytes:
    """A bundle that only holders of `key` can read, and no one can change. A key seals one bundle, so a fixed nonce is safe."""
    return ChaCha20Poly1305(key).encrypt(bytes(12), bundle, about)


def open_bundle(key: bytes, sealed: bytes, *, about: bytes) -> bytes | None:
    """The bundle; None if it was sealed with another key or for another purpose.

    >>> key = bytes(32)
    >>> open_bundle(key, seal_bundle(key, b"hello", about=b"a to b"), about=b"b to a") is None
    True
    """
    try:
        return ChaCha20Poly1305(key).decrypt(bytes(12), sealed, about)
    except (InvalidTag, ValueError):
        return None
