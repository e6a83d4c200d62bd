"""Connections to pods: opened a few at a time, kept while idle, handed out in order.

The newest idle connection is used first, so that the others age and are closed. A consumer that finds no idle
connection waits in a queue for its pod, and the first free connection, new or released, goes to the head of the
queue. So a crowd that waited for a pod does not open a thousand connections into a backlog of a hundred, and it
keeps its order. An idle connection never occupies a server that other requests wait for (`parallel`). A connection
belongs either to the pool or to one exchange.
"""

from __future__ import annotations

import asyncio

from elasti.resolver.proxy.deadlines import DeadlineSweeper
from elasti.resolver.proxy.limits import Limits
from elasti.resolver.proxy.quota import QuotaShare
from elasti.resolver.proxy.transport import KEEPALIVE
from elasti.resolver.proxy.upstream.interface import UpstreamAddress
from elasti.resolver.proxy.upstream.pod_connection import PodConnection, PodConsumer, PodPool
from kubeloop.aio.relay import is_open

# Consumers that are sent away in one iteration of the loop.
_PER_TURN = 64
# After this long without a response, more connections are opened.
_PACE = 0.02
# For how long an idle connection is kept while a request waits on another one, until the pod is known to serve several.
_DOUBT = 0.05


class UpstreamPool:
    """A worker's connections to pods."""

    def __init__(self, *, limits: Limits, sweeper: DeadlineSweeper) -> None:
        self._limits = limits
        self._sweeper = sweeper
        self._pod_pools: dict[UpstreamAddress, PodPool] = {}
        # For protocols that need a new connection.
        self._fresh: dict[UpstreamAddress, PodPool] = {}
        # Pods that are to be connected to, by the Service whose share has nothing left; both in order.
        self._starved: dict[QuotaShare, dict[PodPool, None]] = {}
        # Every pod with an idle connection is among these.
        self._with_idle: dict[PodPool, None] = {}
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

        A request that cannot be repeated only gets a connection that was used a moment ago and that the kernel
        sees open: pods close idle connections without notice, and a request that hits the close is lost.
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
        parallel = pod_pool.parallel
        if pod_pool.waiting:
            if parallel.proven or not parallel.is_starving():
                _serve_first(pod_pool, connection)
                self._pump(pod_pool)
            else:
                connection.drop()
        elif len(pod_pool.idle) < self._limits.max_idle_per_pod:
            pod_pool.idle[connection] = self._sweeper.tick
            self._with_idle[pod_pool] = None
            if not parallel.proven and parallel.has_unanswered and pod_pool.doubting is None:
                loop = asyncio.get_running_loop()
                pod_pool.doubting = loop.call_later(_DOUBT, self._end_idle, pod_pool)
        else:
            connection.drop()

    def open(self, address: UpstreamAddress, consumer: PodConsumer, *, fresh: bool = False) -> None:
        """Queue a consumer for a connection to a pod."""
        pod_pools = self._fresh if fresh else self._pod_pools
        pod_pool = pod_pools.get(address)
        if pod_pool is None:
            pod_pool = PodPool(
                address,
                fresh=fresh,
                credit=self._limits.first_connects,
                now=asyncio.get_running_loop().time,
            )
            pod_pools[address] = pod_pool
            self._sweeper.add(self)
        pod_pool.waiting[consumer] = None
        self._pump(pod_pool)

    def cancel(
        self, address: UpstreamAddress, consumer: PodConsumer, *, fresh: bool = False
    ) -> None:
        """Remove a consumer from the queue. Safe to repeat."""
        pod_pool = (self._fresh if fresh else self._pod_pools).get(address)
        if pod_pool is not None:
            pod_pool.waiting.pop(consumer, None)
            pod_pool.failed.pop(consumer, None)

    def lost(self, connection: PodConnection) -> None:
        """A connection is gone; its descriptor may serve a consumer that found none."""
        pod_pool = connection.pod_pool
        pod_pool.open -= 1
        pod_pool.idle.pop(connection, None)
        connection.share.give()
        pod_pool.answers += 1
        if pod_pool.waiting:
            self._pump(pod_pool)
        # One descriptor came back. If it was of a reserve only the same Service may have it.
        self._pump_starved(connection.share)
        if self._starved:
            self._pump_starved(next(iter(self._starved)))

    def _pump_starved(self, share: QuotaShare) -> None:
        """Connect to the pod that has waited longest for a share; its Service is the last in turn then."""
        pod_pools = self._starved.pop(share, {})
        while pod_pools:
            pod_pool = next(iter(pod_pools))
            del pod_pools[pod_pool]
            if pod_pool.waiting:
                if pod_pools:
                    self._starved[share] = pod_pools
                self._pump(pod_pool)
                return

    def _end_idle(self, pod_pool: PodPool) -> None:
        """Close idle connections if they may occupy a server that others wait for."""
        pod_pool.doubting = None
        if not pod_pool.parallel.proven and pod_pool.parallel.has_unanswered:
            for connection in list(pod_pool.idle):
                connection.drop()

    def sweep(self, tick: int) -> None:
        """Close old idle connections, forget pods without connections, and try those without a share again."""
        limits = self._limits
        starved, self._starved = self._starved, {}
        for starved_pools in starved.values():
            for pod_pool in starved_pools:
                self._pump(pod_pool)
        for pod_pools in (self._pod_pools, self._fresh):
            for address, pod_pool in list(pod_pools.items()):
                proven = pod_pool.parallel.proven
                oldest = tick - (limits.pod_idle if proven else limits.pod_idle_unrepeatable)
                for connection in [c for c, since in pod_pool.idle.items() if since < oldest]:
                    connection.drop()
                if not (
                    pod_pool.open or pod_pool.waiting or pod_pool.failed or pod_pool.connecting
                ):
                    del pod_pools[address]
                    self._with_idle.pop(pod_pool, None)
        if not (self._pod_pools or self._fresh):
            self._sweeper.discard(self)

    async def aclose(self) -> None:
        """Close idle connections and cancel attempts."""
        for pod_pool in self._pod_pools.values():
            for connection in list(pod_pool.idle):
                connection.drop()
        for pod_pool in (*self._pod_pools.values(), *self._fresh.values()):
            for timer in (pod_pool.pacing, pod_pool.doubting):
                if timer is not None:
                    timer.cancel()
        attempts = list(self._attempts)
        for attempt in attempts:
            attempt.cancel()
        await asyncio.gather(*attempts, return_exceptions=True)

    def _pump(self, pod_pool: PodPool) -> None:
        """Open connections for waiting consumers, within the limits."""
        if pod_pool.answers:
            if not pod_pool.parallel.is_doubtful:
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
                self._starved.setdefault(share, {})[pod_pool] = None
                self._close_an_idle_one()
                return
            pod_pool.credit -= 1
            pod_pool.connecting += 1
            attempt = asyncio.get_running_loop().create_task(self._connect(pod_pool, share))
            self._attempts.add(attempt)
            attempt.add_done_callback(self._attempts.discard)

    def _more(self, pod_pool: PodPool, step: int) -> None:
        """Allow more connections to a pod if there was no response meanwhile."""
        pod_pool.pacing = None
        is_silent = pod_pool.step == step and not pod_pool.answers
        if is_silent and not pod_pool.parallel.is_doubtful:
            pod_pool.credit += step
            pod_pool.step = step * 2
        self._pump(pod_pool)

    def _not_accepted(self, pod_pool: PodPool, since: float) -> None:
        """Retry more slowly; give up if the pod has accepted nothing for long."""
        if pod_pool.silent_since is None:
            pod_pool.silent_since = since
        if asyncio.get_running_loop().time() - pod_pool.silent_since >= self._limits.connect:
            pod_pool.silent_since = None
            self._give_up(pod_pool)
            return
        pod_pool.credit, pod_pool.gain, pod_pool.step = 0, 1, self._limits.first_connects
        self._pump(pod_pool)

    def _close_an_idle_one(self) -> None:
        while self._with_idle:
            pod_pool = next(iter(self._with_idle))
            if pod_pool.idle:
                next(iter(pod_pool.idle)).drop()
                return
            del self._with_idle[pod_pool]

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
                # Longer next time: this loop may be the one that is late.
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
        KEEPALIVE.enable(connection.transport.get_extra_info("socket"))
        if pod_pool.waiting:
            _serve_first(pod_pool, connection)
            self._pump(pod_pool)
        else:
            # A server that handles one connection at a time would wait for its request.
            connection.drop()

    def _give_up(self, pod_pool: PodPool) -> None:
        """Send all queued consumers elsewhere."""
        # Not those that come later: they were not refused.
        is_at_it = bool(pod_pool.failed)
        pod_pool.failed |= pod_pool.waiting
        pod_pool.waiting.clear()
        if not is_at_it:
            self._send_away(pod_pool)

    def _send_away(self, pod_pool: PodPool) -> None:
        for _ in range(_PER_TURN):
            if not pod_pool.failed:
                return
            # The last first: each goes to the head of the upstream's queue, so the first ends up at its head.
            consumer, _ = pod_pool.failed.popitem()
            consumer.connect_failed(pod_pool.address)
        if pod_pool.failed:
            asyncio.get_running_loop().call_soon(self._send_away, pod_pool)


def _serve_first(pod_pool: PodPool, connection: PodConnection) -> None:
    consumer = next(iter(pod_pool.waiting))
    del pod_pool.waiting[consumer]
    consumer.connected(connection)
