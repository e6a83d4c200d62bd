"""Quarantined resolver ports, written down, so that a restart does not give them away.

A freed port is quarantined for an hour (`ports`), since a node that is behind may go on sending the
previous Service's traffic there. The leader writes a port into a ConfigMap of its own namespace
*before* the write after which nothing else names it: before the status without it, before the
finalizer goes. The next leader reads it, after entering what is in use. Writes of many ports at
once are one.

If the ConfigMap may not be written, or its namespace does not exist, ports are quarantined only in
memory.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable

from elasti.api.names import FIELD_MANAGER, QUARANTINE_CONFIG_MAP
from elasti.logger import get_logger
from elasti.operator.handover.ports import QUARANTINE, PortBook, PortOwner, port_owner
from elasti.operator.model.children import published_ports, slice_names
from elasti.operator.watch.caches import OperatorCaches
from kubeloop.aio.backoff import Backoff
from kubeloop.aio.clock import Clock
from kubeloop.client.client import Client
from kubeloop.client.errors import AlreadyExists, Forbidden, KubeError, NotFound
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch
from kubeloop.objects.times import format_time, parse_time

_REWRITE_AFTER = 60.0
_TRIES = 3
_MOST_WRITTEN = 15_000
_RETRY = Backoff(duration=0.5, factor=2.0, jitter=0.2, cap=10.0)

_log = get_logger(__name__)


class PortQuarantine:
    """Reads and writes the ConfigMap. One writer: the leader."""

    def __init__(self, client: Client, *, namespace: str, clock: Clock) -> None:
        self._maps = client.resource("v1/configmaps", namespace=namespace)
        self._clock = clock
        self._written: dict[int, float] = {}
        self._pending: set[int] = set()
        self._lock = asyncio.Lock()
        self._usable = True

    async def load(self) -> dict[int, float]:
        """Return for how many seconds each port has been quarantined that still is.

        Tries until the server answers.
        """
        self._written = _times(await self._read())
        now = self._now()
        ages = {port: max(now - freed, 0.0) for port, freed in self._written.items()}
        return {port: age for port, age in ages.items() if age < QUARANTINE}

    async def _read(self) -> JsonObject:
        delays = _RETRY.start()
        while True:
            try:
                return await self._maps.get(QUARANTINE_CONFIG_MAP)
            except NotFound:
                return {}
            except Forbidden as error:
                self._give_up(error)
                return {}
            except KubeError as error:
                _log.warning("quarantined ports cannot be read yet", error=str(error))
                await asyncio.sleep(delays.next_delay())

    async def note(self, ports: Iterable[int]) -> None:
        """Record that ports are quarantined from now on; does nothing if that was recorded just now.

        Raises KubeError if a retry may succeed.
        """
        now = self._now()
        fresh = {port for port in ports if now - self._written.get(port, 0.0) >= _REWRITE_AFTER}
        if not fresh or not self._usable:
            return
        self._pending |= fresh
        async with self._lock:
            if self._pending.isdisjoint(fresh):
                return  # written in another's batch
            batch, self._pending = self._pending, set()
            try:
                await self._write(batch)
            except BaseException:
                self._pending |= batch
                raise

    async def note_freed(self, book: PortBook) -> None:
        """Write down every freed port, before a status is written that does not name it."""
        if freed := frozenset(book.unwritten):
            await self.note(freed)
            book.unwritten -= freed

    async def _write(self, ports: set[int]) -> None:
        now = self._clock.now()
        # One ConfigMap has no room for every port: those that were freed first are the nearest to their end.
        oldest = sorted(self._written, key=self._written.__getitem__)
        excess = max(len(oldest) + len(ports) - _MOST_WRITTEN, 0)
        old = now.timestamp() - QUARANTINE
        expired = [
            port
            for index, port in enumerate(oldest)
            if port not in ports and (index < excess or self._written[port] <= old)
        ]
        stamp = format_time(now)
        data = {str(port): None for port in expired} | {str(port): stamp for port in sorted(ports)}
        try:
            await self._put(data)
        except (Forbidden, NotFound) as error:
            self._give_up(error)
            return
        for port in expired:
            del self._written[port]
        self._written |= dict.fromkeys(ports, now.timestamp())

    async def _put(self, data: dict[str, str | None]) -> None:
        for tries_left in reversed(range(_TRIES)):
            try:
                patch = MergePatch({"data": data})
                await self._maps.patch(QUARANTINE_CONFIG_MAP, patch, field_manager=FIELD_MANAGER)
                return
            except NotFound:
                if not tries_left:
                    raise
            try:
                await self._maps.create(_config_map(data), field_manager=FIELD_MANAGER)
                return
            except AlreadyExists:
                continue

    def _give_up(self, error: KubeError) -> None:
        self._usable = False
        _log.warning("quarantined ports are kept in memory only", error=str(error))

    def _now(self) -> float:
        return self._clock.now().timestamp()


async def recover_ports(
    ports: PortBook, quarantine: PortQuarantine, caches: OperatorCaches
) -> None:
    """Enter every port that is in use or quarantined, before the first one is given away."""
    written = await quarantine.load()
    found_ports: list[tuple[PortOwner, dict[int, int], dict[int, int]]] = []
    for es in sorted(caches.elastiservices.all(), key=port_owner):
        namespace = es.metadata.namespace
        service = caches.services.find(namespace, es.spec.service)
        found = (
            caches.our_slices.find(namespace, name)
            for name in slice_names(es.spec.service).values()
        )
        slices = [endpoint_slice for endpoint_slice in found if endpoint_slice is not None]
        published = published_ports(slices, service) if service is not None else {}
        reported = {port.port: port.resolver_port for port in es.status.resolver_ports}
        found_ports.append((port_owner(es), published, reported))
    for owner, published, reported in found_ports:
        ports.claim(owner, dict(published.items() & reported.items()))
    for owner, published, _ in found_ports:
        ports.claim(owner, published)
    for owner, _, reported in found_ports:
        ports.claim(owner, reported)
    now = asyncio.get_running_loop().time()
    for number, age in written.items():
        ports.quarantine(number, now - age)
    # A port that is published for no ElastiService may still get traffic.
    for endpoint_slice in caches.our_slices.all():
        if endpoint_slice.metadata.name not in slice_names(endpoint_slice.service).values():
            continue  # Others may write slices with our label.
        for port in endpoint_slice.ports or ():
            ports.abandon(port.port or 0, now)


def _config_map(data: dict[str, str | None]) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": QUARANTINE_CONFIG_MAP},
        "data": {port: stamp for port, stamp in data.items() if stamp is not None},
    }


def _times(found: JsonObject) -> dict[int, float]:
    """Parse the recorded times; skips entries that are not a port and a time."""
    times = {}
    for port, stamp in (found.get("data") or {}).items():
        with contextlib.suppress(ValueError):
            times[int(port)] = parse_time(stamp).timestamp()
    return times
