"""The checks on the network: does a port accept, does a probe pass, does a database serve.

PostgreSQL, MySQL and Redis accept connections while they recover or load, and say so in their own protocols.
Each is sent what a client would send first. Whatever it answers counts as serving, an error too, such as a
role that does not exist; except the one that means that it is starting or stopping.
"""

from __future__ import annotations

import asyncio
import enum
import errno
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Protocol

from elasti.resolver.readiness.plan import DatabaseKind, PlannedProbe
from kubeloop.objects.core import GrpcAction, TcpSocketAction
from kubeloop.probes.checks import connection, http_get, tcp_connect
from kubeloop.probes.grpc_health import grpc_check

if TYPE_CHECKING:
    from elasti.resolver.proxy.upstream.interface import UpstreamAddress

_AGENT = "kube-probe/elasti"
# Version 3.0, for a role and a database that need not exist.
_POSTGRESQL_HELLO = b"\0\3\0\0user\0elasti\0database\0elasti\0\0"
_POSTGRESQL_STARTUP = (len(_POSTGRESQL_HELLO) + 4).to_bytes(4, "big") + _POSTGRESQL_HELLO
_LONGEST_ERROR = 8192
_MYSQL_HANDSHAKE, _MYSQL_ERROR, _MYSQL_SHUTTING_DOWN = 10, 255, 1053
_REACHED = frozenset((errno.ECONNREFUSED, errno.ECONNRESET))


class Reachability(enum.Enum):
    """What a connection attempt showed."""

    ACCEPTED = "accepted"
    # The pod's machine answered: nothing listens yet.
    REFUSED = "refused"
    # No answer: no route, or a policy drops us.
    UNREACHABLE = "unreachable"


class PodChecks(Protocol):
    """How pods are asked."""

    async def connect(self, address: UpstreamAddress, *, timeout: float) -> Reachability:
        """Try one connection."""

    async def ask(self, host: str, question: PlannedProbe) -> bool:
        """Ask one probe of the pod at an address, once."""


class NetworkChecks:
    """Asks over the network."""

    async def connect(self, address: UpstreamAddress, *, timeout: float) -> Reachability:
        """Try one connection; it is closed at once."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(timeout):
                transport, _ = await loop.create_connection(asyncio.Protocol, *address)
        except TimeoutError:
            return Reachability.UNREACHABLE
        except OSError as error:
            return Reachability.REFUSED if error.errno in _REACHED else Reachability.UNREACHABLE
        transport.abort()
        return Reachability.ACCEPTED

    async def ask(self, host: str, question: PlannedProbe) -> bool:
        """Ask one probe, within its own timeout."""
        port, timeout = question.port, question.timeout
        action = question.action
        if isinstance(action, DatabaseKind):
            return await _database_serves(action, host, port, timeout)
        if isinstance(action, TcpSocketAction):
            outcome = await tcp_connect(host, port, timeout=timeout)
        elif isinstance(action, GrpcAction):
            service = action.service or ""
            outcome = await grpc_check(host, port, service=service, timeout=timeout, agent=_AGENT)
        else:
            outcome = await http_get(action, host, port, timeout=timeout, agent=_AGENT)
        return outcome.healthy


async def _database_serves(database: DatabaseKind, host: str, port: int, timeout: float) -> bool:
    try:
        async with asyncio.timeout(timeout), connection(host, port) as (reader, writer):
            return await _ASKING[database](reader, writer)
    except (OSError, TimeoutError, EOFError, asyncio.LimitOverrunError):
        return False


async def _postgresql(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    writer.write(_POSTGRESQL_STARTUP)
    kind = await reader.readexactly(1)
    if kind != b"E":
        # It asks who we are, or for an older version of the protocol.
        return kind in (b"R", b"v")
    length = int.from_bytes(await reader.readexactly(4), "big") - 4
    fields = await reader.readexactly(min(max(length, 0), _LONGEST_ERROR))
    return b"\0C57P03\0" not in fields


async def _mysql(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> bool:
    # The server speaks first: length, number and kind of its packet, then the code of an error.
    packet = await reader.readexactly(7)
    if packet[4] == _MYSQL_ERROR:
        return int.from_bytes(packet[5:7], "little") != _MYSQL_SHUTTING_DOWN
    return packet[4] == _MYSQL_HANDSHAKE


async def _redis(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
    writer.write(b"PING\r\n")
    answer = await reader.readuntil(b"\r\n")
    return answer.startswith((b"+", b"-")) and not answer.startswith(b"-LOADING")


_ASKING: dict[
    DatabaseKind, Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[bool]]
] = {
    DatabaseKind.POSTGRESQL: _postgresql,
    DatabaseKind.MYSQL: _mysql,
    DatabaseKind.REDIS: _redis,
}
