"""The objects that cases put into a cluster. Pure."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

from elasti.api.names import API_VERSION, KIND
from kubeloop.objects.meta import JsonObject
from tests.e2e.settings import PYTHONPATH

PORT, GRPC_PORT = 8080, 50051


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class HttpBin:
    """KubeElasti's sample: a workload, its Service on port 85, its ElastiService.

    The cooldown is long, as there, so that only hands put it to sleep; a case that waits for sleep
    chooses less. `spec` is over the ElastiService's own, `probes` over the container's.
    """

    namespace: str
    name: str = "target"
    kind: str = "Deployment"
    replicas: int = 1
    start: float = 0.0
    grpc: bool = False
    cooldown: int = 300
    spec: JsonObject = dataclasses.field(default_factory=dict)
    probes: JsonObject = dataclasses.field(default_factory=dict)

    def but(self, **more: Any) -> HttpBin:
        """Return it with some choices changed."""
        return dataclasses.replace(self, **more)

    def objects(self) -> list[JsonObject]:
        """Return everything, in the order in which it is applied."""
        return [self.workload(), self.service(), self.elasti_service()]

    def workload(self) -> JsonObject:
        """Return the Deployment or StatefulSet."""
        labels = {"app": self.name}
        pod = {"containers": [self._container()], "terminationGracePeriodSeconds": 10}
        named = {"serviceName": self.name} if self.kind == "StatefulSet" else {}
        return {
            "apiVersion": "apps/v1",
            "kind": self.kind,
            "metadata": self._metadata(),
            "spec": {
                **named,
                "replicas": self.replicas,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        }

    def service(self) -> JsonObject:
        """Return the Service."""
        ports: list[JsonObject] = [{"name": "http", "port": 85, "targetPort": PORT}]
        if self.grpc:
            h2c = {"name": "grpc", "port": GRPC_PORT, "targetPort": GRPC_PORT}
            ports.append({**h2c, "appProtocol": "kubernetes.io/h2c"})
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": self._metadata(),
            "spec": {"selector": {"app": self.name}, "ports": ports},
        }

    def elasti_service(self) -> JsonObject:
        """Return the ElastiService."""
        ref = {"apiVersion": "apps/v1", "kind": self.kind, "name": self.name}
        spec = {
            "service": self.name,
            "scaleTargetRef": ref,
            "minTargetReplicas": 1,
            "cooldownPeriod": self.cooldown,
            "triggers": [],
            **self.spec,
        }
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": self._metadata(),
            "spec": spec,
        }

    def _metadata(self) -> JsonObject:
        return {"name": self.name, "namespace": self.namespace}

    def _container(self) -> JsonObject:
        variables = {
            "PYTHONPATH": PYTHONPATH,
            "PORT": str(PORT),
            "START_SECONDS": str(self.start),
            "GRPC_PORT": str(GRPC_PORT) if self.grpc else "",
        }
        environment: list[JsonObject] = [{"name": k, "value": v} for k, v in variables.items()]
        for name, path in (("POD_NAME", "metadata.name"), ("POD_IP", "status.podIP")):
            environment.append({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
        ready = {"httpGet": {"path": "/healthz", "port": PORT}, "periodSeconds": 1}
        return {
            "name": "httpbin",
            "image": "httpbin",
            "command": [sys.executable, "-m", "tests.e2e.cases.httpbin"],
            "env": environment,
            "ports": [{"containerPort": PORT}],
            "readinessProbe": ready,
            **self.probes,
        }
