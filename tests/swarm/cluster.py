"""The rest of a cluster: its controllers, kubelets and service proxies, each as late as the seed says.

A Service `web` is a Deployment `web` behind it, and an ElastiService that lets it sleep. An app is a few lines of HTTP that
writes down what it executes.
"""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import Callable
from typing import Any

from elasti.api.names import (
    API_VERSION,
    NAMESPACE,
    OPERATOR_SERVICE,
    PRIVATE_LABEL,
    RESOLVER_SERVICE,
)
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.meta import JsonObject, make_key
from tests.history.events import Executed, Pod, Rotation, Scaled
from tests.swarm.apiserver import Server
from tests.swarm.books import Books
from tests.swarm.loop import Process
from tests.swarm.network import Network

SHOP = "shop"
NODES = (0, 1)
SLICES = "discovery.k8s.io/v1/endpointslices"
DEPLOYMENTS = "apps/v1/deployments"
SERVICES = "v1/services"
PODS = "v1/pods"
ELASTISERVICES = "elasti.truefoundry.com/v1alpha1/elastiservices"
_LABEL = "kubernetes.io/service-name"
APP_PORT = 8080


@dataclasses.dataclass(eq=False)
class AppPod:
    """A pod of a workload, as its kubelet knows it."""

    name: str
    app: str
    process: Process
    ready: bool = False
    ending: bool = False
    ready_at: float = 0.0
    busy: int = 0


