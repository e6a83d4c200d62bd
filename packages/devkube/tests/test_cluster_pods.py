"""Pods in a whole cluster: they run, are reached, say what is wrong, and never outlive it."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import uuid
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from tests.apiserver.harness import connected
from tests.cluster_support import Kubectl, Refusals, kubectls, running
from tests.dev_process import dev_process, processes_with, still_there

from devkube.faults import NODES
from tests.waiting import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(120),
    pytest.mark.skipif(not kubectls(), reason="no kubectl: make controlplane builds one"),
]
# A server that binds its own address, as pods of this cluster must; it answers with its pod's name.
SERVER = """
import http.server, os
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(os.environ["POD_NAME"].encode())
    def log_message(self, *words):
        pass
http.server.ThreadingHTTPServer((os.environ["POD_IP"], 8080), Handler).serve_forever()
"""
FACTS = [
    {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
    for name, path in (("POD_IP", "status.podIP"), ("POD_NAME", "metadata.name"))
]


def server(name: str = "web", *, replicas: int = 2, mark: str = "") -> dict[str, Any]:
    labels = {"app": name}
    container = {
        "name": "web",
        "image": "none",
        "command": [sys.executable, "-c", f"{SERVER}# {mark}"],
        "env": FACTS,
        "ports": [{"containerPort": 8080}],
        "readinessProbe": {"tcpSocket": {"port": 8080}, "periodSeconds": 1},
    }
    pod = {"containers": [container], "terminationGracePeriodSeconds": 1}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": pod},
        },
    }


def service(name: str = "web") -> dict[str, Any]:
    spec = {"selector": {"app": name}, "ports": [{"port": 8080}]}
    return {"apiVersion": "v1", "kind": "Service", "metadata": {"name": name}, "spec": spec}


async def available(kubectl: Kubectl, name: str = "web") -> None:
    await kubectl("wait", "--for=condition=Available", f"deployment/{name}", "--timeout=40s")


async def answers(address: str, count: int) -> set[str]:
    """Ask a Service until so many different pods have answered."""
    seen: set[str] = set()
    async with aiohttp.ClientSession() as session, asyncio.timeout(20):
        while len(seen) < count:
            try:
                async with session.get(
                    f"http://{address}:8080", headers={"Connection": "close"}
                ) as got:
                    seen.add(await got.text())
            except aiohttp.ClientError:
                await asyncio.sleep(0.02)
    return seen


async def test_a_service_leads_to_every_pod_on_every_node(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=2) as run:
        refusals = Refusals()
        run.cluster.auth.gate.authorizers.append(refusals)
        await run.kubectl("apply", "-f", "-", stdin=server(replicas=4))
        await run.kubectl("apply", "-f", "-", stdin=service())
        await available(run.kubectl)
        found = json.loads(await run.kubectl("get", "pods", "-o", "json"))["items"]
        assert {pod["spec"]["nodeName"] for pod in found} == {"node-1", "node-2"}
        address = await run.kubectl("get", "svc", "web", "-o", "jsonpath={.spec.clusterIP}")
        assert await answers(address, 4) == {pod["metadata"]["name"] for pod in found}
        await run.kubectl("delete", "deployment", "web", "--cascade=foreground", "--timeout=30s")
        assert refusals.seen == []


async def test_a_command_that_does_not_exist_is_named(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=1) as run:
        await run.kubectl("run", "bad", "--image=none", "--command", "--", "/no/such/program")

        async def told() -> bool:
            return "/no/such/program" in await run.kubectl("describe", "pod", "bad")

        await eventually(told)
        described = await run.kubectl("describe", "pod", "bad")
        assert "no such file or directory" in described

        async def looping() -> bool:
            return "CrashLoopBackOff" in await run.kubectl("get", "pods")

        await eventually(looping)


async def test_a_pod_is_its_service_account(tmp_path: Path) -> None:
    code = (
        "import json, os, ssl, urllib.request\n"
        "base = os.environ.get('KUBERNETES_SERVICEACCOUNT_DIR',"
        " '/var/run/secrets/kubernetes.io/serviceaccount')\n"
        "token = open(base + '/token').read()\n"
        "tls = ssl.create_default_context(cafile=base + '/ca.crt')\n"
        "url = 'https://%s:%s' % (os.environ['KUBERNETES_SERVICE_HOST'],"
        " os.environ['KUBERNETES_SERVICE_PORT'])\n"
        "request = urllib.request.Request(url + '/apis/authentication.k8s.io/v1/selfsubjectreviews',"
        " data=b'{}', headers={'Authorization': 'Bearer ' + token,"
        " 'Content-Type': 'application/json'})\n"
        "who = json.load(urllib.request.urlopen(request, context=tls))['status']['userInfo']\n"
        "open(os.environ['RESULT'], 'w').write(json.dumps(who))\n"
    )
    result = tmp_path / "who.json"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "who"},
        "spec": {
            "serviceAccountName": "robot",
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "main",
                    "image": "none",
                    "command": [sys.executable, "-c", code],
                    "env": [{"name": "RESULT", "value": str(result)}],
                }
            ],
        },
    }
    async with running(tmp_path, nodes=1) as run:
        await run.kubectl("create", "serviceaccount", "robot")
        await run.kubectl("apply", "-f", "-", stdin=pod)
        await run.kubectl(
            "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod/who", "--timeout=30s"
        )
    who = json.loads(result.read_text())
    assert who["username"] == "system:serviceaccount:default:robot"
    assert who["extra"]["authentication.kubernetes.io/pod-name"] == ["who"]
    assert who["extra"]["authentication.kubernetes.io/node-name"] == ["node-1"]


async def test_what_a_pod_prints_can_be_read_and_followed(tmp_path: Path) -> None:
    script = "echo first; sleep 0.3; echo second; sleep 60"
    async with running(tmp_path, nodes=1) as run:
        kubectl = run.kubectl
        await kubectl("run", "talk", "--image=none", "--command", "--", "sh", "-c", script)
        await kubectl("wait", "--for=condition=Ready", "pod/talk", "--timeout=30s")

        async def complete() -> bool:
            return await kubectl("logs", "talk") == "first\nsecond\n"

        await eventually(complete)
        assert await kubectl("logs", "talk", "--tail=1") == "second\n"
        said = await kubectl.fails("logs", "talk", "-c", "other")
        assert "container other is not valid for pod talk" in said
        assert 'pods "none" not found' in await kubectl.fails("logs", "none")
        # Reading logs is a right of its own.
        await kubectl("create", "role", "pods", "--verb=get,list", "--resource=pods")
        await kubectl("create", "rolebinding", "pods", "--role=pods", "--user=x")
        said = await kubectl.fails("logs", "talk", "--as=x")
        assert 'User "x" cannot get resource "pods/log" in API group ""' in said
        await kubectl("delete", "pod", "talk", "--now")


async def test_a_healed_node_starts_its_pods(tmp_path: Path) -> None:
    async with running(tmp_path, nodes=1) as run, connected(run.cluster.server) as admin:
        cut = await admin.create(NODES, {"partition": ["node-1"]})
        assert cut.body == {"nodes": {"node-1": "partitioned"}}
        await run.kubectl("run", "late", "--image=none", "--command", "--", "sleep", "60")

        async def bound() -> bool:
            return "node-1" in await run.kubectl("get", "pod", "late", "-o", "wide")

        await eventually(bound)
        await asyncio.sleep(0.5)
        assert "Pending" in await run.kubectl("get", "pod", "late")
        assert (await admin.create(NODES, {"heal": ["node-1"]})).code == 200
        await run.kubectl("wait", "--for=condition=Ready", "pod/late", "--timeout=30s")


async def test_leaving_the_cluster_ends_every_process(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    async with running(tmp_path, nodes=2) as run:
        await run.kubectl("apply", "-f", "-", stdin=server(mark=mark))
        await available(run.kubectl)
        assert len(processes_with(mark)) >= 2
    assert processes_with(mark) == []


@pytest.mark.parametrize("signum", [signal.SIGTERM, signal.SIGKILL])
async def test_no_process_outlives_the_cluster(tmp_path: Path, signum: signal.Signals) -> None:
    mark = uuid.uuid4().hex
    async with dev_process(tmp_path) as dev:
        await dev.ready()
        kubectl = Kubectl(tmp_path)
        await kubectl("apply", "-f", "-", stdin=server(mark=mark))
        await available(kubectl)
        assert len(processes_with(mark)) >= 2
        family = dev.family()
        os.kill(dev.process.pid, signum)
        await dev.process.wait()

        async def gone() -> bool:
            return not processes_with(mark) and not still_there(family[1:])

        await eventually(gone, timeout=10)


async def test_pods_run_again_after_kill_9(tmp_path: Path) -> None:
    mark = uuid.uuid4().hex
    data = str(tmp_path / "data")
    async with dev_process(tmp_path, "--data-dir", data) as dev:
        await dev.ready()
        kubectl = Kubectl(tmp_path)
        await kubectl("apply", "-f", "-", stdin=server(mark=mark))
        await kubectl("apply", "-f", "-", stdin=service())
        await available(kubectl)
        await dev.kill()
    async with dev_process(tmp_path, "--data-dir", data) as dev:
        await dev.ready()
        kubectl = Kubectl(tmp_path)
        address = await kubectl("get", "svc", "web", "-o", "jsonpath={.spec.clusterIP}")
        assert len(await answers(address, 2)) == 2
