"""Reads a pod's probes and addresses once. There is no watch: pods are many, and few are needed."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import NamedTuple

from elasti.logger import get_logger
from elasti.resolver.projections import PodName
from elasti.resolver.readiness.plan import ProbePlan, plan_of
from kubeloop.aio.backoff import Backoff
from kubeloop.client import Client
from kubeloop.client.errors import Forbidden, KubeError, NotFound
from kubeloop.objects.core import PODS, Pod

_REMEMBERED = 1024
_RETRY = Backoff(duration=0.1, factor=2.0, jitter=0.5, cap=5.0)
_TIMEOUT = 5.0
# How long connections wait for an API server that does not answer.
_PATIENCE = 1.0

_log = get_logger(__name__)


class _PodFacts(NamedTuple):
    """The cached facts about a pod. `addresses` is None if reading pods is forbidden."""

    plan: ProbePlan
    addresses: tuple[str, ...] | None = ()


class KubePods:
    """A `PodReader` that reads from the API server, with a cache."""

    def __init__(self, client: Client) -> None:
        self._pods = client.resource(PODS, Pod)
        self._known: OrderedDict[PodName, _PodFacts] = OrderedDict()
        self._locks: dict[PodName, asyncio.Lock] = {}

    async def plan(self, pod: PodName) -> ProbePlan:
        """Return a pod's probe plan. Retries until the server answers."""
        return (await self._facts(pod)).plan

    async def owns(self, pod: PodName, address: str) -> bool:
        """Whether the API server lists an address as a pod's own.

        If it does not answer or forbids the read, the EndpointSlice is trusted, so that traffic does not stop.
        """
        try:
            async with asyncio.timeout(_PATIENCE):
                addresses = (await self._facts(pod)).addresses
                if addresses is not None and address not in addresses:
                    # A pod whose sandbox was recreated has another address.
                    self._known.pop(pod, None)
                    addresses = (await self._facts(pod)).addresses
        except TimeoutError:
            return True
        return addresses is None or address in addresses

    async def _facts(self, pod: PodName) -> _PodFacts:
        """Read a pod once for all its ports."""
        lock = self._locks.setdefault(pod, asyncio.Lock())
        try:
            async with lock:
                facts = self._known.get(pod)
                if facts is None:
                    facts = self._known[pod] = await self._read(pod)
                    if len(self._known) > _REMEMBERED:
                        self._known.popitem(last=False)
        finally:
            if not lock.locked():
                self._locks.pop(pod, None)
        return facts

    async def _read(self, pod: PodName) -> _PodFacts:
        delays = _RETRY.start()
        while True:
            try:
                view = await self._pods.get(pod.name, namespace=pod.namespace, timeout=_TIMEOUT)
            except Forbidden:
                _log.warning(
                    "cannot read pods; trusting EndpointSlices and waiting for Ready instead of probing",
                    namespace=pod.namespace,
                    remedy="grant the resolver's ServiceAccount get on pods",
                )
                return _PodFacts(ProbePlan(only_ready="reading it is forbidden"), None)
            except NotFound:
                return _PodFacts(ProbePlan(only_ready="it is gone"))
            except KubeError as error:
                _log.info(
                    "cannot read pod; retrying",
                    namespace=pod.namespace,
                    pod=pod.name,
                    error=str(error),
                )
                await asyncio.sleep(delays.next_delay())
                continue
            if pod.uid and view.metadata.uid != pod.uid:
                return _PodFacts(ProbePlan(only_ready="another pod has its name"))
            return _PodFacts(plan_of(view), view.addresses)
