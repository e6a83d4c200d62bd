"""Signed tokens: ES256 JSON Web Tokens, made and checked with one key.

Only what ServiceAccounts need. A token is taken apart strictly: one algorithm, one key, no other
header is believed.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
from typing import TYPE_CHECKING, Any

import msgspec
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.hazmat.primitives.asymmetric.utils import (
    decode_dss_signature,
    encode_dss_signature,
)

from devkube.datadir import DamagedFile

if TYPE_CHECKING:
    from pathlib import Path

    from kubeloop.objects.meta import JsonObject

_SIZE = 32
_REMEMBERED = 1024
_ECDSA = ec.ECDSA(hashes.SHA256())


class TokenError(Exception):
    """A token that is not one of ours, or not one any more; the text says why."""


class SigningKey:
    """Makes tokens and checks them."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key
        self._public = key.public_key()
        der = self._public.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        self.id = _pack(hashlib.sha256(der).digest())
        self._head = _pack(msgspec.json.encode({"alg": "ES256", "kid": self.id}))
        # Checking a signature costs more than the rest of a request.
        self._checked: dict[str, JsonObject] = {}

    @classmethod
    def create(cls) -> SigningKey:
        """Make a new key."""
        return cls(ec.generate_private_key(ec.SECP256R1()))

    @classmethod
    def kept_in(cls, directory: Path) -> SigningKey:
        """Return the key that a directory keeps; made and kept there the first time.

        Raises DamagedFile.
        """
        path = directory / "sa.key"
        if path.exists():
            return cls(_read_key(path))
        made = cls.create()
        directory.mkdir(parents=True, exist_ok=True)
        draft = directory / "sa.key.new"
        draft.touch(mode=0o600)
        draft.write_bytes(made._pem())
        draft.rename(path)
        return made

    def sign(self, claims: JsonObject) -> str:
        """Return the token that carries these claims."""
        signed = f"{self._head}.{_pack(msgspec.json.encode(claims))}"
        r, s = decode_dss_signature(self._key.sign(signed.encode(), _ECDSA))
        return f"{signed}.{_pack(r.to_bytes(_SIZE, 'big') + s.to_bytes(_SIZE, 'big'))}"

    def claims(self, token: str) -> JsonObject:
        """Return the claims of a token that this key signed; raises TokenError."""
        known = self._checked.get(token)
        if known is None:
            known = self._check(token)
            if len(self._checked) >= _REMEMBERED:
                self._checked.clear()
            self._checked[token] = known
        return known

    def _check(self, token: str) -> JsonObject:
        signed, _, signature = token.rpartition(".")
        head, dot, body = signed.partition(".")
        if not dot or head != self._head:
            raise TokenError("it is not signed with the key of this cluster")
        raw = _unpack(signature)
        if len(raw) != 2 * _SIZE:
            raise TokenError("its signature has the wrong size")
        parts = (int.from_bytes(raw[:_SIZE], "big"), int.from_bytes(raw[_SIZE:], "big"))
        try:
            self._public.verify(encode_dss_signature(*parts), signed.encode(), _ECDSA)
        except InvalidSignature:
            raise TokenError("its signature is wrong") from None
        return dict(msgspec.json.decode(_unpack(body), type=dict))

    def public_keys(self) -> JsonObject:
        """Return the JSON Web Key Set with which others check tokens."""
        numbers = self._public.public_numbers()
        return {
            "keys": [
                {
                    "use": "sig",
                    "kty": "EC",
                    "kid": self.id,
                    "crv": "P-256",
                    "alg": "ES256",
                    "x": _pack(numbers.x.to_bytes(_SIZE, "big")),
                    "y": _pack(numbers.y.to_bytes(_SIZE, "big")),
                }
            ]
        }

    def _pem(self) -> bytes:
        return self._key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )


def peek(token: str) -> Any:
    """Return a token's claims without checking anything; None where it is no such token."""
    parts = token.split(".")
    if len(parts) != 3:
        return None
    try:
        return msgspec.json.decode(_unpack(parts[1]))
    except (TokenError, msgspec.DecodeError, UnicodeDecodeError):
        return None


def _pack(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _unpack(text: str) -> bytes:
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError) as error:
        raise TokenError("it is not base64") from error


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except ValueError as error:
        raise DamagedFile(path, "no key in PEM") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DamagedFile(path, "not an elliptic key")
    return key
