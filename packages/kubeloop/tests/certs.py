"""Certificates for tests: an authority, server and client certificates, made in memory."""

from __future__ import annotations

import datetime as dt
import ipaddress
import ssl
import tempfile
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

_START = dt.datetime(2020, 1, 1, tzinfo=dt.UTC)
_END = dt.datetime(2120, 1, 1, tzinfo=dt.UTC)


@dataclass(frozen=True, slots=True)
class Issued:
    """A certificate and its key, both PEM."""

    certificate: bytes
    key: bytes

    def write(self, directory: Path, name: str) -> tuple[Path, Path]:
        """Write NAME.crt and NAME.key."""
        certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
        certificate.write_bytes(self.certificate)
        key.write_bytes(self.key)
        return certificate, key


@dataclass(frozen=True, slots=True)
class Authority:
    """A certificate authority: `pem` is what a client trusts."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    @property
    def pem(self) -> bytes:
        return self.certificate.public_bytes(serialization.Encoding.PEM)

    def server(self, *names: str, not_after: dt.datetime = _END) -> Issued:
        """Issue a server certificate for DNS names and addresses (default: the local ones)."""
        wanted = names or ("localhost", "127.0.0.1", "::1")
        alternative = x509.SubjectAlternativeName([_general_name(name) for name in wanted])
        return self._issue(
            "server", ExtendedKeyUsageOID.SERVER_AUTH, [alternative], not_after=not_after
        )

    def nameless_server(self, common_name: str) -> Issued:
        """Issue a server certificate with a common name only, as was done long ago."""
        return self._issue(common_name, ExtendedKeyUsageOID.SERVER_AUTH, [])

    def client(
        self, user: str = "someone", groups: tuple[str, ...] = (), not_after: dt.datetime = _END
    ) -> Issued:
        """Issue a client certificate; Kubernetes reads CN as the user and O as groups."""
        return self._issue(
            user, ExtendedKeyUsageOID.CLIENT_AUTH, [], groups=groups, not_after=not_after
        )

    def _issue(self, common_name, usage, extensions, *, groups=(), not_after=_END) -> Issued:
        key = ec.generate_private_key(ec.SECP256R1())
        builder = (
            _builder(_name(common_name, groups), self.certificate.subject, key.public_key())
            .not_valid_after(not_after)
            .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
            .add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
            .add_extension(
                x509.AuthorityKeyIdentifier.from_issuer_public_key(self.key.public_key()),
                critical=False,
            )
        )
        for extension in extensions:
            builder = builder.add_extension(extension, critical=False)
        certificate = builder.sign(self.key, hashes.SHA256())
        return Issued(certificate.public_bytes(serialization.Encoding.PEM), key_pem(key))


def make_authority(name: str = "test-ca") -> Authority:
    """Make a self-signed authority."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(name)
    certificate = (
        _builder(subject, subject, key.public_key())
        .not_valid_after(_END)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(_ca_usage(), critical=True)
        .sign(key, hashes.SHA256())
    )
    return Authority(certificate, key)


def key_pem(key: ec.EllipticCurvePrivateKey, password: bytes | None = None) -> bytes:
    """Return a key as PEM, encrypted where a password is given."""
    encryption = (
        serialization.BestAvailableEncryption(password)
        if password
        else serialization.NoEncryption()
    )
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, encryption
    )


def server_context(issued: Issued, *, client_ca: Authority | None = None) -> ssl.SSLContext:
    """Return a server's TLS context; with `client_ca` it demands a client certificate."""
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.TemporaryDirectory() as directory:
        context.load_cert_chain(*issued.write(Path(directory), "server"))
    if client_ca is not None:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=client_ca.pem.decode())
    return context


def _builder(subject, issuer, public_key) -> x509.CertificateBuilder:
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(public_key)
        .serial_number(x509.random_serial_number())
        .not_valid_before(_START)
    )


def _name(common_name: str, groups: tuple[str, ...] = ()) -> x509.Name:
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    return x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, common_name)])


def _general_name(name: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(name))
    except ValueError:
        return x509.DNSName(name)


def _ca_usage() -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True,
        key_cert_sign=True,
        crl_sign=True,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )
