"""An issuer of tokens as kube-apiserver is one, and every way to be a bad one."""

from __future__ import annotations

import base64
import functools
import json
from typing import Any

from cryptography.hazmat.primitives import hashes
from cryptography.hazmat.primitives.asymmetric import ec, padding, rsa
from cryptography.hazmat.primitives.asymmetric.utils import decode_dss_signature

ISSUER = "https://kubernetes.default.svc.cluster.local"
AUDIENCE = "elasti-operator"
USER = "system:serviceaccount:elasti:resolver"
NOW = 1_900_000_000.0

_CURVES = {
    "ES256": ("P-256", ec.SECP256R1(), hashes.SHA256()),
    "ES384": ("P-384", ec.SECP384R1(), hashes.SHA384()),
    "ES512": ("P-521", ec.SECP521R1(), hashes.SHA512()),
}


def pack(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def claims(**changes: Any) -> dict[str, Any]:
    """What a kubelet's token says; None takes a claim away."""
    made = {
        "aud": [AUDIENCE],
        "exp": NOW + 3600,
        "iat": NOW,
        "nbf": NOW,
        "iss": ISSUER,
        "jti": "a5c0",
        "kubernetes.io": {
            "namespace": "elasti",
            "serviceaccount": {"name": "resolver", "uid": "u-1"},
            "pod": {"name": "resolver-0", "uid": "u-2"},
        },
        "sub": USER,
    } | changes
    return {name: value for name, value in made.items() if value is not None}


@functools.cache
def rsa_key(bits: int, number: int) -> rsa.RSAPrivateKey:
    """Making one takes a while."""
    del number
    return rsa.generate_private_key(public_exponent=65537, key_size=bits)


class Signer:
    """One private key; `number` tells apart keys of one kind."""

    def __init__(self, algorithm: str = "RS256", *, kid: str = "key-1", number: int = 0) -> None:
        self.algorithm = algorithm
        self.kid = kid
        self._rsa = rsa_key(2048, number) if algorithm == "RS256" else None
        self._ec = ec.generate_private_key(_CURVES[algorithm][1]) if algorithm in _CURVES else None

    def token(self, header: dict[str, Any] | None = None, **changes: Any) -> str:
        """A token, signed with this key whatever its header says."""
        head = {"alg": self.algorithm, "kid": self.kid} if header is None else header
        return self.sign(head, claims(**changes))

    def sign(self, header: Any, body: Any) -> str:
        signed = f"{pack(json.dumps(header).encode())}.{pack(json.dumps(body).encode())}"
        return f"{signed}.{pack(self._signature(signed.encode()))}"

    def jwk(self, **changes: Any) -> dict[str, Any]:
        made = {"use": "sig", "kid": self.kid, "alg": self.algorithm, **self._numbers()} | changes
        return {name: value for name, value in made.items() if value is not None}

    def _signature(self, signed: bytes) -> bytes:
        if self._rsa is not None:
            return self._rsa.sign(signed, padding.PKCS1v15(), hashes.SHA256())
        assert self._ec is not None
        _, curve, digest = _CURVES[self.algorithm]
        size = (curve.key_size + 7) // 8
        r, s = decode_dss_signature(self._ec.sign(signed, ec.ECDSA(digest)))
        return r.to_bytes(size, "big") + s.to_bytes(size, "big")

    def _numbers(self) -> dict[str, str]:
        if self._rsa is not None:
            numbers = self._rsa.public_key().public_numbers()
            return {"kty": "RSA", "n": _number(numbers.n), "e": _number(numbers.e)}
        assert self._ec is not None
        point = self._ec.public_key().public_numbers()
        name, curve, _ = _CURVES[self.algorithm]
        size = (curve.key_size + 7) // 8
        x, y = (pack(value.to_bytes(size, "big")) for value in (point.x, point.y))
        return {"kty": "EC", "crv": name, "x": x, "y": y}


def key_set(*jwks: dict[str, Any]) -> bytes:
    return json.dumps({"keys": list(jwks)}).encode()


def _number(value: int) -> str:
    return pack(value.to_bytes((value.bit_length() + 7) // 8, "big"))
