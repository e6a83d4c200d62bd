"""Who a client is on the wire: credentials, impersonation and its own name, kept fresh.

Every attempt asks for a `Login` first. Where the server answers 401, the credentials are told which
headers were refused, and the attempt is made once more if they have others to offer; a server that
refuses the same headers would only refuse them again. Its word for that is a bare "Unauthorized":
which server that was, and whose credentials, is added here.
"""

from __future__ import annotations

import dataclasses
import platform
from typing import TYPE_CHECKING, TypeVar

import msgspec

from kubeloop._version import __version__
from kubeloop.client.errors import Unauthorized

if TYPE_CHECKING:
    import ssl
    from collections.abc import Awaitable, Callable, Mapping

    from kubeloop.client.config import ClientConfig

R = TypeVar("R")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Login:
    """What one attempt is sent with."""

    authorization: Mapping[str, str] = dataclasses.field(repr=False)
    ssl_context: ssl.SSLContext | None
    common: tuple[tuple[str, str], ...] = ()

    def headers(self) -> tuple[tuple[str, str], ...]:
        """Return all header lines in order; a name may repeat."""
        return (*self.common, *self.authorization.items())


class Identity:
    """Makes the `Login` of each attempt."""

    def __init__(self, config: ClientConfig, *, user_agent: str = "") -> None:
        self._credentials = config.credentials
        self._parties = f"{config.endpoint} does not accept our credentials ({config.source})"
        acting = config.impersonate.headers() if config.impersonate else ()
        self._common = (("User-Agent", user_agent or default_user_agent()), *acting)

    async def login(self) -> Login:
        """Return the present credentials. Raises `ConfigError` where there are none to be had."""
        return Login(
            authorization=dict(await self._credentials.headers()),
            ssl_context=await self._credentials.ssl_context(),
            common=self._common,
        )

    async def attempt(self, call: Callable[[Login], Awaitable[R]]) -> R:
        """Run one attempt, and a second one with new credentials if the first met a 401."""
        login = await self.login()
        try:
            return await call(login)
        except Unauthorized as error:
            self._credentials.invalidate(login.authorization)
            renewed = await self.login()
            if _same(login, renewed):
                raise self._explained(error) from None
        try:
            return await call(renewed)
        except Unauthorized as error:
            raise self._explained(error) from None

    def _explained(self, error: Unauthorized) -> Unauthorized:
        message = f"{error}: {self._parties}; have they expired, or are they of another cluster?"
        status = msgspec.structs.replace(error.status, message=message)
        return Unauthorized(status, retry_after=error.retry_after)


def _same(old: Login, new: Login) -> bool:
    same_tls = old.ssl_context is new.ssl_context
    return same_tls and dict(old.authorization) == dict(new.authorization)


def default_user_agent() -> str:
    """Return `kubeloop/VERSION (python VERSION; SYSTEM)`."""
    python = f"python {platform.python_version()}; {platform.system().lower()}"
    return f"kubeloop/{__version__} ({python})"
