"""The public keys of a token issuer: a JSON Web Key Set, read and used. Pure.

A key is for one algorithm, by its own kind: RS256 for RSA, ES256, ES384 or ES512 by the curve; they are
what kube-apiserver can sign with. So a token cannot choose to be checked in a weaker way, nor at all
by `none`, nor by HMAC with a public key as the secret. What is no such key is passed over; a set that
has none left is an error.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

from elasti.callers.tokens import BadToken, unpack

if TYPE_CHECKING:
    from elasti.callers.tokens import Token

_MOST_KEYS = 100
_LEAST_RSA_BITS = 2048
_CURVES: dict[str, tuple[str, ec.EllipticCurve, hashes.HashAlgorithm]] = {
    "P-256": ("ES256", ec.SECP256R1(), hashes.SHA256()),
    "P-384": ("ES384", ec.SECP384R1(), hashes.SHA384()),
    "P-521": ("ES512", ec.SECP521R1(), hashes.SHA512()),
}


class KeysError(ValueError):
    """A key set that cannot be used; the text says why."""


class PublicKey(Protocol):
    """Checks signatures of one algorithm."""

    @property
    def algorithm(self) -> str:
        """The algorithm's name in a token's header."""

    def accepts(self, signed: bytes, signature: bytes) -> bool:
        """Whether this key made the signature."""


class RsaKey:
    """RS256."""

    algorithm = "RS256"

    def __init__(self, key: rsa.RSAPublicKey) -> None:
        self._key = key

    def accepts(self, signed: bytes, signature: bytes) -> bool:
        """Whether this key made the signature."""
        try:
            self._key.verify(signature, signed, padding.PKCS1v15(), hashes.SHA256())
        except InvalidSignature:
            return False
        return True


class EllipticKey:
    """ES256, ES384 or ES512: the signature is two numbers of the curve's size, one after the other."""

    def __init__(
        self, key: ec.EllipticCurvePublicKey, algorithm: str, digest: hashes.HashAlgorithm
    ) -> None:
        self.algorithm = algorithm
        self._key = key
        self._hash = ec.ECDSA(digest)
        self._size = _size(key.curve)

    def accepts(self, signed: bytes, signature: bytes) -> bool:
        """Whether this key made the signature."""
        if len(signature) != 2 * self._size:
            return False
        r = int.from_bytes(signature[: self._size], "big")
        s = int.from_bytes(signature[self._size :], "big")
        try:
            self._key.verify(encode_dss_signature(r, s), signed, self._hash)
        except InvalidSignature:
            return False
        return True


class _Jwk(msgspec.Struct, frozen=True, gc=False):
    kty: str = ""
    kid: str = ""
    use: str = "sig"
    alg: str = ""
    n: str = ""
    e: str = ""
    crv: str = ""
    x: str = ""
    y: str = ""


class _JwkSet(msgspec.Struct, frozen=True, gc=False):
    keys: tuple[_Jwk, ...]


def read_keys(document: bytes) -> dict[str, PublicKey]:
    """Return the usable keys of a set, by name. Raises KeysError where there is none."""
    try:
        found = msgspec.json.decode(document, type=_JwkSet)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise KeysError(f"not a JSON Web Key Set: {error}") from error
    keys: dict[str, PublicKey] = {}
    for jwk in found.keys[:_MOST_KEYS]:
        key = _read(jwk)
        if key is not None and jwk.alg in ("", key.algorithm):
            keys.setdefault(jwk.kid, key)
    if not keys:
        raise KeysError(
            f"none of its {len(found.keys)} keys can be used; it needs RSA keys of"
            f" {_LEAST_RSA_BITS} bits or more, or elliptic ones, with a kid"
        )
    return keys


def check_signature(token: Token, key: PublicKey) -> None:
    """Raise BadToken unless the key signed the token, in the way that the key is for."""
    if token.header.alg != key.algorithm:
        raise BadToken("it is signed in another way than the cluster signs")
    if not key.accepts(token.signed, token.signature):
        raise BadToken("its signature is wrong")


def _read(jwk: _Jwk) -> PublicKey | None:
    if not jwk.kid or jwk.use != "sig":
        return None
    try:
        match jwk.kty:
            case "RSA":
                return _rsa(jwk)
            case "EC":
                return _elliptic(jwk)
    except ValueError:
        return None
    return None


def _rsa(jwk: _Jwk) -> RsaKey | None:
    n, e = (int.from_bytes(unpack(text), "big") for text in (jwk.n, jwk.e))
    if n.bit_length() < _LEAST_RSA_BITS:
        return None
    return RsaKey(rsa.RSAPublicNumbers(e, n).public_key())


def _elliptic(jwk: _Jwk) -> EllipticKey | None:
    if jwk.crv not in _CURVES:
        return None
    algorithm, curve, digest = _CURVES[jwk.crv]
    x, y = unpack(jwk.x), unpack(jwk.y)
    if len(x) != _size(curve) or len(y) != _size(curve):
        return None
    numbers = ec.EllipticCurvePublicNumbers(
        int.from_bytes(x, "big"), int.from_bytes(y, "big"), curve
    )
    # Refuses what is not on the curve.
    return EllipticKey(numbers.public_key(), algorithm, digest)


def _size(curve: ec.EllipticCurve) -> int:
    return (curve.key_size + 7) // 8
