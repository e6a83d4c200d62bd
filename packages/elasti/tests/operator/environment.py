"""A cluster in memory and in virtual time, with an operator on it that can be killed at any write.

The operator is whole but for its HTTP server: caches, directory, waker, leader. Pods, endpoint
slices, resolvers, triggers and KEDA are played by a few lines each.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
import math
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Self

import pytest

from elasti.api.crd import custom_resource_definition
from elasti.api.names import DRAIN_KEY, PAUSED, PRIVATE_LABEL
from elasti.api.rbac import PolicyRule
from elasti.api.wire import ActivityReport
from elasti.operator import rbac
from elasti.operator.autoscalers import AUTOSCALERS
from elasti.operator.autoscalers.base import Autoscaler, Autoscalers
from elasti.operator.leader import Leader
from elasti.operator.metrics import OperatorMetrics
from elasti.operator.model.children import slice_names
from elasti.operator.model.findings import ARGO_KEY
from elasti.operator.report.events import EventReporter
from elasti.operator.scale_handler import ScaleHandler
from elasti.operator.settings import OperatorSettings
from elasti.operator.waking.requests import WakeRequests
from elasti.operator.waking.waker import Waker
from elasti.operator.watch.caches import OperatorCaches
from elasti.operator.watch.directory import Directory
from elasti.operator.watch.targets import known_target
from elasti.triggers.reader import ReadContext, ReaderSettings, TriggerReader, TriggerReading
from kubeloop.aio.tasks import finish
from kubeloop.client.request import Request
from kubeloop.controller.events.correlators import EventCorrelator
from kubeloop.controller.events.event_types import EventRecord, EventType, Reporter
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.meta import JsonObject, make_key
from kubeloop.objects.owners import reference_to
from kubeloop.testing.fake_client import FakeClient
from kubeloop.testing.virtual_time import VirtualClock
from tests.waiting import eventually

NAMESPACE = "shop"
RESOLVER = "10.9.0.1"
POD_START = 1.0
LABELS = {"app": "web"}
TRIGGER = {
    "type": "prometheus",
    "metadata": {"query": "q", "threshold": "1", "serverAddress": "http://x"},
}
KINDS = {
    "configmaps": ("v1/configmaps", "ConfigMap"),
    "deployments": ("apps/v1/deployments", "Deployment"),
    "elastiservices": ("elasti.truefoundry.com/v1alpha1/elastiservices", "ElastiService"),
    "endpointslices": ("discovery.k8s.io/v1/endpointslices", "EndpointSlice"),
    "horizontalpodautoscalers": (
        "autoscaling/v2/horizontalpodautoscalers",
        "HorizontalPodAutoscaler",
    ),
    "limitranges": ("v1/limitranges", "LimitRange"),
    "namespaces": ("v1/namespaces", "Namespace"),
    "poddisruptionbudgets": ("policy/v1/poddisruptionbudgets", "PodDisruptionBudget"),
    "pods": ("v1/pods", "Pod"),
    "scaledobjects": ("keda.sh/v1alpha1/scaledobjects", "ScaledObject"),
    "services": ("v1/services", "Service"),
    "targetgroupbindings": (
        "elbv2.k8s.aws/v1beta1/targetgroupbindings",
        "TargetGroupBinding",
    ),
}
DEFINITION = custom_resource_definition()
SCALED_OBJECTS: JsonObject = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "scaledobjects.keda.sh"},
    "spec": {
        "group": "keda.sh",
        "names": {"kind": "ScaledObject", "plural": "scaledobjects"},
        "scope": "Namespaced",
        "versions": [{"name": "v1alpha1", "subresources": {"status": {}}}],
    },
}
TARGET_GROUP_BINDINGS: JsonObject = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "targetgroupbindings.elbv2.k8s.aws"},
    "spec": {
        "group": "elbv2.k8s.aws",
        "names": {"kind": "TargetGroupBinding", "plural": "targetgroupbindings"},
        "scope": "Namespaced",
        "versions": [{"name": "v1beta1"}],
    },
}


class Killed(Exception):
    """The operator's process is gone."""