class Cluster:
    """Plays everything that is not Elasti. Settles are as short as nodes are fast here."""

    def __init__(self, server: Server, network: Network, books: Books) -> None:
        self.server, self.network, self.books = server, network, books
        self.loop, self.api = network.loop, server.admin
        self.process = Process("cluster")
        self.pods: dict[str, AppPod] = {}
        self.views: list[dict[str, list[tuple[str, int, str]]]] = [{} for _ in NODES]
        #: By namespace and Service: what serves a Service that has no selector here.
        self.programs: dict[str, list[tuple[Process, bool]]] = {}
        self.start_takes = 1.0
        #: Until when each node's service proxy hears of nothing.
        self.still_until = [0.0 for _ in NODES]
        #: Apps whose Deployment recreates: two pods of one at a time damage its volume.
        self.recreates: set[str] = set()
        self.by_hand: set[str] = set()
        self.problems: list[str] = []
        #: Called with an app, its replicas before and after, as the process that wrote them.
        self.on_scaled: list[Callable[[str, int, int], None]] = []
        self._replicas: dict[str, int] = {}
        #: Whether pods are unready once more soon after they became ready.
        self.flaps = False
        self.cooldown = 10
        self._numbers = itertools.count(1)
        self.api.on_change.append(self._changed)
        # Without it, the operator takes every deletion for the end of the namespace, and waits for no pod.
        self.api.put({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": SHOP}})

    # What people write

    def put(self, kind: str, api_version: str, name: str, **body: Any) -> JsonObject:
        meta = {"name": name, "namespace": SHOP, **body.pop("metadata", {})}
        return self.api.put({"apiVersion": api_version, "kind": kind, "metadata": meta, **body})

    def add_app(self, app: str, replicas: int, **spec: Any) -> None:
        """Create a Deployment, its Service and an ElastiService."""
        labels = {"app": app}
        template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "app"}]}}
        recreates = app == "api" and self.loop.random.random() < 0.5
        if recreates:
            self.recreates.add(app)
        deployment = {
            "strategy": {"type": "Recreate" if recreates else "RollingUpdate"},
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": template,
        }
        self.put("Deployment", "apps/v1", app, spec=deployment, status={"replicas": replicas})
        self.add_service(app)
        self.add_elastiservice(app, **spec)

    def add_service(self, app: str, number_of_port: int = 80) -> None:
        number = sum(map(ord, app)) % 200
        ports = [
            {"name": "http", "port": number_of_port, "protocol": "TCP", "targetPort": APP_PORT}
        ]
        body = {"selector": {"app": app}, "ports": ports, "clusterIP": f"10.0.0.{number}"}
        body |= {"type": "ClusterIP", "ipFamilies": ["IPv4"]}
        self.put("Service", "v1", app, spec=body)

    def remove_service(self, app: str) -> None:
        if self.stored(SERVICES, app) is not None:
            self.api.remove(SERVICES, app, namespace=SHOP)

    def add_elastiservice(self, app: str, **spec: Any) -> None:
        target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": app}
        trigger = {"query": app, "threshold": "0.01", "serverAddress": "http://prometheus"}
        body = {
            "service": app,
            "scaleTargetRef": target,
            "cooldownPeriod": self.cooldown,
            "minTargetReplicas": 1,
            "triggers": [{"type": "prometheus", "metadata": trigger}],
        }
        self.put("ElastiService", API_VERSION, app, spec=body | spec)

    def stored(self, resource: str, name: str) -> JsonObject | None:
        """Return what the server stores, to be read only: a copy takes a while, and much is looked at often."""
        return self.api.source(resource).objects.get(make_key(SHOP, name))

    def replicas(self, app: str) -> int | None:
        found = self.stored(DEPLOYMENTS, app)
        return None if found is None else int(found["spec"]["replicas"])

    def scale(self, app: str, replicas: int) -> None:
        """Scale as a person does."""
        found = self.api.find(DEPLOYMENTS, app, namespace=SHOP)
        if found is not None:
            found["spec"]["replicas"] = replicas
            self.api.put(found)

    # Controllers

    def _later(self, most: float, call: Any, *args: Any) -> None:
        seconds = self.loop.random.uniform(0.001, most)
        self.loop.call_later(seconds, call, *args, context=self.process.context)

    def _changed(self, gvr: GroupVersionResource, obj: JsonObject, gone: bool) -> None:
        name = obj["metadata"]["name"]
        if gvr.resource == "deployments":
            count = 0 if gone else obj["spec"]["replicas"]
            self.books.note(Scaled(at=self.loop.now, service=name, replicas=count))
            before, self._replicas[name] = self._replicas.get(name, count), count
            if before != count:
                for call in self.on_scaled:
                    call(name, before, count)
            self._later(0.1, self._run_workload, name)
        elif gvr.resource == "services":
            self._later(0.1, self._write_slices, name)
            if gone:
                self._collect(name)
        elif gvr.resource == "endpointslices":
            self._note_rotation((obj["metadata"].get("labels") or {}).get(_LABEL, ""))
            for node in NODES:
                self._later(1.0, self._sync, node)

    def _collect(self, service: str) -> None:
        for one in list(self.api.source(SLICES).objects.values()):
            if (one["metadata"].get("labels") or {}).get(_LABEL) == service:
                self.api.remove(SLICES, one["metadata"]["name"], namespace=SHOP)

    def _run_workload(self, app: str) -> None:
        wanted = self.replicas(app) or 0
        mine = [pod for pod in self.pods.values() if pod.app == app and not pod.ending]
        for _ in range(wanted - len(mine)):
            self._start_pod(app)
        for pod in mine[wanted:] if wanted else mine:
            self.end_pod(pod)

    def _write_slices(self, service: str) -> None:
        """Write the slice of a Service's selector, and of those that select the same."""
        found = self.api.find(SERVICES, service, namespace=SHOP)
        if found is None or not found["spec"].get("selector"):
            return
        selector, labels = found["spec"]["selector"], found["metadata"].get("labels") or {}
        kept = {key: value for key, value in labels.items() if key == PRIVATE_LABEL}
        endpoints = [
            _endpoint(pod.process.address, pod.name, ready=pod.ready, ending=pod.ending)
            for pod in self.pods.values()
            if selector == {"app": pod.app}
        ]
        port = found["spec"]["ports"][0]
        self.put(
            "EndpointSlice",
            "discovery.k8s.io/v1",
            f"{service}-pods",
            metadata={"labels": {_LABEL: service, **kept}},
            addressType="IPv4",
            ports=[{"name": port.get("name"), "port": APP_PORT, "protocol": "TCP"}],
            endpoints=endpoints,
        )

    def _pods_changed(self, app: str) -> None:
        for one in self.api.source(SERVICES).objects.values():
            if one["spec"].get("selector") == {"app": app}:
                self._later(0.2, self._write_slices, one["metadata"]["name"])

    # Kubelets

    def _start_pod(self, app: str) -> None:
        number = next(self._numbers)
        name = f"{app}-{number}"
        others = [pod.name for pod in self.pods.values() if pod.app == app and pod.ending]
        if others and app in self.recreates - self.by_hand:
            self.problems.append(f"{self.loop.now:.2f} {name} starts beside {others}")
        process = Process(name, f"10.1.{number // 250}.{number % 250 + 1}", number % len(NODES))
        pod = self.pods[name] = AppPod(name, app, process)
        self.network.addresses[process.address] = process
        self._write_pod(pod)
        self._pods_changed(app)
        self.books.note(Pod(at=self.loop.now, name=name, phase="there"))
        self.loop.call_later(
            self.loop.random.uniform(0.2, 2.0) * self.start_takes,
            self._serve,
            pod,
            context=process.context,
        )

    def _write_pod(self, pod: AppPod) -> None:
        status = {
            "phase": "Running",
            "podIP": pod.process.address,
            "podIPs": [{"ip": pod.process.address}],
            "conditions": [{"type": "Ready", "status": "True" if pod.ready else "False"}],
        }
        meta = {"labels": {"app": pod.app}}
        self.put(
            "Pod",
            "v1",
            pod.name,
            metadata=meta,
            spec={"containers": [{"name": "app"}]},
            status=status,
        )

    def _serve(self, pod: AppPod) -> None:
        if pod.name in self.pods and not pod.ending:
            self.network.listen(pod.process, APP_PORT, lambda _peer: _App(self, pod))
            self._later(0.5, self._become_ready, pod)

    def _become_ready(self, pod: AppPod) -> None:
        self._set_ready(pod, True)
        if self.flaps and self.loop.random.random() < 0.6:
            back = self.loop.random.uniform(0.2, 1.2)
            self.later(back, self._set_ready, pod, False)
            self.later(back + self.loop.random.uniform(0.3, 1.5), self._set_ready, pod, True)

    def later(self, seconds: float, call: Any, *args: Any) -> None:
        self.loop.call_later(seconds, call, *args, context=self.process.context)

    def _set_ready(self, pod: AppPod, ready: bool) -> None:
        if (
            pod.name in self.pods
            and not pod.ending
            and pod.ready is not ready
            and pod.process.alive
        ):
            pod.ready, pod.ready_at = ready, self.loop.now
            self.books.note(
                Pod(at=self.loop.now, name=pod.name, phase="ready" if ready else "unready")
            )
            self._write_pod(pod)
            self._pods_changed(pod.app)

    def end_pod(self, pod: AppPod) -> None:
        """End a pod gracefully: it serves for longer than nodes need to hear of it."""
        pod.ending, pod.ready = True, False
        self.books.note(Pod(at=self.loop.now, name=pod.name, phase="leaving"))
        self._pods_changed(pod.app)
        self._later(0.5, self._end_later, pod)

    def _end_later(self, pod: AppPod) -> None:
        self.later(3.0, self._gone_if_idle, pod, 30.0)

    def _gone_if_idle(self, pod: AppPod, grace: float) -> None:
        """An app answers what it has begun before it ends, within its grace."""
        if pod.busy and grace > 0:
            self.later(0.5, self._gone_if_idle, pod, grace - 0.5)
        else:
            self._gone(pod)

    def crash_pod(self, pod: AppPod) -> None:
        """End a pod without notice."""
        self.network.kill(pod.process)
        pod.ending, pod.ready = True, False
        self._gone(pod)
        self._later(0.5, self._run_workload, pod.app)

    def _gone(self, pod: AppPod) -> None:
        if self.pods.pop(pod.name, None) is None:
            return
        self.books.note(Pod(at=self.loop.now, name=pod.name, phase="gone"))
        self.network.end(pod.process)
        self.network.addresses.pop(pod.process.address, None)
        self.api.remove(PODS, pod.name, namespace=SHOP)
        self._pods_changed(pod.app)

    # Elasti's own Services

    def list_programs(self, service: str) -> None:
        """Write the slice of the operator's or the resolver's Service."""
        port = 8013
        endpoints = [
            _endpoint(process.address, process.name, ready=ready)
            for process, ready in self.programs.get(service, ())
        ]
        self.put(
            "EndpointSlice",
            "discovery.k8s.io/v1",
            f"{service}-1",
            metadata={"namespace": NAMESPACE, "labels": {_LABEL: service}},
            addressType="IPv4",
            ports=[{"name": "http", "port": port, "protocol": "TCP"}],
            endpoints=endpoints,
        )

    # Service proxies

    def _slices(self, service: str) -> list[JsonObject]:
        return [
            one
            for one in self.api.source(SLICES).objects.values()
            if (one["metadata"].get("labels") or {}).get(_LABEL) == service
        ]

    def _sync(self, node: int) -> None:
        """Let one node's service proxy hear of all slices."""
        if (still := self.still_until[node] - self.loop.now) > 0:
            self.later(still, self._sync, node)
            return
        found: dict[str, list[tuple[str, int, str]]] = {}
        for service in sorted(self._apps()):
            ready, ending = [], []
            for one in self._slices(service):
                port = one["ports"][0]["port"]
                for endpoint in one.get("endpoints") or ():
                    place = (
                        endpoint["addresses"][0],
                        port,
                        (endpoint.get("targetRef") or {}).get("name", ""),
                    )
                    conditions = endpoint.get("conditions") or {}
                    if conditions.get("ready") is not False:
                        ready.append(place)
                    elif conditions.get("serving") and conditions.get("terminating"):
                        ending.append(place)
            found[service] = ready or ending
        self.views[node] = found

    def _apps(self) -> set[str]:
        return {
            one["metadata"]["name"]
            for one in self.api.source(SERVICES).objects.values()
            if PRIVATE_LABEL not in (one["metadata"].get("labels") or {})
        }

    def _note_rotation(self, service: str) -> None:
        if service in self._apps():
            count = sum(
                (endpoint.get("conditions") or {}).get("ready") is not False
                for one in self._slices(service)
                for endpoint in one.get("endpoints") or ()
            )
            self.books.note(Rotation(at=self.loop.now, service=service, endpoints=count))


def _endpoint(address: str, pod: str, *, ready: bool, ending: bool = False) -> JsonObject:
    return {
        "addresses": [address],
        "conditions": {"ready": ready, "serving": ready or ending, "terminating": ending},
        "targetRef": {"kind": "Pod", "name": pod, "namespace": SHOP, "uid": ""},
    }


class _App(asyncio.Protocol):
    """An app: answers `GET /id` with its pod's name, once a request is whole."""

    def __init__(self, cluster: Cluster, pod: AppPod) -> None:
        self._cluster, self._pod = cluster, pod
        self._bytes = b""

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._bytes += data
        while b"\r\n\r\n" in self._bytes:
            head, _, self._bytes = self._bytes.partition(b"\r\n\r\n")
            number = head.split(b" ")[1].decode().lstrip("/")
            cluster = self._cluster
            cluster.books.note(Executed(at=cluster.loop.now, id=number, pod=self._pod.name))
            cluster.books.served(self._pod.app, cluster.loop.now)
            seconds = cluster.loop.random.choice((0.0, 0.01, 0.3))
            if "-" in number:
                seconds = float(number.partition("-")[2].rstrip("k"))
            self._pod.busy += 1
            cluster.loop.call_later(seconds, self._answer, context=self._pod.process.context)

    def _answer(self) -> None:
        self._pod.busy -= 1
        body = self._pod.name.encode()
        self._transport.write(
            b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%s" % (len(body), body)
        )


__all__ = ["OPERATOR_SERVICE", "RESOLVER_SERVICE", "AppPod", "Cluster"]
