"""Whether the pods behind ready endpoints are really there.

A slice is what a controller last wrote, and a controller that is behind leaves dead pods in it as ready:
after a restart, or while its own watches break. Traffic must not be given to those, so before the
resolver steps aside, the pods themselves are read. One that lives is enough to know; they are asked a
few at a time, in the same order each time, until one does.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from kubeloop.client.errors import Forbidden, NotFound
from kubeloop.objects.core import PODS, Pod

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kubeloop.client.client import Client
    from kubeloop.objects.core import ServiceEndpoint

_AT_ONCE = 4

_log = structlog.get_logger(__name__)


class PodLiveness:
    """Reads pods. Raises KubeError where the server does not answer."""

    def __init__(self, client: Client) -> None:
        self._pods = client.resource(PODS, Pod)
        self._reported = False

    async def living(self, namespace: str, endpoints: Iterable[ServiceEndpoint]) -> frozenset[str]:
        """Return the identities of some endpoints that are really ready; empty where none is."""
        ordered = sorted(endpoints, key=lambda endpoint: endpoint.identity)
        for first in range(0, len(ordered), _AT_ONCE):
            if found := await self._living(namespace, ordered[first : first + _AT_ONCE]):
                return found
        return frozenset()

    async def _living(self, namespace: str, endpoints: Sequence[ServiceEndpoint]) -> frozenset[str]:
        answers = await asyncio.gather(*(self._lives(namespace, e) for e in endpoints))
        pairs = zip(endpoints, answers, strict=True)
        return frozenset(endpoint.identity for endpoint, lives in pairs if lives)

    async def _lives(self, namespace: str, endpoint: ServiceEndpoint) -> bool:
        reference = endpoint.target_ref
        if reference is None or reference.kind != "Pod":
            return True  # listed by hand: there is no pod to read
        try:
            pod = await self._pods.get(reference.name, namespace=namespace)
        except NotFound:
            return False
        except Forbidden as error:
            self._warn_once(error)
            return True
        lives = pod.is_ready and not pod.is_deleting
        return lives and reference.uid in ("", pod.metadata.uid)

    def _warn_once(self, error: Forbidden) -> None:
        if not self._reported:
            self._reported = True
            _log.warning(
                "slices are trusted as they are, since pods cannot be read", why=str(error)
            )
