"""TCP probes: a connection that must be accepted."""

from __future__ import annotations

import asyncio
import contextlib
import os
from typing import TYPE_CHECKING

from elasti.devcluster.kubelet.probes.outcome import Outcome, port_number

if TYPE_CHECKING:
    from elasti.devcluster.kubelet.objects.containers import Container, TcpSocket


async def connect(
    action: TcpSocket, container: Container, *, address: str, timeout: float
) -> Outcome:
    """Connect once. Raises ProbeError where the port has no number."""
    host, port = action.host or address, port_number(action.port, container)
    try:
        async with asyncio.timeout(timeout):
            _, writer = await asyncio.open_connection(host, port)
    except TimeoutError:
        return Outcome(healthy=False, message=f"dial tcp {host}:{port}: i/o timeout")
    except OSError as error:
        return Outcome(healthy=False, message=f"dial tcp {host}:{port}: {explain(error)}")
    writer.close()
    with contextlib.suppress(OSError):
        await writer.wait_closed()
    return Outcome(healthy=True)


def explain(error: OSError) -> str:
    """Say what went wrong in the words that users of Kubernetes know."""
    if error.errno is None or error.errno < 0:
        return str(error).lower()
    return f"connect: {os.strerror(error.errno).lower()}"
