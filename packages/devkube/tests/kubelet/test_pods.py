"""What pods may ask of a kubelet, with real processes against the embedded server."""

from __future__ import annotations

import asyncio
import dataclasses
import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from tests.kubelet.support import (
    NETWORK,
    QUICK,
    Cluster,
    cluster_on,
    condition,
    container,
    is_ready,
    pod,
    shell,
    state_of,
    status_of,
    web,
)

from devkube.apiserver.calls import ApiResponse
from devkube.apiserver.faults import InjectedFault
from devkube.kubelet.pods import container as listening
from devkube.kubelet.supervisor.spec import Isolation
from kubeloop.objects.list_watch import ADDED, WatchOptions
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch, StrategicMergePatch
from tests.waiting import eventually

pytestmark = pytest.mark.slow


def terminated(seen: JsonObject) -> JsonObject:
    return state_of(seen).get("terminated") or {}


async def finished(cluster: Cluster, *containers: JsonObject, **spec) -> str:
    """Run a pod to its end; what `main` printed."""
    await cluster.create(pod(*containers, restartPolicy="Never", **spec))
    await cluster.until(lambda p: p["status"]["phase"] in ("Succeeded", "Failed"))
    return await cluster.logs()


# Environment and volumes.


async def test_containers_know_themselves(cluster: Cluster):
    env = [
        {"name": "NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}},
        {"name": "IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
        {"name": "TEXT", "value": "$(NAME)@$(POD_IP)"},
    ]
    script = 'echo "$TEXT $IP $HOSTNAME $KUBERNETES_SERVICE_HOST:$KUBERNETES_SERVICE_PORT"; hostname; pwd'
    printed = await finished(cluster, shell(script, env=env, workingDir="/tmp"))
    address = (await cluster.get())["status"]["podIP"]  # type: ignore[index]
    first, host, directory = printed.splitlines()
    assert first == f"web@{address} {address} web 127.0.0.1:{cluster.server.port}"
    assert (host, directory) == ("web", "/tmp")


async def test_a_missing_config_map_keeps_a_container_waiting_until_it_is_there(cluster: Cluster):
    env = [{"name": "A", "valueFrom": {"configMapKeyRef": {"name": "cm", "key": "a"}}}]
    await cluster.create(pod(shell("echo $A; sleep 60", env=env)))
    seen = await cluster.until(lambda p: state_of(p).get("waiting", {}).get("message"))
    assert state_of(seen)["waiting"] == {
        "reason": "CreateContainerConfigError",
        "message": 'configmap "cm" not found',
    }
    assert await cluster.event("Failed") == 'Error: configmap "cm" not found'
    began = time.monotonic()
    await cluster.create({"metadata": {"name": "cm"}, "data": {"a": "there"}}, "v1/configmaps")
    await cluster.until(is_ready)
    assert time.monotonic() - began < 5
    await cluster.printed("there")


async def test_volumes_are_mounted_and_config_maps_follow_their_object(cluster: Cluster):
    await cluster.create({"metadata": {"name": "cm"}, "data": {"k": "one"}}, "v1/configmaps")
    secret = {"metadata": {"name": "s"}, "stringData": {"p": "hidden"}}
    await cluster.create(secret, "v1/secrets")
    volumes = [
        {"name": "cm", "configMap": {"name": "cm"}},
        {"name": "s", "secret": {"secretName": "s", "defaultMode": 0o400}},
        {"name": "e", "emptyDir": {}},
        {
            "name": "d",
            "downwardAPI": {
                "items": [{"path": "labels", "fieldRef": {"fieldPath": "metadata.labels"}}]
            },
        },
    ]
    mounts = [{"name": n, "mountPath": f"/no-such-root/{n}"} for n in ("cm", "s", "e", "d")]
    writer = shell("echo shared > /no-such-root/e/f; sleep 60", name="writer", volumeMounts=mounts)
    script = (
        "cd /no-such-root; until [ -s e/f ]; do sleep 0.02; done;"
        " cat e/f s/p; echo; stat -L -c %a s/p; cat d/labels; echo; echo ready;"
        " until [ $(cat cm/k) = two ]; do sleep 0.02; done; echo followed; sleep 60"
    )
    main = shell(script, volumeMounts=mounts)
    await cluster.create(pod(writer, main, volumes=volumes, metadata={"labels": {"a": "b"}}))
    await cluster.until(is_ready)
    await cluster.printed("ready")
    assert (await cluster.logs()).splitlines()[:4] == ["shared", "hidden", "400", 'a="b"']
    config_maps = cluster.client.resource("v1/configmaps")
    await config_maps.patch("cm", MergePatch({"data": {"k": "two"}}), namespace="default")
    await cluster.printed("followed")


async def test_a_failed_mount_is_reported_and_retried(cluster: Cluster):
    volumes = [{"name": "v", "configMap": {"name": "late"}}]
    main = shell(
        "cat /no-such-root/k; echo; sleep 60",
        volumeMounts=[{"name": "v", "mountPath": "/no-such-root"}],
    )
    await cluster.create(pod(main, volumes=volumes))
    assert await cluster.event("FailedMount") == (
        'MountVolume.SetUp failed for volume "v" : configmap "late" not found'
    )
    seen = await cluster.until(lambda p: "waiting" in state_of(p))
    assert state_of(seen)["waiting"]["reason"] == "ContainerCreating"
    await cluster.create({"metadata": {"name": "late"}, "data": {"k": "v"}}, "v1/configmaps")
    await cluster.until(is_ready)
    await cluster.printed("v")


async def test_without_namespaces_variables_say_where_volumes_are(tmp_path: Path):
    settings = dataclasses.replace(QUICK, isolation=Isolation.NONE)
    async with cluster_on(tmp_path, settings) as cluster:
        await cluster.create({"metadata": {"name": "cm"}, "data": {"k": "one"}}, "v1/configmaps")
        volumes = [{"name": "my-cm", "configMap": {"name": "cm"}}]
        mounts = [{"name": "my-cm", "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}]
        script = 'cat "$DEVKUBE_VOLUME_MY_CM/k" "$KUBELOOP_SERVICEACCOUNT_DIR/k"'
        main = shell(script, volumeMounts=mounts)
        assert await finished(cluster, main, volumes=volumes) == "oneone"
        assert (tmp_path / "kubelet/pods").stat().st_mode & 0o777 == 0o700


async def test_without_namespaces_variables_below_a_mount_point_lead_to_the_volume(tmp_path: Path):
    settings = dataclasses.replace(QUICK, isolation=Isolation.NONE)
    async with cluster_on(tmp_path, settings) as cluster:
        await cluster.create({"metadata": {"name": "cm"}, "data": {"k": "one"}}, "v1/configmaps")
        volumes = [{"name": "cm", "configMap": {"name": "cm"}}]
        mounts = [{"name": "cm", "mountPath": "/no/such"}]
        variables = [
            {"name": "THERE", "value": "/no/such/k"},
            {"name": "ELSEWHERE", "value": "/no/such-place"},
        ]
        main = shell('cat "$THERE"; printf "$ELSEWHERE"', volumeMounts=mounts, env=variables)
        assert await finished(cluster, main, volumes=volumes) == "one/no/such-place"


# Restarts.


async def test_a_crashing_container_restarts_with_back_off(cluster: Cluster):
    await cluster.create(pod(shell("echo run; exit 3")))
    seen = await cluster.until(
        lambda p: state_of(p).get("waiting", {}).get("reason") == "CrashLoopBackOff"
    )
    assert seen["status"]["phase"] == "Running"
    last = status_of(seen)["lastState"]["terminated"]
    assert (last["exitCode"], last["reason"]) == (3, "Error")
    assert last["startedAt"] <= last["finishedAt"]
    await cluster.until(lambda p: status_of(p)["restartCount"] >= 3)
    assert "Back-off restarting failed container main in pod web_default(" in (
        await cluster.event("BackOff")
    )
    assert await cluster.logs(previous=True) == "run\n"


async def test_a_pod_that_may_not_restart_keeps_its_end_and_its_log(cluster: Cluster):
    assert await finished(cluster, shell("echo why; exit 2")) == "why\n"
    seen = await cluster.get()
    assert seen is not None
    assert seen["status"]["phase"] == "Failed"
    assert terminated(seen)["exitCode"] == 2
    assert condition(seen, "PodReadyToStartContainers") == "False"
    await cluster.delete()
    await cluster.gone()
    await eventually(lambda: cluster.kubelet.worker("default", "web") is None)
    assert not any((cluster.directory / "kubelet/pods").iterdir())


async def test_init_containers_run_in_order_before_the_others(cluster: Cluster):
    mark = cluster.directory / "order"
    first = shell(f"sleep 0.1; echo first >> {mark}", name="first")
    second = shell(f"echo second >> {mark}", name="second")
    await cluster.create(pod(shell(f"cat {mark}; sleep 60"), initContainers=[first, second]))
    seen = await cluster.until(is_ready)
    await cluster.printed("first\nsecond\n")
    assert [s["ready"] for s in seen["status"]["initContainerStatuses"]] == [True, True]
    assert state_of(seen, "first")["terminated"]["reason"] == "Completed"


async def test_a_container_without_a_command_has_a_config_error(cluster: Cluster):
    await cluster.create(pod({"name": "main", "image": "nginx:1"}))
    seen = await cluster.until(lambda p: state_of(p).get("waiting", {}).get("message"))
    assert state_of(seen)["waiting"]["reason"] == "CreateContainerConfigError"
    assert 'image "nginx:1" is not pulled here' in state_of(seen)["waiting"]["message"]


# Probes.


async def test_a_pod_is_ready_while_its_probe_succeeds(cluster: Cluster):
    sick = cluster.directory / "sick"
    sick.touch()
    probe = {"httpGet": {"path": "/", "port": "http"}, "periodSeconds": 1, "failureThreshold": 1}
    main = web(
        8080,
        str(sick),
        readinessProbe=probe,
        ports=[{"name": "http", "containerPort": 8080}],
    )
    await cluster.create(pod(main))
    seen = await cluster.until(lambda p: "running" in state_of(p))
    assert not is_ready(seen)

    async def failed() -> bool:
        return any("statuscode: 500" in message for message in await cluster.events("Unhealthy"))

    await eventually(failed)
    sick.unlink()
    await cluster.until(is_ready)
    sick.touch()
    seen = await cluster.until(lambda p: not is_ready(p))
    ready = next(c for c in seen["status"]["conditions"] if c["type"] == "Ready")
    assert ready["message"] == "containers with unready status: [main]"
    assert status_of(seen)["restartCount"] == 0


async def test_a_failed_liveness_probe_restarts_the_container(cluster: Cluster):
    sick = cluster.directory / "sick"
    probe = {
        "exec": {"command": ["sh", "-c", f"echo checked; test ! -e {sick}"]},
        "periodSeconds": 1,
        "failureThreshold": 1,
    }
    await cluster.create(pod(shell("exec sleep 60", livenessProbe=probe)))
    await cluster.until(is_ready)
    sick.touch()
    seen = await cluster.until(lambda p: status_of(p)["restartCount"] == 1)
    assert status_of(seen)["lastState"]["terminated"]["exitCode"] == 143
    assert await cluster.event("Unhealthy") == "Liveness probe failed: checked\n"
    assert "Container main failed liveness probe, will be restarted" in await cluster.events(
        "Killing"
    )


async def test_a_startup_probe_comes_first(cluster: Cluster):
    up = cluster.directory / "up"
    probe = {
        "exec": {"command": ["test", "-e", str(up)]},
        "periodSeconds": 1,
        "failureThreshold": 60,
    }
    await cluster.create(pod(shell("sleep 60", startupProbe=probe)))
    seen = await cluster.until(lambda p: "running" in state_of(p))
    assert (status_of(seen)["started"], is_ready(seen)) == (False, False)
    up.touch()
    seen = await cluster.until(is_ready)
    assert status_of(seen)["started"] is True


async def test_an_exec_probe_that_hangs_is_ended(cluster: Cluster):
    probe = {"exec": {"command": ["sleep", "77"]}, "periodSeconds": 1}
    await cluster.create(pod(shell("sleep 60", readinessProbe=probe)))
    message = await cluster.event("Unhealthy")
    assert message == 'Readiness probe failed: command "sleep 77" timed out after 1s'


async def test_a_readiness_gate_waits_for_its_condition(cluster: Cluster):
    await cluster.create(pod(shell("sleep 60"), readinessGates=[{"conditionType": "x.io/ok"}]))
    seen = await cluster.until(lambda p: condition(p, "ContainersReady") == "True")
    assert not is_ready(seen)
    patch = {"status": {"conditions": [{"type": "x.io/ok", "status": "True"}]}}
    status = cluster.client.resource("v1/pods").subresource("status")
    await status.patch("web", StrategicMergePatch(patch), namespace="default")
    seen = await cluster.until(is_ready)
    assert condition(seen, "x.io/ok") == "True"


# Stopping.


async def test_a_pod_that_ignores_sigterm_is_killed_when_its_grace_is_over(cluster: Cluster):
    await cluster.create(
        pod(shell("trap '' TERM; echo up; sleep 60"), terminationGracePeriodSeconds=2)
    )
    await cluster.until(is_ready)
    await cluster.printed("up")
    began = time.monotonic()
    await cluster.delete()
    await cluster.gone()
    assert 1.9 < time.monotonic() - began < 30


async def test_during_its_grace_a_pod_keeps_its_address_and_can_be_hurried(cluster: Cluster):
    main = web(8080, readinessProbe={"tcpSocket": {"port": 8080}, "periodSeconds": 1})
    hook = {"preStop": {"sleep": {"seconds": 60}}}
    await cluster.create(pod({**main, "lifecycle": hook}, terminationGracePeriodSeconds=60))
    before = await cluster.until(is_ready)
    await cluster.delete()
    await cluster.event("Killing")
    seen = await cluster.get()
    assert seen is not None
    assert seen["status"]["podIP"] == before["status"]["podIP"]
    assert is_ready(seen)
    _, writer = await asyncio.open_connection(seen["status"]["podIP"], 8080)
    writer.close()
    await writer.wait_closed()
    await cluster.delete(grace_period=1)
    await cluster.gone(timeout=8)


async def test_a_pre_stop_hook_runs_before_sigterm(cluster: Cluster):
    mark = cluster.directory / "hooks"
    hooks = {"preStop": {"exec": {"command": ["sh", "-c", f"echo pre >> {mark}"]}}}
    script = f"trap 'echo term >> {mark}; exit 0' TERM; echo up; while :; do sleep 0.02; done"
    await cluster.create(pod(shell(script, lifecycle=hooks)))
    await cluster.until(is_ready)
    await cluster.printed("up")
    await cluster.delete()
    await cluster.gone()
    assert mark.read_text() == "pre\nterm\n"


async def test_a_pod_whose_object_is_gone_is_stopped(cluster: Cluster):
    mark = cluster.directory / "mark"
    script = f"trap 'echo bye > {mark}; exit 0' TERM; echo up; while :; do sleep 0.02; done"
    await cluster.create(pod(shell(script)))
    await cluster.until(is_ready)
    await cluster.printed("up")
    await cluster.delete(grace_period=0)
    assert await cluster.get() is None
    await eventually(lambda: cluster.kubelet.worker("default", "web") is None)
    assert mark.exists()


# The machine.


async def test_a_container_that_binds_all_addresses_gets_an_event(cluster: Cluster):
    code = (
        "import socket, time; s = socket.create_server(('0.0.0.0', 0));"
        "print(s.getsockname()[1], flush=True); time.sleep(60)"
    )
    await cluster.create(pod(container("python", "-c", code)))
    message = await cluster.event("BindsAllAddresses")
    assert f"port {(await cluster.logs()).strip()} of all addresses" in message
    assert f"must bind $POD_IP ({NETWORK}.1)" in message


async def test_a_container_that_binds_its_own_address_gets_no_event(cluster: Cluster):
    code = (
        "import os, socket; s = socket.create_server((os.environ['POD_IP'], 0));"
        "print('up', flush=True); s.accept()"
    )
    await cluster.create(pod(container("python", "-c", code)))
    await cluster.until(is_ready)
    await cluster.printed("up")
    worker = cluster.kubelet.worker("default", "web")
    assert worker is not None
    assert listening.scan_listening(worker.pids[0]) is None


async def test_a_new_kubelet_starts_the_pods_of_the_old_one_again(cluster: Cluster):
    await cluster.create(pod(shell("exec sleep 60"), name="a"))
    await cluster.create(pod(shell("echo kept"), name="b", restartPolicy="Never"))
    await cluster.create(pod(shell("exec sleep 60"), name="c"))
    first = await cluster.until(is_ready, name="a")
    await cluster.until(is_ready, name="c")
    await cluster.until(lambda p: p["status"]["phase"] == "Succeeded", name="b")
    await cluster.stop_kubelet()
    await cluster.delete("c")
    left = cluster.directory / "kubelet" / "pods" / "of-a-pod-that-is-gone"
    left.mkdir()
    await cluster.start_kubelet()
    assert not left.exists()
    seen = await cluster.until(
        lambda p: status_of(p)["restartCount"] == 1 and is_ready(p), name="a"
    )
    last = status_of(seen)["lastState"]["terminated"]
    assert (last["reason"], last["exitCode"]) == ("ContainerStatusUnknown", 137)
    assert seen["status"]["podIP"] != first["status"]["podIP"]
    assert seen["status"]["podIPs"] == [{"ip": seen["status"]["podIP"]}]
    assert (await cluster.get("b"))["status"]["phase"] == "Succeeded"  # type: ignore[index]
    assert await cluster.logs("b") == "kept\n"
    await cluster.gone("c")


async def test_the_node_is_known_and_its_lease_is_renewed(tmp_path: Path):
    settings = dataclasses.replace(QUICK, lease_renewed_every=0.2, status_every=0.2)
    async with cluster_on(tmp_path, settings) as cluster:
        node = await cluster.client.resource("v1/nodes").get("node-1")
        assert {c["type"]: c["status"] for c in node["status"]["conditions"]}["Ready"] == "True"
        assert node["status"]["capacity"]["pods"] == "110"
        assert node["status"]["nodeInfo"]["kubeletVersion"] == "v1.36.3"
        assert {a["type"] for a in node["status"]["addresses"]} == {"InternalIP", "Hostname"}
        leases = cluster.client.resource(
            "coordination.k8s.io/v1/leases", namespace="kube-node-lease"
        )
        first = await leases.get("node-1")
        assert first["spec"]["holderIdentity"] == "node-1"
        assert first["metadata"]["ownerReferences"][0]["uid"] == node["metadata"]["uid"]

        async def renewed() -> bool:
            lease = await leases.get("node-1")
            return bool(lease["spec"]["renewTime"] > first["spec"]["renewTime"])

        await eventually(renewed)
        nodes = cluster.client.resource("v1/nodes")
        now = (await nodes.get("node-1"))["metadata"]["resourceVersion"]
        events = await nodes.watch(WatchOptions(resource_version=now))
        await nodes.delete("node-1")
        made: list[JsonObject] = []
        async with asyncio.timeout(30):
            while not made:
                made = [event.object for event in await events.read() if event.type == ADDED]
        await events.close()
        assert condition(made[0], "Ready") == "True"  # from its first moment on


async def test_tokens_are_renewed_in_good_time(cluster: Cluster):
    issued: list[JsonObject] = []

    def issue(call):
        request = json.loads(call.body)
        issued.append(request["spec"])
        stamp = cluster.server.core.stamps.now(ahead=3)
        status = {"token": f"token-{len(issued)}", "expirationTimestamp": stamp}
        return ApiResponse(body=json.dumps({**request, "status": status}).encode(), code=201)

    cluster.server.core.serve("token", issue)
    projection = {"path": "token", "audience": "shop", "expirationSeconds": 600}
    volumes = [{"name": "t", "projected": {"sources": [{"serviceAccountToken": projection}]}}]
    mounts = [{"name": "t", "mountPath": "/no-such-root/t"}]
    script = "cd /no-such-root/t; until [ $(cat token) = token-2 ]; do sleep 0.02; done; echo renewed; sleep 60"
    await cluster.create(pod(shell(script, volumeMounts=mounts), volumes=volumes))
    seen = await cluster.until(is_ready)
    await cluster.printed("renewed")
    assert issued[0] == {
        "audiences": ["shop"],
        "expirationSeconds": 600,
        "boundObjectRef": {
            "apiVersion": "v1",
            "kind": "Pod",
            "name": "web",
            "uid": seen["metadata"]["uid"],
        },
    }


async def test_the_status_is_written_when_the_server_is_back(cluster: Cluster):
    mark = cluster.directory / "go"
    script = f"until [ -e {mark} ]; do sleep 0.02; done; exit 4"
    await cluster.create(pod(shell(script), restartPolicy="Never"))
    await cluster.until(is_ready)
    faults = cluster.server.core.faults
    faults.add(InjectedFault(code=503, path="/api/v1/namespaces/default/pods/web/status"))
    faults.drop_watches()
    mark.touch()
    worker = cluster.kubelet.worker("default", "web")
    assert worker is not None
    await eventually(lambda: worker.status.phase == "Failed")
    seen = await cluster.get()
    assert seen is not None
    assert "running" in state_of(seen)
    faults.clear()
    seen = await cluster.until(terminated)
    assert terminated(seen)["exitCode"] == 4


async def test_a_pod_that_was_deleted_while_the_node_was_cut_off_goes_afterwards(cluster: Cluster):
    await cluster.create(pod(shell("exec sleep 60")))
    await cluster.until(is_ready)
    faults = cluster.server.core.faults
    faults.add(InjectedFault(code=503, path="/api/v1/pods"))
    faults.drop_watches()
    await cluster.delete()
    worker = cluster.kubelet.worker("default", "web")
    assert worker is not None
    assert not worker.pod.is_deleted
    seen = await cluster.get()
    assert seen is not None
    assert "running" in state_of(seen)
    faults.clear()
    await cluster.gone()


def test_only_listening_sockets_are_scanned():
    def table() -> Iterator[str]:
        yield "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid"
        yield "   0: 0100007F:1F90 00000000:0000 0A 00000000:00000000 00:00000000 0 0 0 11 1"
        yield "   1: 00000000:1F91 00000000:0000 0A 00000000:00000000 00:00000000 0 0 0 12 1"
        yield "   2: 0100007F:1F90 0100007F:C350 06 00000000:00000000 03:00001234 0 0 0 0 3"
        raise AssertionError("the rest of the table was read")

    assert list(listening.wildcards(table())) == [("12", 8081)]
