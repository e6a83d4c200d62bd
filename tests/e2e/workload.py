"""The objects of a sample app that may sleep: Deployment, Service, ElastiService. Pure."""

from __future__ import annotations

import dataclasses
import sys
from pathlib import Path
from typing import Any

from elasti.api.names import API_VERSION, KIND
from kubeloop.objects.meta import JsonObject
from tests.e2e.settings import PYTHONPATH

PORT = 8080
IN_USE: JsonObject = {"metric": "http_requests_total", "threshold": 0.1}
"""Shows use as a counter of requests does."""
ALWAYS_IDLE: JsonObject = {"metric": "always_idle", "threshold": 1}
"""Never shows any: a metric that lags behind, at its worst."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class App:
    """One app; times in seconds. `executed` is where it writes what it executed."""

    namespace: str
    executed: Path
    name: str = "web"
    start: float = 1.0
    start_when: Path | None = None
    linger: float = 5.0
    cooldown: int = 3
    trigger: JsonObject = dataclasses.field(default_factory=lambda: IN_USE)
    replicas: int = 1
    max_held: int = 20_000
    look_every: int = 1
    """How often its readiness is looked at, in seconds."""
    kind: str = "Deployment"
    wake_timeout: int = 600
    drain: str = "None"

    def but(self, **more: Any) -> App:
        """Return it with some choices changed."""
        return dataclasses.replace(self, **more)

    def objects(self) -> list[JsonObject]:
        """Return everything, in the order in which it is applied."""
        return [self.workload(), self.service(), self.elasti_service()]

    def workload(self) -> JsonObject:
        """Return what sleeps."""
        labels = {"app": self.name}
        return {
            "apiVersion": "apps/v1",
            "kind": self.kind,
            "metadata": self._metadata(),
            "spec": {
                "replicas": self.replicas,
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": self.pod()},
            },
        }

    def pod(self) -> JsonObject:
        """Return a pod's spec: a process of this machine's Python."""
        container = {
            "name": "app",
            "image": "app",
            "command": [sys.executable, "-m", "tests.e2e.app"],
            "env": self.variables(PYTHONPATH=PYTHONPATH, EXECUTED=str(self.executed)),
            "ports": [{"containerPort": PORT}],
            "readinessProbe": self.readiness_probe(),
        }
        return {"containers": [container], "terminationGracePeriodSeconds": 20}

    def service(self) -> JsonObject:
        """Return the Service."""
        port = {"name": "http", "port": PORT, "targetPort": PORT}
        return {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": self._metadata(),
            "spec": {"selector": {"app": self.name}, "ports": [port]},
        }

    def elasti_service(self) -> JsonObject:
        """Return the ElastiService."""
        return {
            "apiVersion": API_VERSION,
            "kind": KIND,
            "metadata": self._metadata(),
            "spec": {
                "service": self.name,
                "scaleTargetRef": {
                    "apiVersion": "apps/v1",
                    "kind": self.kind,
                    "name": self.name,
                },
                "cooldownPeriod": self.cooldown,
                "triggers": [{"type": "pods", "metadata": self.trigger}],
                "wake": {"maxHeld": self.max_held, "timeoutSeconds": self.wake_timeout},
                "sleep": {"drain": self.drain},
            },
        }

    def _metadata(self) -> JsonObject:
        return {"name": self.name, "namespace": self.namespace}

    def variables(self, **more: str) -> list[JsonObject]:
        """Return the environment of the app's process."""
        variables = {
            "START_SECONDS": str(self.start),
            "START_WHEN": str(self.start_when or ""),
            "LINGER_SECONDS": str(self.linger),
            "PORT": str(PORT),
            **more,
        }
        environment: list[JsonObject] = [{"name": k, "value": v} for k, v in variables.items()]
        for name, path in (("POD_NAME", "metadata.name"), ("POD_IP", "status.podIP")):
            environment.append({"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}})
        return environment

    def readiness_probe(self) -> JsonObject:
        """Return the probe that finds out whether it serves."""
        # An app that is slow to answer because the machine is busy is not one that leaves.
        probe = {"httpGet": {"path": "/healthz", "port": PORT}, "timeoutSeconds": 10}
        return {**probe, "periodSeconds": self.look_every, "failureThreshold": 1}
