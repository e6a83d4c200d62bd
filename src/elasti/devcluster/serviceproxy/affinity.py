"""Session affinity by client address: the same client, the same endpoint, for a while."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasti.devcluster.serviceproxy.objects import ServiceSpec
    from elasti.devcluster.serviceproxy.routing import Backend

_DEFAULT_SECONDS = 10_800


class Affinity:
    """Remembers where each client went; forgets after `seconds`, or at once where that is 0."""

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._last: dict[str, tuple[Backend, float]] = {}

    @classmethod
    def for_service(cls, spec: ServiceSpec) -> Affinity:
        """Return what the Service asks for."""
        if spec.session_affinity != "ClientIP":
            return cls(0)
        config = spec.session_affinity_config
        if config is None or config.client_ip is None:
            return cls(_DEFAULT_SECONDS)
        return cls(config.client_ip.timeout_seconds)

    def of(self, client: str, backends: Sequence[Backend]) -> Backend | None:
        """Return where the client went last, where that is still to be had."""
        backend, until = self._last.get(client, (None, 0.0))
        if backend in backends and asyncio.get_running_loop().time() < until:
            return backend
        return None

    def remember(self, client: str, backend: Backend) -> None:
        """Note where the client goes now."""
        if self._seconds:
            until = asyncio.get_running_loop().time() + self._seconds
            self._last[client] = (backend, until)
