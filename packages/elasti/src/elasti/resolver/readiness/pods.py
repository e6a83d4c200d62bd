"""Reads a pod once, for its probes. There is no watch on pods: they are many, and few are asked for."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from typing import TYPE_CHECKING

import structlog

from elasti.resolver.readiness.plan import ProbePlan, plan_of
from kubeloop.aio.backoff import Backoff
from kubeloop.client.errors import Forbidden, KubeError, NotFound
from kubeloop.objects.core import PODS, Pod

if TYPE_CHECKING:
    from elasti.resolver.projections import PodName
    from kubeloop.client import Client

_REMEMBERED = 1024
_RETRY = Backoff(duration=0.1, factor=2.0, jitter=0.5, cap=5.0)
_TIMEOUT = 5.0

_log = structlog.get_logger(__name__)


class KubePods:
    """A `PodReader` that asks the API server, and remembers the answers."""

    def __init__(self, client: Client) -> None:
        self._pods = client.resource(PODS, Pod)
        self._plans: OrderedDict[PodName, ProbePlan] = OrderedDict()
        self._locks: dict[PodName, asyncio.Lock] = {}

    async def plan(self, pod: PodName) -> ProbePlan:
        """Return how a pod is asked; tries until the server answers. Ports share one reading."""
        lock = self._locks.setdefault(pod, asyncio.Lock())
        try:
            async with lock:
                plan = self._plans.get(pod)
                if plan is None:
                    plan = self._plans[pod] = await self._read(pod)
                    if len(self._plans) > _REMEMBERED:
                        self._plans.popitem(last=False)
        finally:
            if not lock.locked():
                self._locks.pop(pod, None)
        return plan

    async def _read(self, pod: PodName) -> ProbePlan:
        delays = _RETRY.start()
        while True:
            try:
                view = await self._pods.get(pod.name, namespace=pod.namespace, timeout=_TIMEOUT)
            except Forbidden:
                _log.warning(
                    "pods may not be read; waiting for Ready instead of probing",
                    namespace=pod.namespace,
                    remedy="allow the resolver's account to get pods",
                )
                return ProbePlan(only_ready="it may not be read")
            except NotFound:
                return ProbePlan(only_ready="it is gone")
            except KubeError as error:
                _log.info(
                    "pod cannot be read yet",
                    namespace=pod.namespace,
                    pod=pod.name,
                    error=str(error),
                )
                await asyncio.sleep(delays.next_delay())
                continue
            if pod.uid and view.metadata.uid != pod.uid:
                return ProbePlan(only_ready="another pod has its name")
            return plan_of(view)
