"""The commands on Kubernetes' own control plane: its words of refusal, its definition, its proxy."""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Coroutine, Iterator
from pathlib import Path
from typing import Any, TypeVar

import pytest
from click.testing import CliRunner, Result
from tests.cli.environment import PATIENCE, in_background
from tests.operator.rig import Rig
from tests.operator.servers import real_rig

from elasti.cli.main import main
from elasti.cli.running import is_not_installed
from kubeloop.client import Client, ClientConfig, NotFound
from kubeloop.objects.patches import MergePatch
from tests.controlplane.rig import ControlPlane

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(120)]
T = TypeVar("T")
POD_ADDRESS = "10.200.77.7"
METRICS = """
import http.server, sys
class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()
        self.wfile.write(sys.argv[2].encode())
    def log_message(self, *_):
        pass
server = http.server.HTTPServer((sys.argv[1], 8013), Handler)
print("listening", flush=True)
server.serve_forever()
"""


class Real:
    """A rig with an operator on the control plane, and commands for it."""

    def __init__(self, rig: Rig, controlplane: ControlPlane) -> None:
        self.rig = rig
        self.controlplane = controlplane
        self._loop = asyncio.get_running_loop()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        return asyncio.run_coroutine_threadsafe(coroutine, self._loop).result(PATIENCE)

    def run(self, *arguments: str, kubeconfig: Path | None = None) -> Result:
        path = kubeconfig or self.controlplane.kubeconfig
        runner = CliRunner(env={"KUBECONFIG": str(path)})
        return runner.invoke(main, [*arguments, "-n", self.rig.namespace])


@contextlib.asynccontextmanager
async def _real(controlplane: ControlPlane) -> AsyncIterator[Real]:
    async with (
        real_rig(controlplane) as rig,
        rig.operator(watch_namespaces=(rig.namespace,)),
    ):
        yield Real(rig, controlplane)


@pytest.fixture
def real(controlplane: ControlPlane) -> Iterator[Real]:
    with in_background(lambda: _real(controlplane)) as made:
        yield made


def test_a_target_sleeps_and_wakes_by_command(real: Real):
    real.call(real.rig.web(1, cooldownPeriod=900))
    real.call(real.rig.becomes("Serve"))
    result = real.run("sleep", "web", "--wait", "--timeout", "50")
    assert result.exit_code == 0, result.output
    assert real.call(real.rig.replicas()) == 0
    (row,) = json.loads(real.run("get", "-o", "json").stdout)
    assert (row["mode"], row["whyNotAsleep"]["reason"]) == ("proxy", "")
    text = real.run("describe", "web").stdout
    assert "State:          asleep" in text
    assert "resolver   1 of 1" in text
    result = real.run("wake", "web", "--wait", "--timeout", "50")
    assert result.exit_code == 0, result.output
    assert real.call(real.rig.replicas()) == 1


def test_its_definition_and_its_rights_are_understood(real: Real):
    found = json.loads(real.run("doctor", "-o", "json").stdout)
    by_topic = {item["topic"]: item for item in found["findings"]}
    assert by_topic["definition"]["level"] == "ok", by_topic["definition"]
    assert by_topic["your rights"]["level"] == "ok"


@pytest.mark.parametrize("call", [["get"], ["describe", "web"], ["wake", "web"], ["sleep", "web"]])
def test_its_refusals_are_turned_into_rules(real: Real, call: list[str]):
    nobody = real.controlplane.kubeconfig_for("nobody-at-all")
    result = real.run(*call, kubeconfig=nobody)
    assert result.exit_code == 4
    assert f"A Role in namespace {real.rig.namespace} with this rule allows it:" in result.stderr
    assert '  - apiGroups: ["elasti.truefoundry.com"]' in result.stderr


def test_held_comes_through_its_proxy_to_pods(real: Real):
    """What a laptop sees of resolvers that only the API server can reach."""
    controlplane, namespace = real.controlplane, real.rig.namespace
    real.call(real.rig.web(0))
    line = f'# TYPE elasti_resolver_queued_count gauge\nelasti_resolver_queued_count{{namespace="{namespace}",service="web"}} 12.0\n'
    server = controlplane.popen_inside(
        [sys.executable, "-c", METRICS, POD_ADDRESS, line], stdout=subprocess.PIPE
    )
    try:
        assert server.stdout is not None
        assert server.stdout.readline() == b"listening\n"
        place = controlplane.create_namespace("resolvers")
        real.call(_list_pod(real, place))
        result = real.run("get", "-o", "json", "--elasti-namespace", place)
        assert result.stderr == ""
        (row,) = json.loads(result.stdout)
        assert row["held"] == 12
    finally:
        server.kill()
        server.communicate()


async def _list_pod(real: Real, namespace: str) -> None:
    client = real.rig.client
    pods = client.resource("v1/pods", namespace=namespace)
    container = {"name": "c", "image": "none"}
    # Nobody binds or runs it: what answers under its address was started above.
    spec = {"containers": [container], "schedulerName": "nobody"}
    await pods.create({"metadata": {"name": "resolver-1"}, "spec": spec})
    status = {"podIP": POD_ADDRESS, "podIPs": [{"ip": POD_ADDRESS}], "phase": "Running"}
    await pods.subresource("status").patch("resolver-1", MergePatch({"status": status}))
    reference = {"kind": "Pod", "name": "resolver-1", "namespace": namespace}
    await client.resource("discovery.k8s.io/v1/endpointslices", namespace=namespace).create(
        {
            "metadata": {
                "name": "r",
                "labels": {"kubernetes.io/service-name": "elasti-resolver-service"},
            },
            "addressType": "IPv4",
            "ports": [{"name": "admin", "port": 8013}],
            "endpoints": [{"addresses": [POD_ADDRESS], "targetRef": reference}],
        }
    )


async def test_an_object_of_a_group_that_it_does_not_serve_is_not_taken_for_a_missing_one(
    controlplane: ControlPlane,
):
    """Where the definition lacks, it answers in plain text, which names nothing."""
    async with Client(ClientConfig.from_kubeconfig(controlplane.kubeconfig)) as client:
        unserved = client.resource("nothing.example.com/v1/things", namespace="default")
        with pytest.raises(NotFound) as found:
            await unserved.get("web")
        assert is_not_installed(found.value)
        with pytest.raises(NotFound) as found:
            await client.resource("v1/services", namespace="default").get("nobody-has-this")
        assert not is_not_installed(found.value)
