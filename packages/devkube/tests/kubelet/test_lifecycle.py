"""Pods from creation to removal, as real processes against the embedded server."""

from __future__ import annotations

import asyncio

import pytest
from tests.kubelet.support import (
    NETWORK,
    Cluster,
    condition,
    container,
    exists,
    is_ready,
    pod,
    shell,
    state_of,
    status_of,
    web,
)

from devkube.kubelet.supervisor.linux import descendants

pytestmark = pytest.mark.slow


async def test_a_pod_runs_with_an_address_of_its_own_and_becomes_ready(cluster: Cluster) -> None:
    await cluster.create(pod(web(8080), name="a"))
    await cluster.create(pod(web(8080), name="b"))
    first = await cluster.until(is_ready, name="a")
    second = await cluster.until(is_ready, name="b")
    assert first["status"]["phase"] == "Running"
    addresses = {first["status"]["podIP"], second["status"]["podIP"]}
    assert len(addresses) == 2
    assert all(address.startswith(NETWORK) for address in addresses)
    assert first["status"]["podIPs"] == [{"ip": first["status"]["podIP"]}]
    assert first["status"]["hostIP"] == "127.0.0.1"
    assert first["status"]["startTime"]
    for kind in ("PodScheduled", "Initialized", "ContainersReady", "PodReadyToStartContainers"):
        assert condition(first, kind) == "True"
    status = status_of(first)
    assert status["started"] is True
    assert status["restartCount"] == 0
    assert status["containerID"].startswith("devkube://")
    assert state_of(first)["running"]["startedAt"]


async def test_pods_answer_on_the_same_port_at_the_same_time(cluster: Cluster) -> None:
    for name in ("a", "b"):
        probe = {"tcpSocket": {"port": 8081}, "periodSeconds": 1}
        await cluster.create(pod(web(8081, readinessProbe=probe), name=name))
    for name in ("a", "b"):
        running = await cluster.until(is_ready, name=name)
        _, writer = await asyncio.open_connection(running["status"]["podIP"], 8081)
        writer.close()
        await writer.wait_closed()


async def test_a_deleted_pod_gets_sigterm_and_goes_when_it_has_ended(cluster: Cluster) -> None:
    mark = cluster.directory / "mark"
    script = f"trap 'echo bye > {mark}; exit 0' TERM; echo up; while :; do sleep 0.05; done"
    await cluster.create(pod(shell(script)))
    await cluster.until(is_ready)
    await cluster.printed("up")
    await cluster.delete()
    await cluster.gone()
    assert mark.read_text() == "bye\n"
    assert await cluster.event("Killing") == "Stopping container main"


async def test_output_is_kept_with_times(cluster: Cluster) -> None:
    await cluster.create(pod(shell("echo one; echo two >&2; printf three"), restartPolicy="Never"))
    await cluster.until(lambda p: p["status"]["phase"] == "Succeeded")
    assert await cluster.logs() == "one\ntwo\nthree"
    assert await cluster.logs(tail=1) == "three"
    stamped = await cluster.logs(timestamps=True)
    assert all(line[:2] == "20" and "Z " in line for line in stamped.splitlines())


async def test_no_process_is_left_when_the_kubelet_stops(cluster: Cluster) -> None:
    await cluster.create(pod(shell("(setsid sleep 300 &); echo up; sleep 301")))
    await cluster.until(is_ready)
    await cluster.printed("up")
    worker = cluster.kubelet.worker("default", "web")
    assert worker is not None
    (pid,) = worker.pids
    tree = [pid, *descendants(pid)]
    assert len(tree) >= 4
    await cluster.stop_kubelet()
    assert not any(map(exists, tree))


async def test_a_missing_program_is_reported_as_kubernetes_does(cluster: Cluster) -> None:
    await cluster.create(pod(container("no-such-program")))
    seen = await cluster.until(lambda p: status_of(p)["restartCount"] >= 1)
    message = await cluster.event("Failed")
    assert 'exec: "no-such-program": executable file not found in $PATH' in message
    last = status_of(seen)["lastState"]["terminated"]
    assert (last["reason"], last["exitCode"]) == ("StartError", 128)
