"""What reads slices beside nodes, and whether traffic gets to the resolver that way.

Istio ambient and the load balancers of clouds do not do with our slice what kube-proxy does. What they would drop is a
warning with its remedy, never an obstacle to sleep. Namespaces in ambient and TargetGroupBindings are listed now and
then, if the cluster has the kind and the operator may. In a cluster with neither, one open watch says when the first
namespace joins ambient, and nothing else is asked. What cannot be read now stays as it was.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import enum
from collections.abc import Callable, Mapping
from typing import NamedTuple

from elasti.api.conditions import Reason
from elasti.api.defaults import CLOUD_ENGAGE_SETTLE
from elasti.api.types import ElastiService
from elasti.logger import get_logger
from elasti.operator.model.facts import TrafficPath
from elasti.operator.settings import OperatorSettings
from kubeloop.aio.wait import until
from kubeloop.client.client import Client
from kubeloop.client.errors import Forbidden, KubeError, NotFound
from kubeloop.client.request import get
from kubeloop.objects.core import Service
from kubeloop.objects.meta import JsonObject, PartialObjectMetadata

_MODE, _AMBIENT = "istio.io/dataplane-mode", "ambient"
_AWS = "elbv2.k8s.aws/v1beta1"
_PERIOD = 30.0
_SELDOM = 600
"""Between questions for a kind that is not there, or a right that is not granted."""
_NAMESPACES, _BINDINGS = "namespaces", "targetgroupbindings"
NEG_STATUS = "cloud.google.com/neg-status"
"""GKE's note on a Service whose endpoints it adds to network endpoint groups."""
_GATEWAY = "put a gateway in the cluster between it and the Service"
_UNREADABLE = (
    "the operator may not list namespaces or TargetGroupBindings, so it is not known whether traffic from Istio ambient"
    " or a load balancer of AWS gets to the resolver; elasti install --traffic-path and trafficPath.enabled of the chart"
    " grant it"
)

_log = get_logger(__name__)


class Bound(enum.IntEnum):
    """What a TargetGroupBinding sends to: nodes, pods on any port, or pods on the Service's own; the last is the worst."""

    NODES = 0
    PODS = 1
    OWN_PORTS = 2


class Surroundings(NamedTuple):
    """What else reads the slices of one Service. `binding`: the worst, by its name; `unreadable`: what is not known."""

    ambient: bool = False
    binding: tuple[Bound, str] | None = None
    unreadable: str = ""


def traffic_path(
    service: Service, settle: int | str, around: Surroundings, settings: OperatorSettings
) -> TrafficPath:
    """Say what is known to be in the way. Pure."""
    wanted, has_neg = settings.target_ref, NEG_STATUS in (service.metadata.annotations or {})
    names_pods = wanted == "Pod" or (wanted == "Auto" and not around.ambient)
    # What cannot be read is longer rather than shorter.
    is_cloud = around.binding is not None or has_neg or settle != "Auto"
    least = settle if isinstance(settle, int) else CLOUD_ENGAGE_SETTLE if is_cloud else 0.0
    way, name = around.binding or (Bound.NODES, "")
    reader = f"TargetGroupBinding {name}" if way else "a network endpoint group" if has_neg else ""
    closed = has_neg and any(isinstance(port.target, int) for port in service.tcp_ports)
    if around.ambient and names_pods:
        reason = Reason.MESH_PORT
        text = (
            "Istio ambient leaves out the resolver's port, since the endpoint names a pod: clients are refused while"
            " the target sleeps; set resolver.endpoints.targetRef of the installation to Auto or None"
        )
    elif reader and not names_pods:
        reason = Reason.NO_TARGET_REF
        text = f"{reader} skips endpoints without a pod's name, such as the resolver's; {_GATEWAY}"
    elif closed or way is Bound.OWN_PORTS:
        reason = Reason.CLOUD_FIREWALL
        other = "use target type instance" if way else "name the port in targetPort"
        text = (
            f"the firewall of {reader} opens the Service's targetPort only, and the resolver listens on"
            f" {settings.port_range[0]}-{settings.port_range[1]}; open these to the load balancer, {other}, or {_GATEWAY}"
        )
    elif around.unreadable:
        return TrafficPath(names_pods, least, Reason.UNREADABLE, around.unreadable, holds=None)
    else:
        return TrafficPath(names_pods, least)
    return TrafficPath(names_pods, least, reason, text, holds=False)