class FakeTrigger(TriggerReader):
    """Triggers that show what the test says: a value, an error, or a counter's rate."""

    value = 0.0
    error = ""
    counter: Callable[[], float] | None = None
    reads = 0

    def __init__(self, settings: ReaderSettings) -> None:
        self._clock = settings.clock
        self._counted: tuple[float, float] | None = None

    async def read(self, _metadata: Any, _context: ReadContext) -> TriggerReading:
        shows = type(self)
        shows.reads += 1
        if shows.error:
            return TriggerReading(error=shows.error)
        if shows.counter is None:
            return TriggerReading(shows.value)
        now = self._clock.now().timestamp()
        before, self._counted = self._counted, (now, shows.counter())
        if before is None or now <= before[0]:
            return TriggerReading(error="a rate needs two readings", pending=True)
        span = now - before[0]
        return TriggerReading((self._counted[1] - before[1]) / span, span=span)

    @classmethod
    def install(cls, monkeypatch: pytest.MonkeyPatch) -> None:
        """Play every prometheus trigger; what a test changes is put back."""
        monkeypatch.setattr("elasti.triggers.prometheus.make_reader", cls)
        for name, value in {"value": 0.0, "error": "", "counter": None, "reads": 0}.items():
            monkeypatch.setattr(cls, name, value)


@dataclasses.dataclass
class FakeResolvers:
    """Resolvers that open the ports which status names, and say what the test tells them to."""

    elastiservices: Callable[[], list[JsonObject]]
    answers: bool = True
    report: ActivityReport | None = dataclasses.field(
        default_factory=lambda: ActivityReport(held=0, open=0)
    )
    asked: int = 0
    holds: bool = False
    report_of: Callable[[], ActivityReport | None] | None = None

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_error: object) -> None:
        return None

    async def owns(self, _address: str, port: int, namespace: str, service: str) -> bool:
        await asyncio.sleep(0.01)
        ports = {
            entry["resolverPort"]
            for es in self.elastiservices()
            if (es["metadata"]["namespace"], es["spec"]["service"]) == (namespace, service)
            for entry in es.get("status", {}).get("resolverPorts", ())
        }
        return self.answers and port in ports

    async def reachable(self, _address: str, _ended: Callable[[], None]) -> bool:
        return True

    async def activity(
        self, _address: str, _namespace: str, _service: str, *, hold: bool | None = None
    ) -> ActivityReport | None:
        await asyncio.sleep(0.01)
        self.asked += 1
        self.holds = self.holds if hold is None else hold
        return self.report_of() if self.report_of else self.report


class Recorder:
    """Events that were recorded, by reason, and how many the spam filter would not have written."""

    def __init__(self, clock: VirtualClock) -> None:
        self.told: list[tuple[str, str]] = []
        self.dropped = 0
        self._now = clock.now
        self._correlator = EventCorrelator(Reporter("elasti-operator"))

    def normal(self, es: Any, reason: str, message: str, **options: Any) -> None:
        self._record("Normal", es, reason, message, **options)

    def warning(self, es: Any, reason: str, message: str, **options: Any) -> None:
        self._record("Warning", es, reason, message, **options)

    def _record(self, kind: EventType, es: Any, reason: str, message: str, *, gvk: Any) -> None:
        self.told.append((reason, message))
        event = EventRecord(
            regarding=reference_to(es, gvk),
            type=kind,
            reason=reason,
            message=message,
            at=self._now(),
        )
        self.dropped += self._correlator.observe(event) is None


