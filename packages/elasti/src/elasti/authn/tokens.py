"""ServiceAccount tokens (JSON Web Tokens) and the public keys that check them. Pure.

PyJWT checks signatures; what it may not decide is decided here. A key is for one algorithm, by its own
kind: RS256 for RSA, ES256, ES384 or ES512 by the curve; they are what kube-apiserver can sign with. So a
token cannot choose to be checked in a weaker way, nor at all by `none`, nor by HMAC with a public key as
the secret; of its header only the key's name is read before that. The times are checked here too, by a
clock that tests set. Keys of other kinds are skipped; a set without a usable key is an error.

A valid signature does not prove that the account or the pod still exists. The token of a deleted
one is valid until it expires (about an hour, as kubelets mount them); only the API server knows
(`TokenReviewVerifier`).
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias

import msgspec

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePublicKey
    from cryptography.hazmat.primitives.asymmetric.rsa import RSAPublicKey


@dataclasses.dataclass(frozen=True, slots=True)
class TokenDecision:
    """The user of a token, or the reason for which it is refused."""

    user: str
    """Empty for a token that is refused."""
    why: str = ""
    expires: float = math.inf
    """When the token expires, in seconds since 1970, if that is known."""


class VerifierUnavailable(Exception):
    """Tokens cannot be checked now; the message gives the reason and the remedy."""


class TokenVerifier(Protocol):
    """Checks tokens."""

    async def verify(self, token: str) -> TokenDecision:
        """Check a token for our audience. Raises VerifierUnavailable."""

    async def ready(self) -> str:
        """Return how tokens are checked, once that is known. Raises VerifierUnavailable."""


LEEWAY = 60.0
"""How far clocks may differ, in seconds; kube-apiserver allows as much."""
MAX_TOKEN_BYTES = 16 * 1024

_ACCOUNT = "system:serviceaccount:"
# Three parts in base64url without padding, and nothing else: one token has one spelling.
_SHAPE = re.compile(r"[\w-]+\.[\w-]+\.[\w-]*", re.ASCII)


class InvalidToken(Exception):
    """A token that is not valid; the message gives the reason, without any part of the token."""


class _AccountClaim(msgspec.Struct, frozen=True, gc=False):
    name: str = ""


class _KubernetesClaim(msgspec.Struct, frozen=True, gc=False):
    namespace: str = ""
    serviceaccount: _AccountClaim = _AccountClaim()


class TokenClaims(msgspec.Struct, frozen=True, gc=False, rename={"kubernetes": "kubernetes.io"}):
    """The claims of a token. A token that never expires is refused: it could never be withdrawn."""

    iss: str
    sub: str
    aud: str | tuple[str, ...]
    exp: float
    nbf: float = 0.0
    iat: float = 0.0
    kubernetes: _KubernetesClaim = _KubernetesClaim()

    @property
    def audiences(self) -> tuple[str, ...]:
        """The audiences that the token is for."""
        return (self.aud,) if isinstance(self.aud, str) else self.aud


_MAX_KEYS = 100
_MIN_RSA_BITS = 2048
_CURVES = {"P-256": "ES256", "P-384": "ES384", "P-521": "ES512"}
_KEY_FIELDS = ("kty", "n", "e", "crv", "x", "y")

RawKey: TypeAlias = "RSAPublicKey | EllipticCurvePublicKey"


class KeySetError(ValueError):
    """A key set that cannot be used; the message gives the reason."""


@dataclasses.dataclass(frozen=True, slots=True)
class PublicKey:
    """A key, and the one algorithm that it is for."""

    algorithm: str
    key: RawKey


def key_id(token: str) -> str:
    """Return the name of the key that a token claims to be signed with. Raises InvalidToken."""
    if len(token) > MAX_TOKEN_BYTES or not _SHAPE.fullmatch(token):
        raise InvalidToken("it is not a ServiceAccount token")
    import jwt  # noqa: PLC0415 -- 7 MiB, which a program that asks the API server does without

    try:
        header = jwt.PyJWS().get_unverified_header(token)
    except (jwt.PyJWTError, RecursionError) as error:
        raise InvalidToken("its header or encoding cannot be read") from error
    if "crit" in header:
        raise InvalidToken("its header asks for an extension that is not supported")
    name = header.get("kid")
    if not isinstance(name, str) or not name:
        raise InvalidToken("its header names no key")
    return name


def verified_claims(token: str, key: PublicKey) -> TokenClaims:
    """Return the claims of a token that the key signed, in the way that the key is for.

    Raises InvalidToken. The token went through `key_id` before.
    """
    import jwt  # noqa: PLC0415 -- as above

    try:
        payload = jwt.PyJWS().decode(token, key.key, algorithms=[key.algorithm])
    except jwt.InvalidAlgorithmError as error:
        raise InvalidToken("it is not signed with the algorithm of its key") from error
    except jwt.PyJWTError as error:
        raise InvalidToken("its signature is wrong") from error
    try:
        return msgspec.json.decode(payload, type=TokenClaims)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise InvalidToken("its claims cannot be read") from error


def user_of(claims: TokenClaims, *, issuers: Collection[str], audience: str, now: float) -> str:
    """Return the user that claims with a valid signature name, at a time in seconds. Raises InvalidToken."""
    if claims.iss not in issuers:
        raise InvalidToken("it was not issued by this cluster")
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


class _JwkSet(msgspec.Struct, frozen=True, gc=False):
    keys: tuple[dict[str, Any], ...]


def read_keys(document: bytes) -> dict[str, PublicKey]:
    """Return the usable keys of a set, by name. Raises KeySetError if no key is usable."""
    try:
        found = msgspec.json.decode(document, type=_JwkSet)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise KeySetError(f"not a JSON Web Key Set: {error}") from error
    keys: dict[str, PublicKey] = {}
    for jwk in found.keys[:_MAX_KEYS]:
        name, key = jwk.get("kid"), _public_key(jwk)
        usable = key is not None and jwk.get("alg") in (None, "", key.algorithm)
        if usable and key is not None and isinstance(name, str) and name:
            keys.setdefault(name, key)
    if not keys:
        raise KeySetError(
            f"none of its {len(found.keys)} keys can be used; it needs RSA keys of"
            f" {_MIN_RSA_BITS} bits or more, or elliptic ones, with a kid"
        )
    return keys


def _public_key(jwk: dict[str, Any]) -> PublicKey | None:
    if jwk.get("use", "sig") != "sig":
        return None
    import jwt  # noqa: PLC0415 -- as above
    from jwt.algorithms import ECAlgorithm, RSAAlgorithm  # noqa: PLC0415 -- as above

    # Only what makes up a public key: with `d`, PyJWT would read a private one.
    fields = {name: jwk[name] for name in _KEY_FIELDS if isinstance(jwk.get(name), str)}
    try:
        match fields:
            case {"kty": "RSA"}:
                key: Any = RSAAlgorithm.from_jwk(fields)
                return PublicKey("RS256", key) if key.key_size >= _MIN_RSA_BITS else None
            case {"kty": "EC", "crv": curve} if curve in _CURVES:
                # Refuses what is not on the curve.
                elliptic: Any = ECAlgorithm.from_jwk(fields)
                return PublicKey(_CURVES[curve], elliptic)
    except (jwt.PyJWTError, ValueError, KeyError):
        return None
    return None
