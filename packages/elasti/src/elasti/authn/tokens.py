"""ServiceAccount tokens (JSON Web Tokens) and the public keys that check them. Pure.

A token is three base64url parts: a header that names the key, claims, a signature. Nothing of
it is believed before the signature is checked, but for the key's name; and the header chooses
nothing. A key is for one algorithm, by its own kind: RS256 for RSA, ES256, ES384 or ES512 by
the curve; they are what kube-apiserver can sign with. So a token cannot choose to be checked in
a weaker way, nor at all by `none`, nor by HMAC with a public key as the secret. Keys of other
kinds are passed over; a set that has none left is an error.

What a valid signature does not tell: whether the account or the pod still exists. The token of
a deleted one is good until it expires (an hour or so, as kubelets mount them); only the API
server knows better (`token_review`).
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
import math
from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import encode_dss_signature

if TYPE_CHECKING:
    from collections.abc import Collection


@dataclasses.dataclass(frozen=True, slots=True)
class TokenDecision:
    """Whose token it is, or why it is nobody's (`user` is empty then).

    `expires`: when the token ends, in seconds since 1970, where that is known.
    """

    user: str
    why: str = ""
    expires: float = math.inf


class VerifierUnavailable(Exception):
    """Nothing can be said of a token now; the text says why, and what to do about it."""


class TokenVerifier(Protocol):
    """Knows tokens."""

    async def verify(self, token: str) -> TokenDecision:
        """Judge a token for our audience. Raises Unverifiable."""

    async def ready(self) -> str:
        """Find out whether tokens can be judged, and say how. Raises Unverifiable."""


T = TypeVar("T")

LEEWAY = 60.0
"""How far clocks may differ, in seconds; kube-apiserver allows as much."""
MAX_TOKEN_BYTES = 16 * 1024

_ALPHABET = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
_ACCOUNT = "system:serviceaccount:"


class InvalidToken(Exception):
    """A token that proves nothing; the text says why, and nothing that is in the token."""


class TokenHeader(msgspec.Struct, frozen=True, gc=False):
    """What a token says of itself. `crit` names extensions that must be understood: none is."""

    alg: str = ""
    kid: str = ""
    crit: msgspec.Raw | None = None


class _AccountClaim(msgspec.Struct, frozen=True, gc=False):
    name: str = ""


class _KubernetesClaim(msgspec.Struct, frozen=True, gc=False):
    namespace: str = ""
    serviceaccount: _AccountClaim = _AccountClaim()


class TokenClaims(msgspec.Struct, frozen=True, gc=False, rename={"kubernetes": "kubernetes.io"}):
    """What a token claims. One without an end is not taken: it could never be withdrawn."""

    iss: str
    sub: str
    aud: str | tuple[str, ...]
    exp: float
    nbf: float = 0.0
    iat: float = 0.0
    kubernetes: _KubernetesClaim = _KubernetesClaim()

    @property
    def audiences(self) -> tuple[str, ...]:
        """Whom the token is for."""
        return (self.aud,) if isinstance(self.aud, str) else self.aud


@dataclasses.dataclass(frozen=True, slots=True)
class SignedToken:
    """A token's parts, none of them checked yet; `signed` is what the signature is of."""

    header: TokenHeader
    claims: TokenClaims
    signed: bytes = dataclasses.field(repr=False)
    signature: bytes = dataclasses.field(repr=False)


def parse_token(text: str) -> SignedToken:
    """Take a token apart. Raises BadToken."""
    if len(text) > MAX_TOKEN_BYTES or not text.isascii():
        raise InvalidToken("it is no ServiceAccount token")
    parts = text.encode().split(b".")
    if len(parts) != 3:
        raise InvalidToken("it is no ServiceAccount token")
    header = _decode_json(parts[0], TokenHeader, "header")
    if header.crit is not None:
        raise InvalidToken("its header asks for an extension that is not known here")
    if not header.kid:
        raise InvalidToken("its header names no key")
    return SignedToken(
        header=header,
        claims=_decode_json(parts[1], TokenClaims, "claims"),
        signed=b".".join(parts[:2]),
        signature=_decode_part(parts[2]),
    )


