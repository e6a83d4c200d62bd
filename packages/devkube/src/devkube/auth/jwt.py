"""Signed tokens: ES256 JSON Web Tokens, made and checked with one key.

PyJWT signs and checks. One algorithm and one key are taken, no other header is believed; times and
audiences are checked by `service_accounts`, with the cluster's clock.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path
from typing import Any

import jwt
import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec
from jwt.algorithms import ECAlgorithm

from devkube.datadir import DamagedFile, write_whole
from kubeloop.objects.meta import JsonObject
from kubeloop.webhook.certificates import key_pem, new_key

_ALGORITHM = "ES256"
_REMEMBERED = 1024
_SIGNATURES = jwt.PyJWS()


class TokenError(Exception):
    """The token is not ours, or is no longer valid; the text says why."""


class SigningKey:
    """Makes tokens and checks them."""

    def __init__(self, key: ec.EllipticCurvePrivateKey) -> None:
        self._key = key
        self._public = key.public_key()
        der = self._public.public_bytes(
            serialization.Encoding.DER, serialization.PublicFormat.SubjectPublicKeyInfo
        )
        digest = hashlib.sha256(der).digest()
        self.id = base64.urlsafe_b64encode(digest).rstrip(b"=").decode()
        # Checking a signature costs more than the rest of a request.
        self._checked: dict[str, JsonObject] = {}

    @classmethod
    def create(cls) -> SigningKey:
        """Make a new key."""
        return cls(new_key())

    @classmethod
    def kept_in(cls, directory: Path) -> SigningKey:
        """Return the key that a directory keeps; made and kept there the first time.

        Raises DamagedFile.
        """
        path = directory / "sa.key"
        if path.exists():
            return cls(_read_key(path))
        made = cls.create()
        write_whole(path, key_pem(made._key))
        return made

    def sign(self, claims: JsonObject) -> str:
        """Return the token that carries these claims."""
        headers = {"typ": None, "kid": self.id}
        return _SIGNATURES.encode(msgspec.json.encode(claims), self._key, _ALGORITHM, headers)

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
        try:
            found = _SIGNATURES.decode_complete(token, self._public, [_ALGORITHM])
        except jwt.InvalidSignatureError:
            raise TokenError("its signature is wrong") from None
        except (jwt.PyJWTError, RecursionError) as error:
            raise TokenError("it is not signed with the key of this cluster") from error
        if found["header"].keys() != {"alg", "kid"} or found["header"]["kid"] != self.id:
            raise TokenError("it is not signed with the key of this cluster")
        return dict(msgspec.json.decode(found["payload"], type=dict))

    def public_keys(self) -> JsonObject:
        """Return the JSON Web Key Set with which others check tokens."""
        shown = ECAlgorithm.to_jwk(self._public, as_dict=True)
        return {"keys": [{"use": "sig", "kid": self.id, "alg": _ALGORITHM, **shown}]}


def peek(token: str) -> Any:
    """Return a token's claims without checking anything; None if it is not such a token."""
    try:
        payload = _SIGNATURES.decode(token, options={"verify_signature": False})
        return msgspec.json.decode(payload)
    except (jwt.PyJWTError, msgspec.DecodeError, ValueError, RecursionError):
        return None


def _read_key(path: Path) -> ec.EllipticCurvePrivateKey:
    try:
        key = serialization.load_pem_private_key(path.read_bytes(), password=None)
    except ValueError as error:
        raise DamagedFile(path, "no key in PEM") from error
    if not isinstance(key, ec.EllipticCurvePrivateKey):
        raise DamagedFile(path, "not an elliptic key")
    return key
