"""Bytes both ways, after an upgrade or on a port that is not HTTP.

Two ends of `kubeloop.aio.relay`: back-pressure goes through, and so does half-close. The ends count
what passes and give back what the connections had taken.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.resolver.proxy.reading import stop_reading_into
from kubeloop.aio.relay import RelayEnd

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable

    from elasti.resolver.proxy.pod import PodConnection
    from elasti.resolver.proxy.statistics import Statistics


class _ClientEnd(RelayEnd):
    __slots__ = ("_on_speaks", "_statistics")

    def __init__(
        self,
        statistics: Statistics,
        on_lost: Callable[[], None],
        on_speaks: Callable[[], None] | None,
    ) -> None:
        super().__init__(on_lost)
        self._statistics = statistics
        self._on_speaks = on_speaks

    def data_received(self, data: bytes) -> None:
        if self._on_speaks is not None:
            self._on_speaks()
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
    statistics: Statistics,
    on_client_lost: Callable[[], None],
    on_client_speaks: Callable[[], None] | None = None,
    client_is_slow: bool = False,
    client_sends_no_more: bool = False,
) -> None:
    """Let two connections carry each other's bytes from now on.

    `client_is_slow` where the client's transport has asked for a pause and not yet taken it back,
    `client_sends_no_more` where its end of the stream was read before.
    """
    statistics.tunnels += 1

    def client_lost() -> None:
        statistics.tunnels -= 1
        on_client_lost()

    near, far = _ClientEnd(statistics, client_lost, on_client_speaks), RelayEnd(pod.lost)
    assert pod.transport is not None
    near.connection_made(client)
    far.connection_made(pod.transport)
    stop_reading_into(client)
    client.set_protocol(near)
    near.join(far)
    pod.detach(far)
    if client_sends_no_more:
        near.eof_received()
    if client_is_slow:
        near.pause_writing()
