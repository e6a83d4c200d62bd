"""Credentials put together from their parts: a header, a client certificate, trust.

The parts vary on their own (a token from a file may go with a certificate from the kubeconfig and
the system's CAs), so each is a small seam and this is the only place that knows all three.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kubeloop.client.certificates import KeyPair

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping

    from kubeloop.client.certificates import PemSource
    from kubeloop.client.tls import TlsContexts
    from kubeloop.client.tokens import HeaderSource


class CertificateSource(Protocol):
    """Gives the client certificate to present, kept fresh."""

    async def key_pair(self) -> KeyPair | None:
        """Return the certificate and its key, or None. Raises `CredentialError`."""

    def invalidate(self, refused: Mapping[str, str] | None = None) -> None:
        """The server answered 401."""


class NoCertificate:
    """No client certificate."""

    async def key_pair(self) -> KeyPair | None:
        """Return None."""
        return None

    def invalidate(self, refused: Mapping[str, str] | None = None) -> None:
        """Nothing can be renewed."""


class PemCertificate:
    """A client certificate and key from settings or files; rotated files are read again."""

    def __init__(self, *, certificate: PemSource, key: PemSource) -> None:
        self._certificate = certificate
        self._key = key

    async def key_pair(self) -> KeyPair | None:
        """Return the present content of both."""
        return self.current()

    def current(self) -> KeyPair:
        """Do as `key_pair`, without a loop, to find mistakes while configuration is read."""
        return KeyPair(
            certificate=self._certificate.read(),
            key=self._key.read(),
            certificate_origin=self._certificate.origin,
            key_origin=self._key.origin,
        )

    def invalidate(self, refused: Mapping[str, str] | None = None) -> None:
        """Read the files anew, unless it was a token that the server refused."""
        if not refused:
            self._certificate.forget()
            self._key.forget()


class ComposedCredentials:
    """`Credentials` out of a header source, a certificate source and trust (None for http)."""

    def __init__(
        self,
        *,
        headers: HeaderSource,
        certificates: CertificateSource,
        tls: TlsContexts | None,
    ) -> None:
        self._headers = headers
        self._certificates = certificates
        self._tls = tls

    async def headers(self) -> Mapping[str, str]:
        """Return the Authorization header, or nothing. Raises `CredentialError`."""
        return await self._headers.headers()

    async def ssl_context(self) -> ssl.SSLContext | None:
        """Return the context for new connections. Raises `ConfigError`."""
        if self._tls is None:
            return None
        return self._tls.context(await self._certificates.key_pair())

    def invalidate(self, refused: Mapping[str, str] | None = None) -> None:
        """Make every part that can be renewed renew itself."""
        # One plugin may be both parts and be told twice, which does no harm.
        self._headers.invalidate(refused)
        self._certificates.invalidate(refused)

    def __repr__(self) -> str:
        parts = (type(self._headers).__name__, type(self._certificates).__name__)
        return f"ComposedCredentials({', '.join(dict.fromkeys(parts))})"