class Environment:
    """What a test talks to."""

    def __init__(self, *, clock: VirtualClock | None = None, **settings: Any) -> None:
        self.clock = clock or VirtualClock()
        definitions = DEFINITION, SCALED_OBJECTS
        self.server = FakeClient(*definitions, namespace=NAMESPACE, clock=self.clock)
        self.server.on_change.append(self._controllers)
        self.settings = OperatorSettings(**{"polling_interval": 5.0, "workers": 2, **settings})
        self.resolvers = FakeResolvers(lambda: self.all("elastiservices"))
        self.recorder = Recorder(self.clock)
        # Rights that an earlier installation left.
        self.granted: tuple[PolicyRule, ...] = ()
        self.keda_pauses = True
        self.pod_end = 0.0
        self.pod_spec: JsonObject = {}
        self.pod_status: JsonObject = {}
        self.pod_labels: dict[str, str] = {}
        self._ending: set[str] = set()
        self.dark: list[str] = []
        self._lit = False
        self.put("namespaces", {}, NAMESPACE)
        self.list_resolvers(RESOLVER)

    # Objects

    def web(
        self, replicas: int = 1, *, name: str = "web", strategy: str = "RollingUpdate", **spec: Any
    ) -> None:
        """A Deployment, its Service and an ElastiService. Only the one called `web` has pods."""
        labels = {"app": name}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "c"}]}}
        self.put(
            "deployments",
            {
                "spec": {
                    "replicas": replicas,
                    "selector": {"matchLabels": labels},
                    "template": template,
                    "strategy": {"type": strategy},
                },
                "status": {"replicas": replicas},
            },
            name,
        )
        ports = [{"name": "http", "port": 80, "protocol": "TCP", "targetPort": 8080}]
        self.put(
            "services",
            {
                "spec": {
                    "selector": labels,
                    "ports": ports,
                    "clusterIP": "10.0.0.1",
                    "type": "ClusterIP",
                }
            },
            name,
        )
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": name}
        body = {
            "service": name,
            "scaleTargetRef": target,
            "cooldownPeriod": 30,
            "minTargetReplicas": 1,
            "triggers": [TRIGGER],
        }
        self.put("elastiservices", {"spec": body | spec}, name)

    def put(self, plural: str, body: JsonObject, name: str = "web") -> JsonObject:
        """Create an object, or replace it whole; as another program does."""
        gvr, kind = KINDS[plural]
        meta = {"name": name, **body.get("metadata", {})}
        typed = {"apiVersion": GroupVersionResource.parse(gvr).api_version, "kind": kind}
        return self.server.put({**body, **typed, "metadata": meta})

    def find(self, plural: str, name: str = "web", namespace: str = NAMESPACE) -> JsonObject | None:
        return self.server.find(KINDS[plural][0], name, namespace=namespace)

    def get(self, plural: str, name: str = "web") -> JsonObject:
        found = self.find(plural, name)
        assert found is not None, f"there is no {name} in {plural}"
        return found

    def all(self, plural: str) -> list[JsonObject]:
        return list(self.server.source(KINDS[plural][0]).objects.values())

    def delete(self, plural: str, name: str = "web") -> None:
        self.server.remove(KINDS[plural][0], name)

    def change(self, plural: str, **fields: JsonObject) -> None:
        """Merge fields into the object `web`, as a user does."""
        found = self.get(plural)
        for name, value in fields.items():
            found[name] = {**found.get(name, {}), **value}
        self.put(plural, found)

    def scale(self, replicas: int, manager: str = "kubectl") -> None:
        """Set the replicas, as another writer does."""
        entry = {
            "manager": manager,
            "time": self.clock.now().isoformat(),
            "fieldsV1": {"f:spec": {"f:replicas": {}}},
        }
        self.change("deployments", spec={"replicas": replicas}, metadata={"managedFields": [entry]})

    def list_resolvers(self, *addresses: str) -> None:
        """Say which resolvers there are."""
        body = {
            "metadata": {
                "namespace": self.settings.resolver_namespace,
                "labels": {"kubernetes.io/service-name": self.settings.resolver_service},
            },
            "addressType": "IPv4",
            "endpoints": [_endpoint(address, f"resolver-{address}") for address in addresses],
        }
        self.put("endpointslices", body, "resolvers")

    # What there is

    @property
    def es(self) -> JsonObject | None:
        return self.find("elastiservices")

    @property
    def state(self) -> str:
        return self.status.get("state", "")

    @property
    def status(self) -> JsonObject:
        """The ElastiService's status: the server's own, for it is asked for at every step of a wait."""
        return (self._stored("elastiservices", "web") or {}).get("status") or {}

    def _stored(self, plural: str, name: str) -> JsonObject | None:
        """An object as the server has it, to look at: nothing is copied."""
        return self.server.source(KINDS[plural][0]).objects.get(make_key(NAMESPACE, name))

    @property
    def replicas(self) -> int:
        return int(self.get("deployments")["spec"]["replicas"])

    @property
    def published(self) -> bool:
        return self._stored("endpointslices", slice_names("web")["IPv4"]) is not None

    @property
    def selector(self) -> dict[str, str]:
        """What the public Service selects."""
        return dict(self.get("services")["spec"]["selector"])

    @property
    def pods_in_rotation(self) -> bool:
        """Whether the public Service's own slice lists pods."""
        return bool(self.get("endpointslices", "web-pods")["endpoints"])

    def annotations(self, plural: str) -> dict[str, str]:
        found: dict[str, str] = self.get(plural)["metadata"].get("annotations") or {}
        return found

    def reasons(self) -> list[str]:
        return [reason for reason, _ in self.recorder.told]

    def messages(self) -> str:
        """What events say, a line for each."""
        return "\n".join(message for _, message in self.recorder.told)

    async def becomes(self, state: str, *, within: float = 600.0) -> float:
        """Wait until the hand-over is there; returns how long it took."""
        began = asyncio.get_running_loop().time()
        try:
            await eventually(lambda: self.state == state, timeout=within, every=0.05)
        except AssertionError:
            told = f"{state} was expected, not {self.state}: {self.recorder.told}"
            raise AssertionError(told) from None
        # The looks' times are sums of 0.05, which 600 s put a float's breadth beside the timers of what they look at.
        return round(asyncio.get_running_loop().time() - began, 6)

    async def engages(self, *, within: float = 600.0) -> float:
        """Wait until the resolver is in rotation; returns how long it took."""
        began = asyncio.get_running_loop().time()
        await eventually(lambda: self.published, timeout=within, every=0.05)
        return asyncio.get_running_loop().time() - began

    # The cluster's own controllers

    def _controllers(self, gvr: GroupVersionResource, obj: JsonObject, gone: bool) -> None:
        plural, name = gvr.resource, obj["metadata"]["name"]
        loop = asyncio.get_running_loop()
        if plural in ("deployments", "scaledobjects") and not gone:
            loop.call_later(0.1, self._keda_scales)
        if plural == "deployments":
            if obj["spec"]["replicas"]:
                loop.call_later(POD_START, self._pods_changed)
            else:
                self._pods_changed()
        elif plural == "services" and not gone:
            loop.call_later(0.05, self._pods_changed)
        elif plural == "scaledobjects" and self.keda_pauses and not gone:
            loop.call_later(0.1, self._keda, name)
        elif plural == "endpointslices":
            self._watch_rotation(obj)

    def _pods_changed(self) -> None:
        """Start and stop pods, and write them into the slices of every Service that selects them."""
        target = self.find("deployments")
        count = target["spec"]["replicas"] if target is not None else 0
        pods = [f"web-{number}" for number in range(count)]
        for pod in pods:
            if self.find("pods", pod) is None:
                ready = {"conditions": [{"type": "Ready", "status": "True"}]}
                labels = LABELS | self.pod_labels
                made = {"metadata": {"labels": labels}, "spec": self.pod_spec}
                self.put("pods", {**made, "status": ready | self.pod_status}, pod)
        for service in self.all("services"):
            meta = service["metadata"]
            body: JsonObject = {
                "metadata": {
                    "labels": {
                        "kubernetes.io/service-name": meta["name"],
                        **{
                            k: v
                            for k, v in (meta.get("labels") or {}).items()
                            if k == PRIVATE_LABEL
                        },
                    },
                },
                "addressType": "IPv4",
                "ports": [{"name": "http", "port": 8080, "protocol": "TCP"}],
                "endpoints": [
                    _endpoint(f"10.1.0.{number + 1}", pod)
                    for number, pod in enumerate(pods)
                    if self._selects(service)
                ],
            }
            self.put("endpointslices", body, f"{meta['name']}-pods")
        for gone in [p for p in self.all("pods") if p["metadata"]["name"] not in pods]:
            self._end_pod(gone["metadata"]["name"])

    def _selects(self, service: JsonObject) -> bool:
        selector = service["spec"]["selector"]
        revision = self.pod_labels.get(ARGO_KEY)
        return DRAIN_KEY not in selector and selector.get(ARGO_KEY, revision) == revision

    def _end_pod(self, name: str) -> None:
        if not self.pod_end:
            self.delete("pods", name)
        elif name not in self._ending:
            self._ending.add(name)
            asyncio.get_running_loop().call_later(self.pod_end, self._pod_ended, name)

    def _pod_ended(self, name: str) -> None:
        self._ending.remove(name)
        self.delete("pods", name)

    def _keda(self, name: str) -> None:
        found = self.get("scaledobjects", name)
        paused = (found["metadata"].get("annotations") or {}).get(PAUSED) == "true"
        word = "True" if paused else "False"
        found["status"] = {"conditions": [{"type": "Paused", "status": word}]}
        self.put("scaledobjects", found, name)

    def _keda_scales(self) -> None:
        """Undo a park, as KEDA does where it is not paused: a ScaledObject's least is 1 here."""
        found = self.find("scaledobjects")
        if found is None or self.find("deployments") is None:
            return
        paused = (found["metadata"].get("annotations") or {}).get(PAUSED) == "true"
        if not paused and not self.replicas:
            self.scale(1, manager="keda")

    def _watch_rotation(self, obj: JsonObject) -> None:
        """Note every moment at which neither a pod nor the resolver would take traffic."""
        bright = any(
            endpoint["conditions"]["ready"]
            for one in self.all("endpointslices")
            if (one["metadata"].get("labels") or {}).get("kubernetes.io/service-name") == "web"
            for endpoint in one.get("endpoints") or ()
        )
        self._lit = self._lit or bright
        if self._lit and not bright:
            self.dark.append(obj["metadata"]["name"])

    # The operator

    @contextlib.asynccontextmanager
    async def operator(
        self,
        *,
        autoscalers: Sequence[type[Autoscaler]] = AUTOSCALERS,
        former_at: float = -math.inf,
    ) -> AsyncIterator[Operator]:
        """Run an operator; one that fails by itself fails the test.

        `former_at`: when another last led, in seconds since 1970.
        """
        operator = Operator(self, autoscalers, former_at)
        async with operator.running():
            yield operator
        assert not_granted(operator.client.requests, self.settings, self.granted) == set()


