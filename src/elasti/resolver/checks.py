"""The questions themselves, on the network: does a port accept, does a probe pass.

Nothing of an answer is kept and none of it is believed: a few bytes tell yes or no, in bounded time.
Certificates are not checked, as the kubelet does not: the probe asks whether the pod serves, and
tells it nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import errno
import functools
import re
import ssl
from typing import TYPE_CHECKING, Protocol

from elasti.resolver.grpc_health import is_serving
from elasti.resolver.probes import Grpc, HttpGet, Question, TcpSocket

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from elasti.resolver.proxy.target import Address

_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)[ \r\n]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")
_AGENT = "kube-probe/elasti"
_REACHED = frozenset((errno.ECONNREFUSED, errno.ECONNRESET))


class Reach(enum.Enum):
    """What a connection attempt showed."""

    ACCEPTED = "accepted"
    # The pod's machine answered: nothing listens yet.
    REFUSED = "refused"
    # Nobody answered: no route, or a policy drops us.
    UNREACHABLE = "unreachable"


class Checks(Protocol):
    """How pods are asked."""

    async def connect(self, address: Address, *, timeout: float) -> Reach:
        """Try one connection."""

    async def ask(self, host: str, question: Question) -> bool:
        """Ask one probe of the pod at an address, once."""


class NetworkChecks:
    """Asks over the network."""

    async def connect(self, address: Address, *, timeout: float) -> Reach:
        """Try one connection; it is closed at once."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                transport, _ = await loop.create_connection(asyncio.Protocol, *address)
        except TimeoutError:
            return Reach.UNREACHABLE
        except OSError as error:
            return Reach.REFUSED if error.errno in _REACHED else Reach.UNREACHABLE
        transport.abort()
        return Reach.ACCEPTED

    async def ask(self, host: str, question: Question) -> bool:
        """Ask one probe, within its own timeout."""
        try:
            async with asyncio.timeout(question.timeout):
                return await self._ask(host, question)
        except (OSError, EOFError, TimeoutError, ValueError):
            return False

    async def _ask(self, host: str, question: Question) -> bool:
        match question.action:
            case TcpSocket():
                async with _connection(host, question.port):
                    return True
            case Grpc(service=service):
                async with _connection(host, question.port) as (reader, writer):
                    return await is_serving(reader, writer, host=host, service=service or "")
            case HttpGet() as action:
                return await _get(action, host, question.port)


@contextlib.asynccontextmanager
async def _connection(
    host: str, port: int, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    reader, writer = await asyncio.open_connection(host, port, ssl=tls, limit=16 * 1024)
    try:
        yield reader, writer
    finally:
        # Nothing that was sent still matters, and a graceful end would only keep a socket.
        writer.transport.abort()


async def _get(action: HttpGet, host: str, port: int) -> bool:
    tls = _unverified() if action.scheme.upper() == "HTTPS" else None
    async with _connection(host, port, tls=tls) as (reader, writer):
        writer.write(_request(action, host, port))
        found = _STATUS.match(await reader.readline())
        return found is not None and 200 <= int(found[1]) < 400


def _request(action: HttpGet, host: str, port: int) -> bytes:
    """Return the request. Raises ValueError for a path or header that would be another request."""
    path = action.path if action.path.startswith("/") else f"/{action.path}"
    shown = f"[{host}]" if ":" in host else host
    fields = {"host": ("Host", f"{shown}:{port}"), "user-agent": ("User-Agent", _AGENT)}
    fields |= {item.name.lower(): (item.name, item.value) for item in action.http_headers}
    fields["connection"] = ("Connection", "close")
    lines = [f"GET {path} HTTP/1.1", *(f"{name}: {value}" for name, value in fields.values())]
    if any(_CONTROL.search(line) for line in lines) or " " in path:
        raise ValueError("the probe's path or headers cannot be sent")
    return ("\r\n".join(lines) + "\r\n\r\n").encode()


@functools.cache
def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
