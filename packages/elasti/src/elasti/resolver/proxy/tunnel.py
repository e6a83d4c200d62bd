"""Byte tunnels: after an upgrade, and on ports that are not HTTP.

A tunnel is two ends of `kubeloop.aio.relay`, so back-pressure and half-close pass through. The ends count the
bytes and give back the quota that the connections held.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from elasti.resolver.proxy.statistics import TrafficStatistics
from elasti.resolver.proxy.transport import pause_buffered_reading
from elasti.resolver.proxy.upstream.pod_connection import PodConnection
from kubeloop.aio.relay import RelayEnd


class _TunnelClientEnd(RelayEnd):
    __slots__ = ("_on_speaks", "_statistics")

    def __init__(
        self,
        statistics: TrafficStatistics,
        on_lost: Callable[[], None],
        on_speaks: Callable[[bytes], bool] | None,
    ) -> None:
        super().__init__(on_lost)
        self._statistics = statistics
        self._on_speaks = on_speaks

    def data_received(self, data: bytes) -> None:
        if self._on_speaks is not None and self._on_speaks(data):
            self._on_speaks = None
        self._statistics.received += len(data)
        super().data_received(data)

    def write(self, data: bytes) -> None:
        self._statistics.sent += len(data)
        super().write(data)


def tunnel(
    client: asyncio.Transport,
    pod: PodConnection,
    *,
    statistics: TrafficStatistics,
    on_client_lost: Callable[[], None],
    on_client_speaks: Callable[[bytes], bool] | None = None,
    client_is_slow: bool = False,
    client_sends_no_more: bool = False,
) -> None:
    """Let two connections carry each other's bytes from now on.

    `on_client_speaks` is called with the client's bytes until it returns True. `client_is_slow`: the client's transport has paused writing. `client_sends_no_more`: the client has
    half-closed its connection.
    """
    statistics.tunnels += 1

    def client_lost() -> None:
        statistics.tunnels -= 1
        on_client_lost()

    near, far = _TunnelClientEnd(statistics, client_lost, on_client_speaks), RelayEnd(pod.lost)
    assert pod.transport is not None
    near.connection_made(client)
    far.connection_made(pod.transport)
    pause_buffered_reading(client)
    client.set_protocol(near)
    near.join(far)
    pod.detach(far)
    if client_sends_no_more:
        near.eof_received()
    if client_is_slow:
        near.pause_writing()
