"""Live figures of an installation: held connections, trigger values, and its own requests.

Only the resolvers know what they hold, so their open `/metrics` is read through the API server's proxy to pods, which
works from wherever the API server can be reached. It needs the right `get pods/proxy` in Elasti's namespace, and a
NetworkPolicy may still keep the API server away from the pods. A pod with a loopback address, as a development
cluster has, is on this machine and is read directly. Held is known only if every resolver answered; otherwise the
reason is given. What operator and resolver request is in their Deployments.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import ipaddress
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeAlias

import msgspec

from elasti.api.defaults import RESOLVER_ADMIN_PORT, TRIGGER_VALUE_METRIC
from elasti.api.names import DASHBOARD, OPERATOR, OPERATOR_SERVICE, RESOLVER, RESOLVER_SERVICE
from elasti.api.types import CapacityStatus
from elasti.api.usage import RequestingPod, pod_request
from kubeloop.client import Client
from kubeloop.client.errors import Forbidden, KubeError, NotFound
from kubeloop.client.request import get
from kubeloop.http.client import AnswerTooLong, ConnectFailed, HttpClient
from kubeloop.http.framing import FramingError
from kubeloop.metrics.reader import samples
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.names import url_host

TriggerValues: TypeAlias = dict[str, dict[int, float]]
"""By ElastiService, `namespace/name`, and by the trigger's place in its spec."""

_SLICES = "discovery.k8s.io/v1/endpointslices"
_METRIC = "elasti_resolver_queued_count"
_TIMEOUT = 3.0
_MAX_METRICS = 64 << 20


@dataclasses.dataclass(frozen=True, slots=True)
class HeldCounts:
    """Waiting connections by namespace and Service; None if unknown, with the reason."""

    counts: Mapping[tuple[str, str], int] | None
    why: str = ""


@dataclasses.dataclass(frozen=True, slots=True)
class ResolverPod:
    """A resolver, by its pod and its address."""

    name: str
    address: str
    port: int


async def read_held(client: Client, namespace: str, *, asks_pods: bool = True) -> HeldCounts:
    """Read every resolver in Elasti's namespace. Never raises for what it cannot read.

    asks_pods: read pods of this machine directly, which needs no rights in the cluster.
    """
    try:
        pods, answers = await _answers(client, namespace, RESOLVER_SERVICE, asks_pods=asks_pods)
    except KubeError as error:
        return HeldCounts(None, f"the resolvers cannot be listed: {error}")
    if not pods:
        return HeldCounts(None, f"no resolver is behind Service {namespace}/{RESOLVER_SERVICE}")
    return sum_of(pods, answers)


async def read_trigger_values(
    client: Client, namespace: str, *, asks_pods: bool = True
) -> TriggerValues:
    """Read the current trigger values from the operators; empty if none answers.

    Only the one that leads reads triggers.
    """
    found: TriggerValues = {}
    try:
        _, answers = await _answers(client, namespace, OPERATOR_SERVICE, asks_pods=asks_pods)
        for answer in answers:
            if isinstance(answer, str):
                found |= trigger_values(answer)
    except (KubeError, ValueError):
        return {}
    return found


async def _answers(
    client: Client, namespace: str, service: str, *, asks_pods: bool
) -> tuple[list[ResolverPod], list[str | Exception]]:
    """Return the pods behind a Service, and the metrics of each, or why they are not known."""
    slices = client.resource(_SLICES, namespace=namespace)
    selector = f"kubernetes.io/service-name={service}"
    pods = resolver_pods(await slices.items(selector=selector, timeout=_TIMEOUT).to_list())
    asked = (_metrics(client, namespace, pod, asks_pods=asks_pods) for pod in pods)
    return pods, await asyncio.gather(*asked)


async def own_requests(client: Client, namespace: str) -> CapacityStatus | None:
    """Return what operator, resolver and dashboard request, all replicas; None if that cannot be read."""
    deployments = client.resource("apps/v1/deployments", namespace=namespace)
    cpu = memory = 0
    try:
        for name, may_lack in ((OPERATOR, ()), (RESOLVER, ()), (DASHBOARD, (NotFound,))):
            with contextlib.suppress(*may_lack):
                spec = (await deployments.get(name, timeout=_TIMEOUT))["spec"]
                pod = msgspec.convert(spec["template"]["spec"], RequestingPod)
                each = pod_request(pod) or CapacityStatus()
                cpu += spec["replicas"] * each.cpu_millicores
                memory += spec["replicas"] * each.memory_bytes
    except KubeError:
        return None
    return CapacityStatus(cpu, memory)


