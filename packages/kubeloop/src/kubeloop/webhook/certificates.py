"""Certificates of a webhook: an authority, and the serving certificate that it signs.

`renewed` is a pure decision about what a Secret holds. An authority is replaced in two steps, so that
no API server ever meets a certificate that it does not trust: first the new authority is trusted beside
the old one, and after `Lifetimes.settle` it signs. The old one stays trusted until it expires, for
replicas that are behind. Without a working certificate there is nothing to lose, and one is made at once.

The one module that needs the package cryptography (`kubeloop[webhook]`): it is imported when certificates
are made.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import ipaddress
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, cast

import msgspec
from cryptography import x509
from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from kubeloop.webhook.certificate_secret import CertificateSet, RenewalOrder

if TYPE_CHECKING:
    from kubeloop.webhook.certificate_secret import Lifetimes

# For clocks that differ.
_BACKDATE = dt.timedelta(hours=1)


def renewed(
    found: CertificateSet | None, hosts: Sequence[str], now: dt.datetime, lifetimes: Lifetimes
) -> CertificateSet:
    """Return what the Secret is to hold; `found` itself if it may stay."""
    authorities, key, serving = _read(found, now) if found is not None else ([], None, None)
    if found is None or key is None:
        key = new_key()
        newest = _authority(key, now, lifetimes)
        trusted = b"".join(map(pem, [*authorities, newest]))
        if found is not None and serving is not None:
            return dataclasses.replace(found, authorities=trusted, authority_key=key_pem(key))
        certificate, own_key = _issue(newest, key, hosts, now, lifetimes)
        return CertificateSet(trusted, key_pem(key), certificate, own_key)
    newest = authorities[-1]
    if serving is None or not set(hosts) <= set(_names(serving)):
        certificate, own_key = _issue(newest, key, hosts, now, lifetimes)
        return dataclasses.replace(found, certificate=certificate, key=own_key)
    if _is_old(newest, now):
        key = new_key()
        trusted = b"".join(map(pem, [*authorities, _authority(key, now, lifetimes)]))
        return dataclasses.replace(found, authorities=trusted, authority_key=key_pem(key))
    is_settled = newest.not_valid_before_utc + _BACKDATE + lifetimes.settle <= now
    if is_settled and (_is_old(serving, now) or not _signed(serving, newest)):
        certificate, own_key = _issue(newest, key, hosts, now, lifetimes)
        trusted = b"".join(map(pem, authorities))  # without those that have expired
        return CertificateSet(trusted, found.authority_key, certificate, own_key)
    return found


def _read(
    found: CertificateSet, now: dt.datetime
) -> tuple[list[x509.Certificate], ec.EllipticCurvePrivateKey | None, x509.Certificate | None]:
    """Return living authorities, the newest one's key and a certificate that works, if there is one.

    The key is None if the newest authority cannot sign now: it is damaged, has expired, or a clock that was ahead made it.
    """
    try:
        every = x509.load_pem_x509_certificates(found.authorities)
    except (ValueError, TypeError):
        return [], None, None
    living = [authority for authority in every if _is_valid(authority, now)]
    key: ec.EllipticCurvePrivateKey | None
    try:
        key = _private(found.authority_key)
        if every[-1].public_key() != key.public_key() or every[-1] not in living:
            key = None
    except (ValueError, TypeError):
        key = None
    try:
        serving = x509.load_pem_x509_certificates(found.certificate)[0]
        works = serving.public_key() == _private(found.key).public_key()
    except (ValueError, TypeError):
        return living, key, None
    works = works and _is_valid(serving, now)
    return living, key, serving if works and any(_signed(serving, one) for one in living) else None


def _is_valid(certificate: x509.Certificate, now: dt.datetime) -> bool:
    return certificate.not_valid_before_utc <= now < certificate.not_valid_after_utc


def _is_old(certificate: x509.Certificate, now: dt.datetime) -> bool:
    life = certificate.not_valid_after_utc - certificate.not_valid_before_utc
    return certificate.not_valid_after_utc - now < life / 3


def _signed(certificate: x509.Certificate, authority: x509.Certificate) -> bool:
    try:
        certificate.verify_directly_issued_by(authority)
    except (ValueError, TypeError, InvalidSignature):
        return False
    return True


def _names(certificate: x509.Certificate) -> list[str]:
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except (x509.ExtensionNotFound, ValueError):
        return []
    return [str(name.value) for name in names]


def _authority(
    key: ec.EllipticCurvePrivateKey, now: dt.datetime, lifetimes: Lifetimes
) -> x509.Certificate:
    # Its name has its time: two of them in one bundle must not be taken for each other.
    name = f"kubeloop webhook authority {now:%Y-%m-%dT%H:%M:%S}"
    return make_certificate(key, now, lifetimes.authority, name=name)


def _issue(
    authority: x509.Certificate,
    authority_key: ec.EllipticCurvePrivateKey,
    hosts: Sequence[str],
    now: dt.datetime,
    lifetimes: Lifetimes,
) -> tuple[bytes, bytes]:
    key, issuer = new_key(), (authority, authority_key)
    life = min(lifetimes.serving, authority.not_valid_after_utc - now)
    made = make_certificate(key, now, life, name=hosts[0][:64], hosts=hosts, issuer=issuer)
    return pem(made), key_pem(key)


def make_certificate(
    key: ec.EllipticCurvePrivateKey,
    now: dt.datetime,
    life: dt.timedelta,
    *,
    name: str,
    groups: Sequence[str] = (),
    hosts: Sequence[str] = (),
    issuer: tuple[x509.Certificate, ec.EllipticCurvePrivateKey] | None = None,
) -> x509.Certificate:
    """Make the certificate of a server with `hosts`, or of a client with a name and groups.

    Without an issuer it is an authority, which signs itself.
    """
    parts = [x509.NameAttribute(NameOID.ORGANIZATION_NAME, group) for group in groups]
    subject = x509.Name([*parts, x509.NameAttribute(NameOID.COMMON_NAME, name)])
    signer, signing_key = (issuer[0].subject, issuer[1]) if issuer else (subject, key)
    unused = ("content_commitment", "key_encipherment", "data_encipherment", "key_agreement")
    usage = dict.fromkeys((*unused, "encipher_only", "decipher_only"), False)
    usage |= {"digital_signature": True, "key_cert_sign": not issuer, "crl_sign": not issuer}
    identifier = x509.AuthorityKeyIdentifier.from_issuer_public_key(signing_key.public_key())
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(signer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - _BACKDATE)
        .not_valid_after(now + life)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(identifier, critical=False)
        .add_extension(x509.BasicConstraints(ca=not issuer, path_length=None), critical=True)
        .add_extension(x509.KeyUsage(**usage), critical=True)
    )
    if issuer:
        purpose = ExtendedKeyUsageOID.SERVER_AUTH if hosts else ExtendedKeyUsageOID.CLIENT_AUTH
        builder = builder.add_extension(x509.ExtendedKeyUsage([purpose]), critical=False)
    if hosts:
        names = x509.SubjectAlternativeName([_general_name(host) for host in hosts])
        builder = builder.add_extension(names, critical=False)
    return builder.sign(signing_key, hashes.SHA256())


def _general_name(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def new_key() -> ec.EllipticCurvePrivateKey:
    """Make a private key."""
    return ec.generate_private_key(ec.SECP256R1())


def _private(pem: bytes) -> ec.EllipticCurvePrivateKey:
    return cast(
        "ec.EllipticCurvePrivateKey", serialization.load_pem_private_key(pem, password=None)
    )


def pem(certificate: x509.Certificate) -> bytes:
    """Return a certificate's PEM."""
    return certificate.public_bytes(serialization.Encoding.PEM)


def key_pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    """Return a key's PEM, not encrypted."""
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def main() -> None:
    """Answer one `RenewalOrder`: keys and certificates pass through pipes alone."""
    order = msgspec.json.decode(sys.stdin.buffer.read(), type=RenewalOrder)
    made = renewed(order.found, order.hosts, order.now, order.lifetimes)
    sys.stdout.buffer.write(msgspec.json.encode(made))


if __name__ == "__main__":
    main()