class Operator:
    """One process. `kill_at` ends it at a write: it never gets the answer, nor does anything more."""

    def __init__(
        self,
        env: Environment,
        autoscalers: Sequence[type[Autoscaler]] = AUTOSCALERS,
        former_at: float = -math.inf,
    ) -> None:
        self.client = FakeClient(namespace=NAMESPACE, server=env.server)
        self.killed = asyncio.Event()
        self._env = env
        client = self.client
        recorder: Any = env.recorder
        metrics, directory, scales = OperatorMetrics(), Directory(), ScaleHandler(client)
        self.caches = OperatorCaches.of(client, env.settings, metrics.library)
        self.caches.elastiservices.add_handler(directory.on_event, name="directory")
        kinds = Autoscalers(client, autoscalers)
        manager = self.caches.manager
        reporter = EventReporter(recorder)
        waker = Waker(
            client=client,
            scales=scales,
            metrics=metrics,
            reporter=reporter,
            clock=env.clock,
            known=lambda target: known_target(client, manager, scales, target),
        )
        self.waker = WakeRequests(
            waker=waker,
            directory=directory,
            autoscalers=kinds,
            metrics=metrics,
            is_synced=lambda: manager.is_ready,
            serves=self.caches.serves,
        )
        self._leader = Leader(
            client=client,
            settings=env.settings,
            clock=env.clock,
            caches=self.caches,
            directory=directory,
            scales=scales,
            autoscalers=kinds,
            waker=waker,
            metrics=metrics,
            reporter=reporter,
            open_resolver_client=lambda: env.resolvers,
            former_at=former_at,
        )
        self.metrics = metrics
        self.lose_the_lease: Callable[[], object] = lambda: None

    def kill_at(self, number: int) -> None:
        """Die after the write of that number, counted from 1; refused ones do not count."""
        made = itertools.count(1)

        def on_write(_write: Request, done: bool) -> None:
            if self.killed.is_set() or (done and next(made) == number):
                self.killed.set()
                raise Killed

        self.client.on_write = on_write

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        async with self.waker:
            caches = asyncio.create_task(self.caches.manager.run(), name="caches")
            await self.caches.manager.wait_until_ready()
            leader = asyncio.create_task(self._leader.run(), name="leader")
            self.lose_the_lease = leader.cancel
            try:
                yield
            finally:
                ended = leader.done() and not leader.cancelled()
                failed = ended and not self.killed.is_set()
                with contextlib.suppress(Killed, BaseExceptionGroup):
                    await finish([leader, caches])
            if failed:
                leader.result()