def trigger_values(metrics: str) -> TriggerValues:
    """Read what triggers show from an operator's metrics. Raises ValueError."""
    found: TriggerValues = {}
    for labels, value in samples(metrics, TRIGGER_VALUE_METRIC):
        found.setdefault(labels["crd_name"], {})[int(labels["trigger"])] = value
    return found


def resolver_pods(slices: Iterable[JsonObject]) -> list[ResolverPod]:
    """Return the resolvers that slices list, each once."""
    found: dict[str, ResolverPod] = {}
    for endpoint_slice in slices:
        ports = {port.get("name"): port.get("port") for port in endpoint_slice.get("ports") or ()}
        for endpoint in endpoint_slice.get("endpoints") or ():
            name = (endpoint.get("targetRef") or {}).get("name", "")
            address = (endpoint.get("addresses") or [""])[0]
            port = ports.get("admin") or RESOLVER_ADMIN_PORT
            found.setdefault(name or address, ResolverPod(name, address, port))
    return list(found.values())


def sum_of(pods: Iterable[ResolverPod], answers: Iterable[str | Exception]) -> HeldCounts:
    """Add the resolvers' counts up; one that did not answer leaves the sum unknown."""
    total: Counter[tuple[str, str]] = Counter()
    for pod, answer in zip(pods, answers, strict=True):
        try:
            if isinstance(answer, Exception):
                raise answer
            total.update(dict(counts(answer)))
        except (KubeError, ValueError, OSError, AnswerTooLong) as error:
            why = f"resolver {pod.name or pod.address} was not reached: {message_of(error)}"
            return HeldCounts(None, why)
    return HeldCounts(total)


def counts(metrics: str) -> Iterator[tuple[tuple[str, str], int]]:
    """Read how many connections wait from a resolver's metrics. Raises ValueError."""
    if f"# TYPE {_METRIC} " not in metrics:
        raise ValueError(f"its metrics have no {_METRIC}")
    for labels, value in samples(metrics, _METRIC):
        if not {"namespace", "service"} <= labels.keys():
            raise ValueError(f"its {_METRIC} has no label service; it is KubeElasti's resolver")
        yield (labels["namespace"], labels["service"]), int(value)


async def _metrics(
    client: Client, namespace: str, pod: ResolverPod, *, asks_pods: bool
) -> str | Exception:
    path = f"/api/v1/namespaces/{namespace}/pods/{pod.name}:{pod.port}/proxy/metrics"
    try:
        try:
            body = (await client.send(get(path, accept="*/*"), timeout=_TIMEOUT)).body
        except KubeError:
            if not (asks_pods and _is_here(pod.address)):
                raise
            body = await read_url(f"http://{url_host(pod.address)}:{pod.port}/metrics")
    except (KubeError, OSError, FramingError, AnswerTooLong) as error:
        return error
    return body.decode(errors="replace")


async def read_url(url: str, timeout: float = _TIMEOUT, limit: int = _MAX_METRICS) -> bytes:
    """Read a URL. Raises OSError, FramingError, AnswerTooLong."""
    async with HttpClient() as http, http.request("GET", url, timeout=timeout) as answer:
        if answer.status != 200:
            raise FramingError(f"{url.partition('?')[0]}: status {answer.status}")
        return await answer.body(limit=limit)


def _is_here(address: str) -> bool:
    try:
        return ipaddress.ip_address(address).is_loopback
    except ValueError:
        return False


def message_of(error: Exception) -> str:
    """Return why something could not be read."""
    match error:
        case Forbidden():
            return f"{error} (needs get pods/proxy)"
        case NotFound():
            return "it is gone, or the API server has no proxy to it"
        case TimeoutError():
            return "no answer in time"
        case ConnectFailed(cause=OSError(errno=int(number))) if number > 0:
            return os.strerror(number)
        case _:
            return str(error) or type(error).__name__
