"""Certificates of a dev cluster: one authority, a server's certificate, clients' certificates.

Elliptic keys, so that a cluster starts at once. Private keys live where the caller puts them; this
module only makes bytes.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Sequence
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from devkube.datadir import DamagedFile, write_whole
from kubeloop.webhook.certificates import key_pem, make_certificate, new_key, pem

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
        key = new_key()
        return cls(PemKeyPair(pem(make_certificate(key, now, _LIFETIME, name=name)), key_pem(key)))

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
        # The certificate last: without it the key alone is made again.
        write_whole(key, made.pair.key)
        write_whole(certificate, made.pair.certificate)
        return made

    @property
    def pem(self) -> bytes:
        """The authority's certificate."""
        return self.pair.certificate

    def issue_server(self, hosts: Sequence[str], *, now: dt.datetime) -> PemKeyPair:
        """Make a server's certificate for names and addresses."""
        return self._issue(now, hosts[0], hosts=hosts)

    def issue_client(
        self, user: str, groups: Sequence[str] = (), *, now: dt.datetime
    ) -> PemKeyPair:
        """Make a client's certificate: who it is, and its groups."""
        return self._issue(now, user, groups=groups)

    def _issue(self, now: dt.datetime, name: str, **subject: Sequence[str]) -> PemKeyPair:
        key, issuer = new_key(), (self._certificate, self._key)
        made = make_certificate(key, now, _LIFETIME, name=name, issuer=issuer, **subject)
        return PemKeyPair(pem(made), key_pem(key))