@dataclasses.dataclass(eq=False)
class Neighbours:
    """What is known about all Services. `on_change` gets the namespaces in which it changed."""

    client: Client
    settings: OperatorSettings
    on_change: Callable[[frozenset[str]], None]

    def __post_init__(self) -> None:
        self._ambient: frozenset[str] = frozenset()
        self._bindings: Mapping[tuple[str, str], tuple[Bound, str]] = {}
        self._served = False
        self._may_watch = True
        self._refused: set[str] = set()
        self._due: dict[str, float] = {}

    def path(self, es: ElastiService, service: Service, labels: Mapping[str, str]) -> TrafficPath:
        """Return what is known of the ways to a Service, whose target's pods have such labels."""
        namespace, settle = es.metadata.namespace, es.spec.handover.engage_settle
        ambient = namespace in self._ambient or labels.get(_MODE) == _AMBIENT
        binding = self._bindings.get((namespace, es.spec.service))
        around = Surroundings(ambient, binding, _UNREADABLE if self._refused else "")
        return traffic_path(service, settle, around, self.settings)

    async def run(self) -> None:
        """Look again whenever something may have changed, until cancelled."""
        await asyncio.sleep(_PERIOD)
        await until(self._look_again, _PERIOD)

    async def look(self) -> None:
        """Look once. Raises KubeError if it is not known which namespaces are in Istio ambient."""
        ambient, bindings, now = self._ambient, self._bindings, asyncio.get_running_loop().time()
        if now >= self._due.get(_NAMESPACES, now):
            try:
                self._ambient = frozenset(await self._in_ambient())
                self._refused.discard(_NAMESPACES)
            except Forbidden:
                self._refuse(_NAMESPACES)
        if now >= self._due.get(_BINDINGS, now):
            await self._look_for_bindings()
        differ = bindings.items() ^ self._bindings.items()
        if changed := (ambient ^ self._ambient) | {key[0] for key, _ in differ}:
            self.on_change(changed)

    async def _look_again(self) -> None:
        wanted = self._served or self._ambient or self._refused or self.settings.watch_namespaces
        if self._may_watch and not wanted:
            namespaces = self.client.resource("v1/namespaces", PartialObjectMetadata)
            watch = namespaces.watch(selector=f"{_MODE}={_AMBIENT}", timeout_seconds=_SELDOM)
            try:
                await anext(watch, None)
            except Forbidden:  # a role of an earlier version
                self._may_watch = False
            except KubeError as error:
                _log.debug("the watch for namespaces in ambient ended", error=str(error))
        await self.look()

    async def _look_for_bindings(self) -> None:
        try:
            if not self._served:
                # A server refuses before it looks whether it has the kind.
                await self.client.send(get(f"/apis/{_AWS}"))
                self._served = True
            self._bindings = await self._by_service()
            self._refused.discard(_BINDINGS)
        except NotFound:
            self._served, self._bindings = False, {}
            self._refused.discard(_BINDINGS)
            self._put_off(_BINDINGS)
        except Forbidden:
            self._refuse(_BINDINGS)
        except KubeError as error:
            _log.warning("TargetGroupBindings cannot be read", error=str(error))

    def _refuse(self, kind: str) -> None:
        self._refused.add(kind)
        self._put_off(kind)

    def _put_off(self, kind: str) -> None:
        self._due[kind] = asyncio.get_running_loop().time() + _SELDOM

    async def _in_ambient(self) -> list[str]:
        namespaces = self.client.resource("v1/namespaces", PartialObjectMetadata)
        if not self.settings.watch_namespaces:
            found = await namespaces.items(selector=f"{_MODE}={_AMBIENT}").to_list()
        else:  # a Role lets the operator read its own namespace, and list none
            found = []
            for name in self.settings.watch_namespaces:
                with contextlib.suppress(NotFound):
                    found.append(await namespaces.get(name))
        return [o.metadata.name for o in found if (o.metadata.labels or {}).get(_MODE) == _AMBIENT]

    async def _by_service(self) -> Mapping[tuple[str, str], tuple[Bound, str]]:
        found: dict[tuple[str, str], tuple[Bound, str]] = {}
        for place in self.settings.watch_namespaces or ("",):
            async for one in self.client.resource(f"{_AWS}/{_BINDINGS}", namespace=place).items():
                meta, spec = one["metadata"], one.get("spec") or {}
                key = meta["namespace"], (spec.get("serviceRef") or {}).get("name", "")
                found[key] = max(found.get(key, (Bound.NODES, "")), (_bound(spec), meta["name"]))
        return found


def _bound(spec: JsonObject) -> Bound:
    if spec.get("targetType") == "instance":
        return Bound.NODES
    rules = (spec.get("networking") or {}).get("ingress") or ()
    # A rule without ports, or with one without a number, is for all of them.
    ports = [port for rule in rules for port in rule.get("ports") or ("",)]
    return Bound.PODS if any("port" not in port for port in ports) else Bound.OWN_PORTS
