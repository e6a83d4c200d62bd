"""Keeps the caches of target kinds warm on standbys, so that a new leader begins at once."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from elasti.operator.informer_manager import KeyParams, RequestWatch
from elasti.operator.ops_informer import check_listing, kind_for
from elasti.scaling.scale_handler import NotScalable, ScaleTarget
from kubeloop.client.errors import KubeError

if TYPE_CHECKING:
    from elasti.operator.directory import Directory
    from elasti.operator.informer_manager import Manager
    from elasti.scaling.scale_handler import ScaleHandler
    from kubeloop.client.client import Client

_PERIOD = 30.0

_log = structlog.get_logger(__name__)


class KindWarmer:
    """Opens the watch of every target kind in use. A runnable for `Group.OTHERS`."""

    def __init__(
        self, *, client: Client, manager: Manager, directory: Directory, scales: ScaleHandler
    ) -> None:
        self._client = client
        self._manager = manager
        self._directory = directory
        self._scales = scales

    async def run(self) -> None:
        """Look for new kinds until cancelled."""
        while True:
            for target in self._wanted():
                await self._warm(target)
            await asyncio.sleep(_PERIOD)

    def _wanted(self) -> list[ScaleTarget]:
        """Return one target for each watch that the leader would need."""
        found = {
            (target.api_version, target.kind, self._manager.place(target.namespace)): target
            for target in self._directory.targets()
        }
        return list(found.values())

    async def _warm(self, target: ScaleTarget) -> None:
        try:
            info = await self._scales.resource(target)
            if self._manager.follows(info.gvr, target.namespace):
                return
            await check_listing(self._client, self._manager, info.gvr, target.namespace)
        except (KubeError, NotScalable) as error:
            _log.debug("kind cannot be watched", kind=target.kind, error=str(error))
            return
        key = KeyParams(target.namespace, "", info.gvr, "")
        self._manager.add(RequestWatch(key, kind_for(info.gvr), lambda _event: None))
