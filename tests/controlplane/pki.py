"""A certificate authority for one control plane, and the keys it hands out."""

from __future__ import annotations

import datetime as dt
import ipaddress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

if TYPE_CHECKING:
    from collections.abc import Sequence

LIFETIME = dt.timedelta(days=30)
CLOCK_SKEW = dt.timedelta(hours=1)


@dataclass(frozen=True, slots=True)
class KeyPair:
    """A certificate (or a bare public key) and its private key, as PEM."""

    public: bytes
    private: bytes


def _private_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        # SEC 1, not PKCS 8: kube-controller-manager reads its token signing key only in this form.
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )


def signing_keys() -> KeyPair:
    """A key pair for ServiceAccount tokens."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return KeyPair(public=public, private=_private_pem(key))


def _key_usage(*, authority: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not authority,
        key_cert_sign=authority,
        crl_sign=authority,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def _alternative_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


class Authority:
    """Issues certificates for servers (by name and address) and clients (by user and groups)."""

    def __init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "elasti test authority")])
        self._certificate = self._sign(
            self._name,
            self._key.public_key(),
            [
                (x509.BasicConstraints(ca=True, path_length=0), True),
                (_key_usage(authority=True), True),
            ],
        )

    @property
    def key_pair(self) -> KeyPair:
        """The authority's own certificate and key."""
        return self._pair(self._certificate, self._key)

    def server(self, names: Sequence[str]) -> KeyPair:
        """A certificate for a server that is reached by any of these names and addresses."""
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, names[0])])
        alternatives = x509.SubjectAlternativeName([_alternative_name(name) for name in names])
        return self._leaf(subject, ExtendedKeyUsageOID.SERVER_AUTH, [(alternatives, False)])

    def client(self, user: str, groups: Sequence[str] = ()) -> KeyPair:
        """A certificate that Kubernetes takes for this user in these groups."""
        attributes = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        attributes.append(x509.NameAttribute(NameOID.COMMON_NAME, user))
        return self._leaf(x509.Name(attributes), ExtendedKeyUsageOID.CLIENT_AUTH, [])

    def _leaf(
        self,
        subject: x509.Name,
        purpose: x509.ObjectIdentifier,
        extensions: list[tuple[x509.ExtensionType, bool]],
    ) -> KeyPair:
        key = ec.generate_private_key(ec.SECP256R1())
        certificate = self._sign(
            subject,
            key.public_key(),
            [
                (x509.BasicConstraints(ca=False, path_length=None), True),
                (_key_usage(authority=False), True),
                (x509.ExtendedKeyUsage([purpose]), False),
                *extensions,
            ],
        )
        return self._pair(certificate, key)

    def _sign(
        self,
        subject: x509.Name,
        key: ec.EllipticCurvePublicKey,
        extensions: list[tuple[x509.ExtensionType, bool]],
    ) -> x509.Certificate:
        now = dt.datetime.now(dt.UTC)
        issuer = self._key.public_key()
        builder = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key)
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - CLOCK_SKEW)
            .not_valid_after(now + LIFETIME)
            # Both identifiers: Python 3.13 verifies strictly and refuses a chain without them.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(issuer), critical=False
            )
        )
        for extension, critical in extensions:
            builder = builder.add_extension(extension, critical=critical)
        return builder.sign(self._key, hashes.SHA256())

    @staticmethod
    def _pair(certificate: x509.Certificate, key: ec.EllipticCurvePrivateKey) -> KeyPair:
        return KeyPair(
            public=certificate.public_bytes(serialization.Encoding.PEM), private=_private_pem(key)
        )
