"""The app that sleeps, as objects; and one request to it, measured."""

from __future__ import annotations

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING, Any

from hack.realcluster.cluster import is_ready
from hack.realcluster.images import APP
from tests.realcluster.report import WakeUp

if TYPE_CHECKING:
    from tests.realcluster.rig import Rig

SECONDS = 60.0
# Runs in a node's namespaces; asks once, and says when by the machine's clock.
ASK = """
import http.client, json, sys, time
began = time.time()
connection = http.client.HTTPConnection(sys.argv[1], 80, timeout=60)
connection.request("GET", sys.argv[2])
response = connection.getresponse()
body = response.read().decode()
answered = time.time()
print(json.dumps([response.status, body, began, answered]))
"""


def restricted_pod(**container: Any) -> dict[str, Any]:
    """A pod's spec that Pod Security `restricted` lets pass, with one container of the app's image."""
    return {
        "terminationGracePeriodSeconds": 1,
        "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "main",
                "image": APP,
                "imagePullPolicy": "Never",
                "securityContext": {
                    "allowPrivilegeEscalation": False,
                    "capabilities": {"drop": ["ALL"]},
                },
                **container,
            }
        ],
    }


def objects(namespace: str, name: str, *, period: int) -> list[dict[str, Any]]:
    """A Deployment, its Service and its ElastiService; the kubelet looks every `period` seconds."""
    labels = {"app": name}
    where = {"name": name, "namespace": namespace}
    pod = restricted_pod(
        ports=[{"containerPort": 8080}],
        readinessProbe={"httpGet": {"path": "/ready", "port": 8080}, "periodSeconds": period},
        resources={"requests": {"cpu": "50m", "memory": "32Mi"}, "limits": {"memory": "128Mi"}},
    )
    template = {"metadata": {"labels": labels}, "spec": pod}
    return [
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": where,
            "spec": {"replicas": 1, "selector": {"matchLabels": labels}, "template": template},
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": where,
            "spec": {"selector": labels, "ports": [{"port": 80, "targetPort": 8080}]},
        },
        {
            "apiVersion": "elasti.truefoundry.com/v1alpha1",
            "kind": "ElastiService",
            "metadata": where,
            "spec": {
                "service": name,
                "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
                "minTargetReplicas": 1,
                # It sleeps when it is told to, and not while it is measured.
                "cooldownPeriod": 3600,
                "triggers": [
                    {
                        "type": "pods",
                        "metadata": {"metric": "http_requests_total", "threshold": 0.1},
                    }
                ],
            },
        },
    ]


@dataclass(frozen=True, slots=True)
class App:
    """One that is there, awake or asleep."""

    rig: Rig
    namespace: str
    name: str

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods?labelSelector=app%3D{self.name}"

    @property
    def address(self) -> str:
        path = f"/api/v1/namespaces/{self.namespace}/services/{self.name}"
        return str(self.rig.api.get(path)["spec"]["clusterIP"])

    def until_ready(self) -> None:
        self.rig.api.until(self.pods, lambda pods: any(map(is_ready, pods)), SECONDS)

    def sleep(self) -> None:
        """Return when it is asleep and its last pod is gone."""
        self.rig.elasti("sleep", self.name, f"--namespace={self.namespace}", "--wait")
        self.rig.api.until(self.pods, lambda pods: not pods, SECONDS)

    def wake(self, path: str) -> WakeUp:
        """Ask a sleeping one once from node-1; when was what?"""
        address = self.address
        version = self.rig.api.get(self.pods)["metadata"]["resourceVersion"]
        with ThreadPoolExecutor() as pool:
            watching = pool.submit(self._stages, version)
            said = self.rig.inside("node-1", sys.executable, "-c", ASK, address, path)
            seen = watching.result()
        status, body, began, answered = json.loads(said)
        assert status == 200, body
        assert body == f"hello from {seen['pod']} {path}\n"
        log = self.rig.kubectl("logs", seen["pod"], f"--namespace={self.namespace}")
        listening = re.search(r"^([\d.]+) listening$", log, re.MULTILINE)
        assert listening is not None, log
        return WakeUp(
            created=seen["created"] - began,
            scheduled=seen["scheduled"] - began,
            started=seen["started"] - began,
            listening=float(listening[1]) - began,
            answered=answered - began,
            ready=seen["ready"] - began,
        )

    def _stages(self, version: str) -> dict[str, Any]:
        """When the API first told each stage of the next pod; returns when that is ready."""
        seen: dict[str, Any] = {}
        for event in self.rig.api.watch(self.pods, version, SECONDS):
            now, pod = time(), event["object"]
            seen.setdefault("created", now)
            seen.setdefault("pod", pod["metadata"]["name"])
            if pod["spec"].get("nodeName"):
                seen.setdefault("scheduled", now)
            if any("running" in c["state"] for c in pod["status"].get("containerStatuses", [])):
                seen.setdefault("started", now)
            if is_ready(pod):
                return {**seen, "ready": now}
        raise TimeoutError(f"no pod of {self.name} is ready after {SECONDS:.0f} s: {seen}")
