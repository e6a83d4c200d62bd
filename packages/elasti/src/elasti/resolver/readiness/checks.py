"""The checks on the network: does a port accept, does an HTTP, TCP or gRPC probe pass."""

from __future__ import annotations

import asyncio
import enum
import errno
from typing import TYPE_CHECKING, Protocol

from kubeloop.objects.core import GrpcAction, TcpSocketAction
from kubeloop.probes.checks import http_get, tcp_connect
from kubeloop.probes.grpc_health import grpc_check

if TYPE_CHECKING:
    from elasti.resolver.proxy.upstream.interface import UpstreamAddress
    from elasti.resolver.readiness.plan import PlannedProbe

_AGENT = "kube-probe/elasti"
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
        if isinstance(action, TcpSocketAction):
            outcome = await tcp_connect(host, port, timeout=timeout)
        elif isinstance(action, GrpcAction):
            service = action.service or ""
            outcome = await grpc_check(host, port, service=service, timeout=timeout, agent=_AGENT)
        else:
            outcome = await http_get(action, host, port, timeout=timeout, agent=_AGENT)
        return outcome.healthy
