"""A client's identity on the wire: credentials, impersonation and user agent, kept fresh.

Every attempt asks for an `AuthContext` first. If the server answers 401, the credentials learn
which headers were refused, and the attempt is made once more if they have others to offer; a
server that refuses the same headers would only refuse them again. Its message for that is a bare
"Unauthorized": which server that was, and whose credentials, is added here.
"""

from __future__ import annotations

import dataclasses
import platform
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

import msgspec

from kubeloop._version import __version__
from kubeloop.client.errors import ConfigError, Unauthorized

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Mapping

    from kubeloop.client.config.client_config import ClientConfig


# Characters of an HTTP header's name, without '%', which starts an escape.
_NAME_CHARS = frozenset(
    "!#$&'*+-.^_`|~0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
)


R = TypeVar("R")


@dataclass(frozen=True, slots=True, kw_only=True)
class Impersonation:
    """The user to act as. The real user needs the RBAC verb `impersonate` for each part."""

    user: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Refuse what would break out of a header line."""
        for name, value in self.headers():
            if any(ord(char) < 0x20 or ord(char) == 0x7F for char in value):
                raise ConfigError(f"{name} {value!r} contains a control character; remove it")

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Return the header lines in order; a name repeats for each of its values."""
        lines = [("Impersonate-User", self.user)]
        if self.uid:
            lines.append(("Impersonate-Uid", self.uid))
        lines += [("Impersonate-Group", group) for group in self.groups]
        for key, values in self.extra.items():
            name = f"Impersonate-Extra-{_escape(key)}"
            lines += [(name, value) for value in values]
        return tuple(lines)


def _escape(key: str) -> str:
    """Percent-encode what a header's name cannot carry; the server decodes it."""
    return "".join(
        char if char in _NAME_CHARS else "".join(f"%{byte:02X}" for byte in char.encode())
        for char in key
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AuthContext:
    """The headers and TLS context of one attempt."""

    authorization: Mapping[str, str] = dataclasses.field(repr=False)
    ssl_context: ssl.SSLContext | None
    common: tuple[tuple[str, str], ...] = ()

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Return all header lines in order; a name may repeat."""
        return (*self.common, *self.authorization.items())


class Identity:
    """Makes the `AuthContext` of each attempt."""

    def __init__(self, config: ClientConfig, *, user_agent: str = "") -> None:
        self._credentials = config.credentials
        self._parties = f"{config.endpoint} does not accept our credentials ({config.source})"
        acting = config.impersonate.headers() if config.impersonate else ()
        self._common = (("User-Agent", user_agent or default_user_agent()), *acting)

    async def auth(self) -> AuthContext:
        """Return the present credentials. Raises `ConfigError` if there are no credentials."""
        return AuthContext(
            authorization=dict(await self._credentials.headers()),
            ssl_context=await self._credentials.ssl_context(),
            common=self._common,
        )

    async def attempt(self, call: Callable[[AuthContext], Awaitable[R]]) -> R:
        """Run one attempt, and a second one with new credentials if the first met a 401."""
        auth = await self.auth()
        try:
            return await call(auth)
        except Unauthorized as error:
            self._credentials.invalidate(auth.authorization)
            renewed = await self.auth()
            if _same(auth, renewed):
                raise self._explained(error) from None
        try:
            return await call(renewed)
        except Unauthorized as error:
            raise self._explained(error) from None

    def _explained(self, error: Unauthorized) -> Unauthorized:
        message = f"{error}: {self._parties}; have they expired, or are they of another cluster?"
        status = msgspec.structs.replace(error.status, message=message)
        return Unauthorized(status, retry_after=error.retry_after)


def _same(old: AuthContext, new: AuthContext) -> bool:
    same_tls = old.ssl_context is new.ssl_context
    return same_tls and dict(old.authorization) == dict(new.authorization)


def default_user_agent() -> str:
    """Return `kubeloop/VERSION (python VERSION; SYSTEM)`."""
    python = f"python {platform.python_version()}; {platform.system().lower()}"
    return f"kubeloop/{__version__} ({python})"