BINDINGS_PATH = "/apis/elbv2.k8s.aws/v1beta1"
"""Of discovery, which every client may read."""


def not_granted(
    requests: Iterable[Request], settings: OperatorSettings, more: Iterable[PolicyRule]
) -> set[tuple[str, str, str]]:
    """The requests that the rights of an installation with these settings do not allow."""
    optional = (settings.doze, rbac.DOZE_RULES), (settings.enrolment, rbac.ENROLMENT_RULES)
    rules = (
        *(*rbac.NAMESPACED_RULES, *rbac.CLUSTER_RULES, *rbac.OWN_RULES, *rbac.PATH_RULES),
        *(rule for is_on, named in optional if is_on for rule in named),
        *more,
    )
    granted = {(r.group, what, verb) for r in rules for what in r.resources for verb in r.verbs}
    found = (_asked(request) for request in requests if request.path != BINDINGS_PATH)
    return {asked for asked in found if asked not in granted}


def _asked(request: Request) -> tuple[str, str, str]:
    """The group, the resource and the verb of a request."""
    parts = request.path.strip("/").split("/")
    group, rest = ("", parts[2:]) if parts[0] == "api" else (parts[1], parts[3:])
    if rest[0] == "namespaces" and len(rest) > 2:
        rest = rest[2:]
    verb = {"POST": "create", "PUT": "update"}.get(request.method, request.method.lower())
    if verb == "get" and len(rest) == 1:
        verb = "watch" if ("watch", "true") in request.query else "list"
    return group, "/".join((rest[0], *rest[2:])), verb


def subject(write: Request) -> str:
    """The resource of a write, and its subresource: `deployments/scale`."""
    plural, _name, subresource = (*write.path.split("/namespaces/")[1].split("/")[1:], "", "")[:3]
    return f"{plural}/{subresource}" if subresource else plural


def _endpoint(address: str, pod: str) -> JsonObject:
    return {
        "addresses": [address],
        "conditions": {"ready": True, "serving": True, "terminating": False},
        "targetRef": {"kind": "Pod", "name": pod, "namespace": NAMESPACE, "uid": ""},
    }
