"""ServiceAccount tokens taken apart, and what they claim judged. Pure; signatures are `keys`' matter.

A token is three base64url parts: a header that names the key, claims, a signature. Nothing of it is
believed before the signature is checked, but for the key's name; and the header chooses nothing: which
algorithm a key is for, the key itself says.

What a valid signature does not tell: whether the account or the pod still exists. A token of a deleted
one is good until it expires (an hour or so, as kubelets mount them); only the API server knows better.
"""

from __future__ import annotations

import base64
import binascii
import dataclasses
from typing import TYPE_CHECKING, TypeVar

import msgspec

if TYPE_CHECKING:
    from collections.abc import Collection

T = TypeVar("T")

LEEWAY = 60.0
"""How far clocks may differ, in seconds; kube-apiserver allows as much."""
LONGEST = 16 * 1024

_ALPHABET = frozenset(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_")
_ACCOUNT = "system:serviceaccount:"


class BadToken(Exception):
    """A token that proves nothing; the text says why, and nothing that is in the token."""


class Header(msgspec.Struct, frozen=True, gc=False):
    """What a token says of itself. `crit` names extensions that must be understood: none is."""

    alg: str = ""
    kid: str = ""
    crit: msgspec.Raw | None = None


class _Account(msgspec.Struct, frozen=True, gc=False):
    name: str = ""


class _Kubernetes(msgspec.Struct, frozen=True, gc=False):
    namespace: str = ""
    serviceaccount: _Account = _Account()


class Claims(msgspec.Struct, frozen=True, gc=False, rename={"kubernetes": "kubernetes.io"}):
    """What a token claims. One without an end is not taken: it could never be withdrawn."""

    iss: str
    sub: str
    aud: str | tuple[str, ...]
    exp: float
    nbf: float = 0.0
    iat: float = 0.0
    kubernetes: _Kubernetes = _Kubernetes()

    @property
    def audiences(self) -> tuple[str, ...]:
        """Whom the token is for."""
        return (self.aud,) if isinstance(self.aud, str) else self.aud


@dataclasses.dataclass(frozen=True, slots=True)
class Token:
    """A token's parts, none of them checked yet; `signed` is what the signature is of."""

    header: Header
    claims: Claims
    signed: bytes = dataclasses.field(repr=False)
    signature: bytes = dataclasses.field(repr=False)


def parse(text: str) -> Token:
    """Take a token apart. Raises BadToken."""
    if len(text) > LONGEST or not text.isascii():
        raise BadToken("it is no ServiceAccount token")
    parts = text.encode().split(b".")
    if len(parts) != 3:
        raise BadToken("it is no ServiceAccount token")
    header = _decode(parts[0], Header, "header")
    if header.crit is not None:
        raise BadToken("its header asks for an extension that is not known here")
    if not header.kid:
        raise BadToken("its header names no key")
    return Token(
        header=header,
        claims=_decode(parts[1], Claims, "claims"),
        signed=b".".join(parts[:2]),
        signature=_unpack(parts[2]),
    )


def user_of(claims: Claims, *, issuers: Collection[str], audience: str, now: float) -> str:
    """Return whom claims with a good signature name, at a time in seconds. Raises BadToken."""
    if claims.iss not in issuers:
        raise BadToken("it was issued by somebody else than this cluster")
    if audience not in claims.audiences:
        raise BadToken("it is for another audience")
    if now >= claims.exp + LEEWAY:
        raise BadToken("it has expired")
    if now < max(claims.nbf, claims.iat) - LEEWAY:
        raise BadToken("it is not valid yet")
    about = claims.kubernetes
    if claims.sub != f"{_ACCOUNT}{about.namespace}:{about.serviceaccount.name}":
        raise BadToken("it names no ServiceAccount")
    return claims.sub


def unpack(text: str) -> bytes:
    """Read base64url without padding. Raises ValueError."""
    data = text.encode()
    if not _ALPHABET.issuperset(data):
        raise ValueError("not base64url")
    try:
        return base64.b64decode(data + b"=" * (-len(data) % 4), altchars=b"-_", validate=True)
    except binascii.Error as error:
        raise ValueError("not base64url") from error


def _unpack(part: bytes) -> bytes:
    try:
        return unpack(part.decode())
    except ValueError as error:
        raise BadToken("it is no ServiceAccount token") from error


def _decode(part: bytes, kind: type[T], name: str) -> T:
    try:
        return msgspec.json.decode(_unpack(part), type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadToken(f"its {name} cannot be read") from error
