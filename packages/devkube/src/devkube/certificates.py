"""Certificates of a dev cluster: one authority, a server's certificate, clients' certificates.

Elliptic keys, so that a cluster starts at once. Private keys live where the caller puts them; this
module only makes bytes.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import ipaddress
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from devkube.datadir import DamagedFile

_BACKDATE = dt.timedelta(minutes=5)
_LIFETIME = dt.timedelta(days=365)


@dataclasses.dataclass(frozen=True, slots=True)
class PemKeyPair:
    """A certificate and its private key, PEM."""

    certificate: bytes
    key: bytes


class CertificateAuthority:
    """A certificate authority. `pem` is what clients trust."""

    def __init__(self, pair: PemKeyPair) -> None:
        self.pair = pair
        self._certificate = x509.load_pem_x509_certificate(pair.certificate)
        key = serialization.load_pem_private_key(pair.key, password=None)
        if not isinstance(key, ec.EllipticCurvePrivateKey):
            raise TypeError(
                "the authority's key is not an elliptic one; remove it, and a new one is made"
            )
        self._key = key

    @classmethod
    def create(cls, *, now: dt.datetime, name: str = "devkube-ca") -> CertificateAuthority:
        """Make a new authority."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        certificate = (
            _builder(subject, subject, key, now)
            .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
            .add_extension(_usage(signs=True), critical=True)
            .sign(key, hashes.SHA256())
        )
        return cls(PemKeyPair(certificate.public_bytes(serialization.Encoding.PEM), _pem(key)))

    @classmethod
    def kept_in(cls, directory: Path, *, now: dt.datetime) -> CertificateAuthority:
        """Return the authority that a directory keeps; made and kept there the first time.

        Raises DamagedFile.
        """
        certificate, key = directory / "ca.crt", directory / "ca.key"
        if certificate.exists() and key.exists():
            try:
                return cls(PemKeyPair(certificate.read_bytes(), key.read_bytes()))
            except (TypeError, ValueError) as error:
                raise DamagedFile(key, "no certificate authority with its key") from error
        made = cls.create(now=now)
        directory.mkdir(parents=True, exist_ok=True)
        # Each in one step, the certificate last: a process killed in between leaves no half of it.
        for path, content in ((key, made.pair.key), (certificate, made.pair.certificate)):
            draft = path.with_suffix(".new")
            draft.touch(mode=0o600)
            draft.write_bytes(content)
            draft.rename(path)
        return made

    @property
    def pem(self) -> bytes:
        """The authority's certificate."""
        return self.pair.certificate

    def issue_server(self, hosts: Sequence[str], *, now: dt.datetime) -> PemKeyPair:
        """Issue a server's certificate for names and addresses."""
        key = ec.generate_private_key(ec.SECP256R1())
        builder = self._issued([x509.NameAttribute(NameOID.COMMON_NAME, hosts[0])], key, now)
        builder = builder.add_extension(
            x509.SubjectAlternativeName([_general_name(host) for host in hosts]), critical=False
        ).add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        return self._sign(builder, key)

    def issue_client(
        self, user: str, groups: Sequence[str] = (), *, now: dt.datetime
    ) -> PemKeyPair:
        """Issue a client's certificate: the user is the common name, groups are organisations."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
        subject.append(x509.NameAttribute(NameOID.COMMON_NAME, user))
        builder = self._issued(subject, key, now).add_extension(
            x509.ExtendedKeyUsage([ExtendedKeyUsageOID.CLIENT_AUTH]), critical=False
        )
        return self._sign(builder, key)

    def _issued(
        self,
        subject: list[x509.NameAttribute[str]],
        key: ec.EllipticCurvePrivateKey,
        now: dt.datetime,
    ) -> x509.CertificateBuilder:
        authority = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        return (
            _builder(x509.Name(subject), self._certificate.subject, key, now)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(_usage(signs=False), critical=True)
            .add_extension(authority, critical=False)
        )

    def _sign(
        self, builder: x509.CertificateBuilder, key: ec.EllipticCurvePrivateKey
    ) -> PemKeyPair:
        certificate = builder.sign(self._key, hashes.SHA256())
        return PemKeyPair(certificate.public_bytes(serialization.Encoding.PEM), _pem(key))


def _builder(
    subject: x509.Name, issuer: x509.Name, key: ec.EllipticCurvePrivateKey, now: dt.datetime
) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + _LIFETIME)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=signs,
        crl_sign=signs,
        encipher_only=False,
        decipher_only=False,
    )


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.NoEncryption(),
    )
