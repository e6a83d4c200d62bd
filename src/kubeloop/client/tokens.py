"""Where the Authorization header comes from, apart from exec plugins."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from kubeloop.client.credentials import bearer
from kubeloop.client.errors import CredentialError
from kubeloop.client.watched_file import WatchedFile

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


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
        """Read the file anew for the next request, unless it already gave another token."""
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
