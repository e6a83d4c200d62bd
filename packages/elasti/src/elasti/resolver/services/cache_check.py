"""Checks with live reads that the watches still deliver, while connections wait.

A watch whose peer vanished looks like a quiet one. The kernel notices lost packets after 45 seconds, and missing
bookmarks reveal a relay that acknowledges but forwards nothing after three minutes. A held client would wait all
that time for a pod that is ready. So, while connections wait and no pod serves them, the private slices of their
Services are read from the API server every ten seconds, over new connections. If the cache has other versions,
and the watch has not reported the change a moment later, the watch is dead: it is closed together with the
other three watches, which lead to the same server, and everything is listed again. A watch that is only slow is
left alone until the next round, since lists would slow it further.

One difference repairs all watches, so if many Services wait, they are sampled in turn.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import TypeAlias

from elasti.api.names import PRIVATE_LABEL, private_service_name
from elasti.logger import get_logger
from elasti.resolver.projections import ServiceKey, SliceView
from elasti.resolver.services.registry import ServiceRegistry
from kubeloop.aio.wait import until
from kubeloop.client import Client
from kubeloop.client.errors import KubeError
from kubeloop.objects.core import SERVICE_LABEL, SLICES
from kubeloop.objects.list_watch import ListOptions

# A pod that becomes ready is found after a period, a read, the grace and a list: within 15 s.
PERIOD = 10.0
GRACE = 2.0
_READ_TIMEOUT = 2.0
# How many Services are read in one round.
_SAMPLE = 32

_log = get_logger(__name__)

SliceVersions: TypeAlias = frozenset[tuple[str, str]]


class CacheCheck:
    """Compares the registry's pods with the API server's."""

    def __init__(self, client: Client, registry: ServiceRegistry) -> None:
        self._client = client
        self._registry = registry
        # The versions that differed in the last round; the Service that was read last.
        self._differed: dict[ServiceKey, SliceVersions] = {}
        self._last = ServiceKey("", "")

    async def run(self) -> None:
        """Check every ten seconds until cancelled."""
        await until(self.check, PERIOD, sliding=False)

    async def check(self) -> None:
        """Read the slices that connections wait for, and restart watches that missed a change."""
        sample = self._next_sample()
        before, self._differed = self._differed, {}
        if not sample:
            return
        read_at = asyncio.get_running_loop().time()
        live = dict(await asyncio.gather(*map(self._read, sample)))
        if not any(self._differs(key, versions) for key, versions in live.items()):
            return
        # The watch event may be on its way.
        await asyncio.sleep(GRACE)
        for key, versions in live.items():
            if versions is None or not self._differs(key, versions):
                continue
            self._differed[key] = versions
            heard = self._registry.pods_heard_at(key.namespace)
            if heard is not None and heard > read_at and before.get(key) != versions:
                continue
            _log.warning("watch missed a change; relisting", service=str(key))
            self._registry.relist(key.namespace, f"a live read of the slices of {key} differs")
            self._differed.clear()

    def _next_sample(self) -> list[ServiceKey]:
        waiting = sorted(self._registry.unserved())
        later = [key for key in waiting if key > self._last]
        sample = (later + waiting)[: min(_SAMPLE, len(waiting))]
        if sample:
            self._last = sample[-1]
        return sample

    async def _read(self, key: ServiceKey) -> tuple[ServiceKey, SliceVersions | None]:
        """Return the server's versions; None if it does not answer."""
        slices = self._client.resource(SLICES, SliceView, namespace=key.namespace)
        selector = f"{PRIVATE_LABEL}=true,{SERVICE_LABEL}={private_service_name(key.service)}"
        try:
            async with asyncio.timeout(_READ_TIMEOUT):
                page = await slices.list(ListOptions(label_selector=selector))
        except (KubeError, TimeoutError) as error:
            _log.warning(
                "cannot compare the cache with the API server", service=str(key), error=str(error)
            )
            return key, None
        return key, _versions(page.items)

    def _differs(self, key: ServiceKey, versions: SliceVersions | None) -> bool:
        return versions is not None and versions != _versions(self._registry.private_slices(key))


def _versions(slices: Iterable[SliceView]) -> SliceVersions:
    return frozenset((s.metadata.name, s.metadata.resource_version) for s in slices)
