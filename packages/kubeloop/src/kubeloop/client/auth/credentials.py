"""Credentials of a client: the seam between configuration and transport.

A transport asks for headers before each request and for the TLS context before each connection.
Both are cheap while nothing changed. After a 401 it calls `invalidate`, and the next request gets
what a fresh read of the file or a fresh run of the plugin gives.

Credentials have three parts that vary on their own: a header, a client certificate, and trust (a
token from a file may go with a certificate from the kubeconfig and the system's CAs). Each is a
small protocol; `ComposedCredentials` is the only class that knows all three.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Protocol

from kubeloop.client.auth.tls import ClientKeyPair, PemSource, TlsContexts
from kubeloop.client.auth.watched_file import WatchedFile
from kubeloop.client.errors import CredentialError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping
    from pathlib import Path


class Credentials(Protocol):
    """Credentials, kept fresh."""

    async def headers(self) -> Mapping[str, str]:
        """Return the Authorization header, or nothing. Raises `CredentialError`."""

    async def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS context for new connections; None if the endpoint is not https.

        It stays the same object until trust or certificate change, so that a caller may compare
        it by identity to learn that pooled connections are out of date. Raises `ConfigError`.
        """

    def invalidate(self, refused: Mapping[str, str] | None = None) -> None:
        """The server answered 401: get new credentials for the next request.

        `refused` is what `headers` gave to that request. With it, a late 401 to an old token does
        not throw away the new one; without it, whatever is present now is thrown away.
        """


class Anonymous:
    """No identity, over TLS with a fixed context or over plain http."""

    def __init__(self, context: ssl.SSLContext | None = None) -> None:
        self._context = context

    async def headers(self) -> Mapping[str, str]:
        """Return nothing."""
        return {}

    async def ssl_context(self) -> ssl.SSLContext | None:
        """Return the context given."""
        return self._context

    def invalidate(self, refused: Mapping[str, str] | None = None) -> None:
        """Nothing can be renewed."""

    def __repr__(self) -> str:
        return "Anonymous()"


def bearer(token: str, *, origin: str) -> Mapping[str, str]:
    """Make the Authorization header; raises if the token could not be one header's value."""
    if not token or not all(0x21 <= ord(char) <= 0x7E for char in token):
        raise CredentialError(
            f"{origin}: the token is empty or contains white space or characters that a header"
            " cannot carry; expected one line of printable ASCII"
        )
    return {"Authorization": f"Bearer {token}"}


def basic(username: str, password: str) -> Mapping[str, str]:
    """Make the Authorization header for a user name and a password."""
    packed = base64.b64encode(f"{username}:{password}".encode()).decode()
    return {"Authorization": f"Basic {packed}"}


class HeaderSource(Protocol):
    """Gives the Authorization header, kept fresh. See `Credentials` for the contracts."""

    async def headers(self) -> Mapping[str, str]:
        """Return the header, or nothing. Raises `CredentialError`."""

    def invalidate(self, refused: Mapping[str, str] | None = None) -> None:
        """The server answered 401."""


class FixedHeaders:
    """A header that cannot change: a token written into the configuration, a password, nothing."""

    def __init__(self, headers: Mapping[str, str]) -> None:
        self._headers = headers

    async def headers(self) -> Mapping[str, str]:
        """Return the header given."""
        return self._headers

    def invalidate(self, refused: Mapping[str, str] | None = None) -> None:
        """Nothing can be renewed."""


class FileToken:
    """A bearer token in a file that is rotated, the ServiceAccount's for one.

    The file is read again when it changes, after 60 s in any case, and after a 401. `fallback` is
    the header to use while the file gives no token.
    """

    def __init__(
        self, path: Path, *, origin: str, fallback: Mapping[str, str] | None = None
    ) -> None:
        self._file = WatchedFile(path, origin=origin)
        self._origin = f"{origin} ({path})"
        self._fallback = fallback
        self._content: bytes | None = None
        self._headers: Mapping[str, str] = {}

    async def headers(self) -> Mapping[str, str]:
        """Return the bearer header for the file's present token. Raises `CredentialError`."""
        return self.current()

    def current(self) -> Mapping[str, str]:
        """Do as `headers`, without a loop: configuration reads the file once to find mistakes."""
        try:
            return self._from_file()
        except CredentialError:
            if self._fallback is None:
                raise
            return self._fallback

    def invalidate(self, refused: Mapping[str, str] | None = None) -> None:
        """Read the file again for the next request, unless it already gave another token."""
        if refused is None or refused == self._headers:
            self._file.forget()
            self._content = None
            self._headers = {}

    def _from_file(self) -> Mapping[str, str]:
        content = self._file.read()
        if content is not self._content:
            token = content.decode("utf-8", errors="replace").strip()
            # A file caught while it is rewritten is empty for a moment: keep the last token then.
            if not token and self._headers:
                return self._headers
            self._headers = bearer(token, origin=self._origin)
            self._content = content
        return self._headers


class CertificateSource(Protocol):
    """Gives the client certificate to present, kept fresh."""

    async def key_pair(self) -> ClientKeyPair | None:
        """Return the certificate and its key, or None. Raises `CredentialError`."""

    def invalidate(self, refused: Mapping[str, str] | None = None) -> None:
        """The server answered 401."""


class NoCertificate:
    """No client certificate."""

    async def key_pair(self) -> ClientKeyPair | None:
        """Return None."""
        return None

    def invalidate(self, refused: Mapping[str, str] | None = None) -> None:
        """Nothing can be renewed."""


class PemCertificate:
    """A client certificate and key from settings or files; rotated files are read again."""

    def __init__(self, *, certificate: PemSource, key: PemSource) -> None:
        self._certificate = certificate
        self._key = key

    async def key_pair(self) -> ClientKeyPair | None:
        """Return the present content of both."""
        return self.current()

    def current(self) -> ClientKeyPair:
        """Do as `key_pair`, without a loop, to find mistakes while configuration is read."""
        return ClientKeyPair(
            certificate=self._certificate.read(),
            key=self._key.read(),
            certificate_origin=self._certificate.origin,
            key_origin=self._key.origin,
        )

    def invalidate(self, refused: Mapping[str, str] | None = None) -> None:
        """Read the files again, unless it was a token that the server refused."""
        if not refused:
            self._certificate.forget()
            self._key.forget()


class ComposedCredentials:
    """`Credentials` out of a header source, a certificate source and trust (None for http)."""

    def __init__(
        self, *, headers: HeaderSource, certificates: CertificateSource, tls: TlsContexts | None
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
        # One plugin may be both parts and be notified twice, which does no harm.
        self._headers.invalidate(refused)
        self._certificates.invalidate(refused)

    def __repr__(self) -> str:
        parts = (type(self._headers).__name__, type(self._certificates).__name__)
        return f"ComposedCredentials({', '.join(dict.fromkeys(parts))})"
