"""The connections that informers' lists and watches have to themselves.

One attempt each, with the client's rate, login and timeouts, and no retry: the reflector decides
what follows a failure. A watch that stays silent for longer than it was to last, and a little more,
is taken for ended, because a peer that vanished without a word looks just like a quiet one.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, TypeVar

from kubeloop.client.stream import open_watch, read_list

if TYPE_CHECKING:
    from kubeloop.client.endpoint import Endpoint
    from kubeloop.client.identity import Login
    from kubeloop.client.request import Request
    from kubeloop.client.sender import Sender
    from kubeloop.client.transport import Timeouts
    from kubeloop.client.watch import WireWatch
    from kubeloop.objects.codec import Codec
    from kubeloop.objects.lists import Page

T = TypeVar("T")

# How long a server lets a watch live at most where the request does not say.
_LONGEST_WATCH = 3600
_GRACE = 5.0


class Links:
    """Opens lists and watches for one client."""

    def __init__(self, *, sender: Sender, endpoint: Endpoint, timeouts: Timeouts) -> None:
        self._sender = sender
        self._endpoint = endpoint
        self._timeouts = timeouts

    async def list(self, request: Request, codec: Codec[T]) -> Page[T]:
        """Read one list. Raises `KubeError`."""

        async def read(login: Login) -> Page[T]:
            return await read_list(
                endpoint=self._endpoint,
                ssl_context=login.ssl_context,
                headers=_lines(request, login),
                target=request.target,
                codec=codec,
                connect_timeout=self._timeouts.connect,
                timeout=self._timeouts.list,
            )

        return await self._sender.once(read)

    async def watch(self, request: Request, codec: Codec[T], *, seconds: int) -> WireWatch[T]:
        """Open a watch that the server was asked to end after `seconds` (0: as it likes)."""

        async def open_(login: Login) -> WireWatch[T]:
            return await open_watch(
                endpoint=self._endpoint,
                ssl_context=login.ssl_context,
                headers=_lines(request, login),
                target=request.target,
                codec=codec,
                connect_timeout=self._timeouts.connect,
                idle_timeout=(seconds or _LONGEST_WATCH) + _GRACE,
            )

        return await self._sender.once(open_)


def _lines(request: Request, login: Login) -> dict[str, str]:
    return {"Accept": request.accept, **distinct(login.headers())}


def distinct(headers: tuple[tuple[str, str], ...]) -> dict[str, str]:
    """Return header lines as a mapping, which cannot repeat a name, without losing any.

    Header names are case-insensitive: each further line of one name (as of `Impersonate-Group`)
    gets a spelling of its own.
    """
    lines: dict[str, str] = {}
    for name, value in headers:
        attempt, spelling = 0, name
        while spelling in lines:
            attempt += 1
            spelling = _respell(name, attempt)
        lines[spelling] = value
    return lines


def _respell(name: str, number: int) -> str:
    """Return the name with its letters in the case that the bits of `number` say."""
    return "".join(
        letter.upper() if number >> place & 1 else letter.lower()
        for place, letter in enumerate(name)
    )
