"""Connections to pods: opened a few at a time, kept when idle, handed out in order.

Idle connections are taken newest first, so that the others grow old and are closed by age. A consumer that
finds none waits in a queue per pod: the first free connection, new or released, goes to the head of it. That
keeps a crowd that was held for a waking pod from opening a thousand connections into a backlog of a
hundred, and keeps its order. A connection belongs to the pool or to one exchange, never to both.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from elasti.resolver.proxy.transport import enable_transport_keepalive, is_open
from elasti.resolver.proxy.upstream.pod_connection import PodConnection

if TYPE_CHECKING:
    from elasti.resolver.proxy.deadlines import DeadlineSweeper
    from elasti.resolver.proxy.limits import Limits
    from elasti.resolver.proxy.quota import QuotaShare
    from elasti.resolver.proxy.upstream.interface import UpstreamAddress
    from elasti.resolver.proxy.upstream.search import UpstreamSearch


# How many are notified in one iteration of the loop that a pod does not accept.
_PER_TURN = 64
# For how long nothing is answered before more connections are begun.
_PACE = 0.02


class PodPool:
    """What the pool knows of one pod.

    A pod that has just begun to serve is not connected to by a whole queue at once: many servers have a
    backlog of 5 to 128, and what is beyond it waits for a second. `credit` is how many connections may be
    begun. Each answer gives two more, so that they double; one more after a connection was not accepted.
    While nothing is answered, as in streams, they double with time.
    """

    __slots__ = (
        "address", "answers", "connecting", "credit", "failed", "fresh", "gain", "idle", "open", "pacing",
        "patience", "silent_since", "step", "waiting",
    )  # fmt: skip

    def __init__(self, address: UpstreamAddress, *, fresh: bool, credit: int) -> None:
        self.address = address
        self.fresh = fresh
        self.credit = self.step = credit
        # Answers since they were last looked at, and what each is worth.
        self.answers = 0
        self.gain = 2
        self.pacing: asyncio.TimerHandle | None = None
        # How long a connection may take, and since when none was accepted.
        self.patience = 0.0
        self.silent_since: float | None = None
        self.idle: dict[PodConnection, int] = {}
        self.waiting: dict[UpstreamSearch, None] = {}
        # Those that are still to be notified that the pod does not accept.
        self.failed: dict[UpstreamSearch, None] = {}
        self.connecting = 0
        self.open = 0


class UpstreamPool:
    """The connections of one worker to pods."""

    def __init__(self, *, limits: Limits, sweeper: DeadlineSweeper) -> None:
        self._limits = limits
        self._sweeper = sweeper
        self._pod_pools: dict[UpstreamAddress, PodPool] = {}
        # For protocols that need a connection of their own, never one that was used before.
        self._fresh: dict[UpstreamAddress, PodPool] = {}
        self._starved: set[PodPool] = set()
        self._attempts: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        pod_pools = [*self._pod_pools.values(), *self._fresh.values()]
        idle, waiting = (
            sum(len(pod_pool.idle) for pod_pool in pod_pools),
            sum(len(x.waiting) for x in pod_pools),
        )
        return f"<UpstreamPool {idle} idle, {sum(pod_pool.open for pod_pool in pod_pools)} open, {waiting} waiting>"

    def take(self, address: UpstreamAddress, *, repeatable: bool) -> PodConnection | None:
        """Return an idle connection, or None.

        A request that cannot be repeated gets one that was used a moment ago, and of which the
        kernel knows no end: pods close idle connections unannounced, and a request that meets the
        closing is lost.
        """
        pod_pool = self._pod_pools.get(address)
        if pod_pool is None or not pod_pool.idle:
            return None
        connection, tick = pod_pool.idle.popitem()
        age = self._sweeper.tick - tick
        if not repeatable and age > self._limits.pod_idle_unrepeatable:
            pod_pool.idle[connection] = tick
            return None
        transport = connection.transport
        if transport is None or transport.is_closing():
            return self.take(address, repeatable=repeatable)
        if not repeatable and not is_open(transport):
            connection.drop()
            return self.take(address, repeatable=repeatable)
        return connection

    def put(self, connection: PodConnection) -> None:
        """Take back a connection whose exchange is over."""
        pod_pool = connection.pod_pool
        pod_pool.answers += 1
        if pod_pool.waiting:
            _serve_first(pod_pool, connection)
            self._pump(pod_pool)
        elif len(pod_pool.idle) < self._limits.max_idle_per_pod:
            pod_pool.idle[connection] = self._sweeper.tick
        else:
            connection.drop()

    def open(
        self, address: UpstreamAddress, consumer: UpstreamSearch, *, fresh: bool = False
    ) -> None:
        """Queue for a connection to a pod."""
        pod_pools = self._fresh if fresh else self._pod_pools
        pod_pool = pod_pools.get(address)
        if pod_pool is None:
            pod_pool = PodPool(address, fresh=fresh, credit=self._limits.first_connects)
            pod_pools[address] = pod_pool
        pod_pool.waiting[consumer] = None
        self._pump(pod_pool)

    def cancel(
        self, address: UpstreamAddress, consumer: UpstreamSearch, *, fresh: bool = False
    ) -> None:
        """Leave the queue. Safe for one that is not in it."""
        pod_pool = (self._fresh if fresh else self._pod_pools).get(address)
        if pod_pool is not None:
            pod_pool.waiting.pop(consumer, None)
            pod_pool.failed.pop(consumer, None)

    def lost(self, connection: PodConnection) -> None:
        """A connection is gone: a consumer that found no descriptor may have it."""
        pod_pool = connection.pod_pool
        pod_pool.open -= 1
        pod_pool.idle.pop(connection, None)
        connection.share.give()
        pod_pool.answers += 1
        if pod_pool.waiting:
            self._pump(pod_pool)
        starved, self._starved = self._starved, set()
        for pod_pool in starved:
            self._pump(pod_pool)

    def sweep(self, tick: int) -> None:
        """Close what has been idle for too long, and forget pods that nothing is open to."""
        oldest = tick - self._limits.pod_idle
        for pod_pools in (self._pod_pools, self._fresh):
            for address, pod_pool in list(pod_pools.items()):
                for connection in [c for c, since in pod_pool.idle.items() if since < oldest]:
                    connection.drop()
                if not (
                    pod_pool.open or pod_pool.waiting or pod_pool.failed or pod_pool.connecting
                ):
                    del pod_pools[address]

    async def aclose(self) -> None:
        """Close everything that is idle, and end every attempt."""
        for pod_pool in self._pod_pools.values():
            for connection in list(pod_pool.idle):
                connection.drop()
        for pod_pool in (*self._pod_pools.values(), *self._fresh.values()):
            if pod_pool.pacing is not None:
                pod_pool.pacing.cancel()
        attempts = list(self._attempts)
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)

    def _pump(self, pod_pool: PodPool) -> None:
        """Open as many connections as there are waiting, within the limits."""
        if pod_pool.answers:
            pod_pool.credit += pod_pool.answers * pod_pool.gain
            pod_pool.answers, pod_pool.step = 0, self._limits.first_connects
        wanted = min(len(pod_pool.waiting), self._limits.connects_per_pod)
        while pod_pool.connecting < wanted:
            is_crowd = pod_pool.connecting or len(pod_pool.waiting) > self._limits.first_connects
            if pod_pool.credit <= 0 and is_crowd:
                if pod_pool.pacing is None:
                    loop = asyncio.get_running_loop()
                    pod_pool.pacing = loop.call_later(_PACE, self._more, pod_pool, pod_pool.step)
                return
            share = next(iter(pod_pool.waiting)).pod_share
            if not share.take():
                self._starved.add(pod_pool)
                self._close_an_idle_one()
                return
            pod_pool.credit -= 1
            pod_pool.connecting += 1
            attempt = asyncio.get_running_loop().create_task(self._connect(pod_pool, share))
            self._attempts.add(attempt)
            attempt.add_done_callback(self._attempts.discard)

    def _more(self, pod_pool: PodPool, step: int) -> None:
        """Allow more connections to a pod where none was answered in the meantime."""
        pod_pool.pacing = None
        if pod_pool.step == step and not pod_pool.answers:
            pod_pool.credit += step
            pod_pool.step = step * 2
        self._pump(pod_pool)

    def _not_accepted(self, pod_pool: PodPool, since: float) -> None:
        """Try again, and more slowly; where the pod has long accepted nothing, give up."""
        if pod_pool.silent_since is None:
            pod_pool.silent_since = since
        if asyncio.get_running_loop().time() - pod_pool.silent_since >= self._limits.connect:
            pod_pool.silent_since = None
            self._give_up(pod_pool)
            return
        pod_pool.credit, pod_pool.gain, pod_pool.step = 0, 1, self._limits.first_connects
        self._pump(pod_pool)

    def _close_an_idle_one(self) -> None:
        for pod_pool in self._pod_pools.values():
            if pod_pool.idle:
                next(iter(pod_pool.idle)).drop()
                return

    async def _connect(self, pod_pool: PodPool, share: QuotaShare) -> None:
        loop = asyncio.get_running_loop()
        host, port = pod_pool.address
        connection = PodConnection(pool=self, pod_pool=pod_pool, share=share)
        began = loop.time()
        patience = max(pod_pool.patience, self._limits.connect_again)
        try:
            async with asyncio.timeout(patience):
                await loop.create_connection(lambda: connection, host, port)
        except BaseException as error:
            pod_pool.connecting -= 1
            connection.abandon()
            if isinstance(error, TimeoutError):
                # Longer next time: it may be this loop that is late.
                pod_pool.patience = min(2 * patience, self._limits.connect)
                self._not_accepted(pod_pool, began)
            elif isinstance(error, OSError):
                self._give_up(pod_pool)
            else:
                raise
        else:
            pod_pool.connecting -= 1
            pod_pool.silent_since = None
            pod_pool.patience = patience / 2
            self._connected(pod_pool, connection)

    def _connected(self, pod_pool: PodPool, connection: PodConnection) -> None:
        if connection.transport is None or connection.transport.is_closing():
            self._give_up(pod_pool)
            return
        enable_transport_keepalive(connection.transport)
        if pod_pool.waiting:
            _serve_first(pod_pool, connection)
            self._pump(pod_pool)
        else:
            # A server that serves one connection at a time would wait for its request.
            connection.drop()

    def _give_up(self, pod_pool: PodPool) -> None:
        """Send every consumer in the queue elsewhere."""
        # Apart from those that come now: they have not been refused.
        is_at_it = bool(pod_pool.failed)
        pod_pool.failed |= pod_pool.waiting
        pod_pool.waiting.clear()
        if not is_at_it:
            self._send_away(pod_pool)

    def _send_away(self, pod_pool: PodPool) -> None:
        for _ in range(_PER_TURN):
            if not pod_pool.failed:
                return
            # The last first: each goes to the head of the upstream's queue, so the first ends up there.
            consumer, _ = pod_pool.failed.popitem()
            consumer.connect_failed(pod_pool.address)
        if pod_pool.failed:
            asyncio.get_running_loop().call_soon(self._send_away, pod_pool)


def _serve_first(pod_pool: PodPool, connection: PodConnection) -> None:
    consumer = next(iter(pod_pool.waiting))
    del pod_pool.waiting[consumer]
    consumer.connected(connection)
