"""Who we are to an API server: the seam between configuration and transport.

A transport asks for headers before each request and for the TLS context before each connection.
Both are cheap while nothing changed. After a 401 it calls `invalidate`, and the next request gets
what a fresh read of the file or a fresh run of the plugin gives.
"""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING, Protocol

from kubeloop.client.errors import CredentialError

if TYPE_CHECKING:
    import ssl
    from collections.abc import Mapping


class Credentials(Protocol):
    """What proves our identity, kept fresh."""

    async def headers(self) -> Mapping[str, str]:
        """Return the Authorization header, or nothing. Raises `CredentialError`."""

    async def ssl_context(self) -> ssl.SSLContext | None:
        """Return the TLS context for new connections; None where the endpoint is not https.

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


class StaticToken:
    """A bearer token that never changes; for tests and for callers that manage their own."""

    def __init__(self, token: str, context: ssl.SSLContext | None = None) -> None:
        self._headers = bearer(token, origin="token")
        self._context = context

    async def headers(self) -> Mapping[str, str]:
        """Return the bearer header."""
        return self._headers

    async def ssl_context(self) -> ssl.SSLContext | None:
        """Return the context given."""
        return self._context

    def invalidate(self, refused: Mapping[str, str] | None = None) -> None:
        """Nothing can be renewed."""

    def __repr__(self) -> str:
        return "StaticToken(***)"


def bearer(token: str, *, origin: str) -> Mapping[str, str]:
    """Make the Authorization header; raises where the token could not be one header's value."""
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
