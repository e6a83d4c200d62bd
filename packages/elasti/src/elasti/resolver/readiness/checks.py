"""Network checks: whether a port accepts, a probe passes, or a database serves.

PostgreSQL, MySQL and Redis accept connections while they recover or load, and report that in their protocols.
Each gets a client's first message. Any response counts as serving, even an error such as an unknown role,
except the error that means starting or stopping.
"""

from __future__ import annotations

import asyncio
import enum
import errno
from collections.abc import Awaitable, Callable
from typing import Protocol

from elasti.resolver.projections import DatabaseKind
from elasti.resolver.proxy.upstream.interface import UpstreamAddress
from elasti.resolver.readiness.plan import PlannedProbe, StartEnded
from kubeloop.objects.core import GrpcAction, TcpSocketAction
from kubeloop.probes.checks import connection, http_get, tcp_connect
from kubeloop.probes.grpc_health import grpc_check

_AGENT = "kube-probe/elasti"
# Version 3.0, for a role and a database that need not exist.
_POSTGRESQL_HELLO = b"\0\3\0\0user\0elasti\0database\0elasti\0\0"
_POSTGRESQL_STARTUP = (len(_POSTGRESQL_HELLO) + 4).to_bytes(4, "big") + _POSTGRESQL_HELLO
_LONGEST_ERROR = 8192
_MYSQL_HANDSHAKE, _MYSQL_ERROR, _MYSQL_SHUTTING_DOWN = 10, 255, 1053
_REACHED = frozenset((errno.ECONNREFUSED, errno.ECONNRESET))


class Reachability(enum.Enum):
    """The result of a connection attempt."""

    ACCEPTED = "accepted"
    # The pod's network stack answered: nothing listens yet.
    REFUSED = "refused"
    # No answer: there is no route, or a policy drops packets.
    UNREACHABLE = "unreachable"


class DatabaseAnswer(enum.Enum):
    """What a database's first answer says."""

    SERVES = "serves"
    STARTS = "starts"
    # Nothing, or something else than this database answers.
    UNKNOWN = "unknown"


class PodChecks(Protocol):
    """How pods are asked."""

    async def connect(self, address: UpstreamAddress, *, timeout: float) -> Reachability:
        """Try one connection."""

    async def ask(self, host: str, question: PlannedProbe) -> bool:
        """Ask one probe of the pod at an address, once."""


class NetworkChecks:
    """`PodChecks` over the network."""

    async def connect(self, address: UpstreamAddress, *, timeout: float) -> Reachability:
        """Try one connection, and close it."""
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
        """Run one probe within its own timeout."""
        port, timeout = question.port, question.timeout
        action = question.action
        if isinstance(action, DatabaseKind):
            return await _asked(action, host, port, timeout) is DatabaseAnswer.SERVES
        if isinstance(action, StartEnded):
            answer = await _asked(action.database, host, port, timeout)
            return answer is not DatabaseAnswer.STARTS
        if isinstance(action, TcpSocketAction):
            outcome = await tcp_connect(host, port, timeout=timeout)
        elif isinstance(action, GrpcAction):
            service = action.service or ""
            outcome = await grpc_check(host, port, service=service, timeout=timeout, agent=_AGENT)
        else:
            outcome = await http_get(action, host, port, timeout=timeout, agent=_AGENT)
        return outcome.healthy


async def _asked(database: DatabaseKind, host: str, port: int, timeout: float) -> DatabaseAnswer:
    try:
        async with asyncio.timeout(timeout), connection(host, port) as (reader, writer):
            return await _ASKING[database](reader, writer)
    except (OSError, TimeoutError, EOFError, asyncio.LimitOverrunError):
        return DatabaseAnswer.UNKNOWN


def _answer(*, serves: bool, starts: bool) -> DatabaseAnswer:
    if starts:
        return DatabaseAnswer.STARTS
    return DatabaseAnswer.SERVES if serves else DatabaseAnswer.UNKNOWN


async def _postgresql(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> DatabaseAnswer:
    writer.write(_POSTGRESQL_STARTUP)
    kind = await reader.readexactly(1)
    if kind != b"E":
        # It asks for authentication, or for an older version of the protocol.
        return _answer(serves=kind in (b"R", b"v"), starts=False)
    length = int.from_bytes(await reader.readexactly(4), "big") - 4
    fields = await reader.readexactly(min(max(length, 0), _LONGEST_ERROR))
    return _answer(serves=True, starts=b"\0C57P03\0" in fields)


async def _mysql(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> DatabaseAnswer:
    # The server speaks first: the packet's length, number and kind, then an error's code.
    packet = await reader.readexactly(7)
    if packet[4] == _MYSQL_ERROR:
        code = int.from_bytes(packet[5:7], "little")
        return _answer(serves=True, starts=code == _MYSQL_SHUTTING_DOWN)
    return _answer(serves=packet[4] == _MYSQL_HANDSHAKE, starts=False)


async def _redis(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> DatabaseAnswer:
    writer.write(b"PING\r\n")
    answer = await reader.readuntil(b"\r\n")
    return _answer(serves=answer.startswith((b"+", b"-")), starts=answer.startswith(b"-LOADING"))


_ASKING: dict[
    DatabaseKind, Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[DatabaseAnswer]]
] = {DatabaseKind.POSTGRESQL: _postgresql, DatabaseKind.MYSQL: _mysql, DatabaseKind.REDIS: _redis}