def user_of(claims: TokenClaims, *, issuers: Collection[str], audience: str, now: float) -> str:
    """Return whom claims with a good signature name, at a time in seconds. Raises BadToken."""
    if claims.iss not in issuers:
        raise InvalidToken("it was issued by somebody else than this cluster")
    if audience not in claims.audiences:
        raise InvalidToken("it is for another audience")
    if now >= claims.exp + LEEWAY:
        raise InvalidToken("it has expired")
    if now < max(claims.nbf, claims.iat) - LEEWAY:
        raise InvalidToken("it is not valid yet")
    about = claims.kubernetes
    if claims.sub != f"{_ACCOUNT}{about.namespace}:{about.serviceaccount.name}":
        raise InvalidToken("it names no ServiceAccount")
    return claims.sub


def decode_base64url(text: str) -> bytes:
    """Read base64url without padding. Raises ValueError."""
    data = text.encode()
    if not _ALPHABET.issuperset(data):
        raise ValueError("not base64url")
    try:
        return base64.b64decode(data + b"=" * (-len(data) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError("not base64url") from error


def _decode_part(part: bytes) -> bytes:
    try:
        return decode_base64url(part.decode())
    except ValueError as error:
        raise InvalidToken("it is no ServiceAccount token") from error


def _decode_json(part: bytes, kind: type[T], name: str) -> T:
    try:
        return msgspec.json.decode(_decode_part(part), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidToken(f"its {name} cannot be read") from error


_MAX_KEYS = 100
_MIN_RSA_BITS = 2048
_CURVES: dict[str, tuple[str, ec.EllipticCurve, hashes.HashAlgorithm]] = {
    "P-256": ("ES256", ec.SECP256R1(), hashes.SHA256()),
    "P-384": ("ES384", ec.SECP384R1(), hashes.SHA384()),
    "P-521": ("ES512", ec.SECP521R1(), hashes.SHA512()),
}


class KeySetError(ValueError):
    """A key set that cannot be used; the text says why."""


class PublicKey(Protocol):
    """Checks signatures of one algorithm."""

    @property
    def algorithm(self) -> str:
        """The algorithm's name in a token's header."""

    def accepts(self, signed: bytes, signature: bytes) -> bool:
        """Whether this key made the signature."""


class RsaPublicKey:
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


class EllipticPublicKey:
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
        raise KeySetError(f"not a JSON Web Key Set: {error}") from error
    keys: dict[str, PublicKey] = {}
    for jwk in found.keys[:_MAX_KEYS]:
        key = _public_key(jwk)
        if key is not None and jwk.alg in ("", key.algorithm):
            keys.setdefault(jwk.kid, key)
    if not keys:
        raise KeySetError(
            f"none of its {len(found.keys)} keys can be used; it needs RSA keys of"
            f" {_MIN_RSA_BITS} bits or more, or elliptic ones, with a kid"
        )
    return keys


def check_signature(token: SignedToken, key: PublicKey) -> None:
    """Raise BadToken unless the key signed the token, in the way that the key is for."""
    if token.header.alg != key.algorithm:
        raise InvalidToken("it is signed in another way than the cluster signs")
    if not key.accepts(token.signed, token.signature):
        raise InvalidToken("its signature is wrong")


def _public_key(jwk: _Jwk) -> PublicKey | None:
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


def _rsa(jwk: _Jwk) -> RsaPublicKey | None:
    n, e = (int.from_bytes(decode_base64url(text), "big") for text in (jwk.n, jwk.e))
    if n.bit_length() < _MIN_RSA_BITS:
        return None
    return RsaPublicKey(rsa.RSAPublicNumbers(e, n).public_key())


def _elliptic(jwk: _Jwk) -> EllipticPublicKey | None:
    if jwk.crv not in _CURVES:
        return None
    algorithm, curve, digest = _CURVES[jwk.crv]
    x, y = decode_base64url(jwk.x), decode_base64url(jwk.y)
    if len(x) != _size(curve) or len(y) != _size(curve):
        return None
    numbers = ec.EllipticCurvePublicNumbers(
        int.from_bytes(x, "big"), int.from_bytes(y, "big"), curve
    )
    # Refuses what is not on the curve.
    return EllipticPublicKey(numbers.public_key(), algorithm, digest)


def _size(curve: ec.EllipticCurve) -> int:
    return (curve.key_size + 7) // 8
