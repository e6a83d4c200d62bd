"""One request to an app that sleeps, measured: when each stage of its wake-up was."""

from __future__ import annotations

import json
import re
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from time import time
from typing import TYPE_CHECKING, Any

from hack.realcluster.cluster import is_ready
from tests.e2e.prober.contract import answer_of
from tests.realcluster.nodes import NodeApp, volume
from tests.realcluster.report import WakeUp

if TYPE_CHECKING:
    from pathlib import Path

    from tests.realcluster.rig import Rig

SECONDS = 60.0
# Runs in a node's namespaces; asks once, and says when by the machine's clock.
ASK = """
import http.client, json, sys, time
began = time.time()
connection = http.client.HTTPConnection(sys.argv[1], 8080, timeout=60)
connection.request("GET", "/" + sys.argv[2])
response = connection.getresponse()
body = response.read().decode()
answered = time.time()
print(json.dumps([response.status, body, response.headers["X-Pod"], began, answered]))
"""


@dataclass(frozen=True, slots=True)
class Sleeper:
    """An app that sleeps when it is told to; the kubelet looks at it every `period` seconds."""

    rig: Rig
    namespace: str
    directory: Path
    period: int
    name: str = "web"

    def apply(self) -> None:
        """Put it into the cluster, and return when it is ready."""
        self.directory.chmod(0o777)
        app = NodeApp(
            namespace=self.namespace,
            executed=self.directory,
            name=self.name,
            look_every=self.period,
            linger=1,
            cooldown=3600,
        )
        claim = volume(self.namespace, "executed", self.directory)
        self.rig.apply(*claim, *app.objects())
        self.rig.api.until(self.pods, lambda pods: any(map(is_ready, pods)), SECONDS)

    @property
    def pods(self) -> str:
        return f"/api/v1/namespaces/{self.namespace}/pods?labelSelector=app%3D{self.name}"

    @property
    def address(self) -> str:
        path = f"/api/v1/namespaces/{self.namespace}/services/{self.name}"
        return str(self.rig.api.get(path)["spec"]["clusterIP"])

    def sleep(self) -> None:
        """Return when it is asleep and its last pod is gone."""
        self.rig.elasti("sleep", self.name, f"--namespace={self.namespace}", "--wait")
        self.rig.api.until(self.pods, lambda pods: not pods, SECONDS)

    def wake(self, word: str) -> WakeUp:
        """Ask a sleeping one once from node-1; when was what?"""
        address = self.address
        version = self.rig.api.get(self.pods)["metadata"]["resourceVersion"]
        with ThreadPoolExecutor() as pool:
            watching = pool.submit(self._stages, version)
            said = self.rig.inside("node-1", sys.executable, "-c", ASK, address, word)
            seen = watching.result()
        status, body, pod, began, answered = json.loads(said)
        assert status == 200, body
        assert (pod, body) == (seen["pod"], answer_of(word, b"").decode())
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
