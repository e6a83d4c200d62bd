"""Triggers that ask metrics-server how much CPU the target's pods use.

Work without traffic is use, too: a job that computes, a queue that is emptied. An idle program uses some CPU, so
the trigger is a Veto by default. One list of a namespace serves all its targets in a round.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping

import msgspec

from elasti.api.triggers.cluster import CpuMetadata
from elasti.triggers.reader import ReadContext, ReaderSettings, TriggerReader, TriggerReading
from kubeloop.client.client import Client
from kubeloop.client.errors import Forbidden, KubeError, NotFound, ServiceUnavailable
from kubeloop.objects.meta import ObjectMeta

_PODS = "metrics.k8s.io/v1beta1/pods"
_UNITS = {"n": 1e-6, "u": 1e-3, "m": 1.0, "k": 1e6}


class _Usage(msgspec.Struct, frozen=True, gc=False):
    usage: dict[str, str] = {}


class PodMetrics(msgspec.Struct, frozen=True, gc=False):
    """The metrics of one pod."""

    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    containers: tuple[_Usage, ...] = ()

    def millicores(self) -> float:
        """Return the CPU that its containers use. Raises ValueError."""
        return sum(millicores(one.usage.get("cpu", "0")) for one in self.containers)


def millicores(quantity: str) -> float:
    """Read an amount of CPU, such as 12345n or 2. Raises ValueError."""
    unit = _UNITS.get(quantity[-1:])
    return float(quantity) * 1000 if unit is None else float(quantity[:-1]) * unit


class CpuReader(TriggerReader):
    """Lists the metrics of a namespace once a round."""

    def __init__(self, client: Client | None) -> None:
        self._client = client
        self._listed: dict[str, asyncio.Future[Mapping[str, float] | str]] = {}

    async def read(self, _metadata: CpuMetadata, context: ReadContext) -> TriggerReading:
        """Return the sum over the pods; a target that sleeps needs no pods to be idle."""
        pods = context.pods()
        if not pods:
            none = TriggerReading(error="there is no pod to ask about", pending=True)
            return TriggerReading(0.0) if context.asleep else none
        if context.namespace not in self._listed:
            listing = asyncio.ensure_future(self._list(context.namespace))
            self._listed[context.namespace] = listing
        found = await asyncio.shield(self._listed[context.namespace])
        if isinstance(found, str):
            return TriggerReading(error=found)
        if missing := [pod.name for pod in pods if pod.name not in found]:
            return TriggerReading(
                error=f"metrics-server has no metrics of pod {missing[0]} yet", pending=True
            )
        return TriggerReading(sum(found[pod.name] for pod in pods))

    async def _list(self, namespace: str) -> Mapping[str, float] | str:
        if self._client is None:
            return "there is no API server to ask"
        try:
            pods = self._client.resource(_PODS, PodMetrics).items(namespace=namespace)
            return {pod.metadata.name: pod.millicores() async for pod in pods}
        except NotFound:
            return (
                "this cluster has no metrics.k8s.io: install metrics-server, or use another trigger"
            )
        except ServiceUnavailable:
            return (
                "metrics.k8s.io does not answer: check metrics-server's pods and the APIService"
                " v1beta1.metrics.k8s.io"
            )
        except Forbidden:
            return "the operator may not list pods of metrics.k8s.io: elasti install grants it"
        except (KubeError, ValueError) as error:
            return f"metrics.k8s.io cannot be read ({type(error).__name__})"

    async def end_round(self) -> None:
        """List again in the next round."""
        for listing in self._listed.values():
            listing.cancel()
        await asyncio.gather(*self._listed.values(), return_exceptions=True)
        self._listed.clear()

    async def close(self) -> None:
        """Cancel pending lists."""
        await self.end_round()


def make_reader(settings: ReaderSettings) -> CpuReader:
    """Make the reader."""
    return CpuReader(settings.client)
