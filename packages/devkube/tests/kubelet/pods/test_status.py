from __future__ import annotations

import msgspec
from tests.kubelet.builders import PodSimulation, at, deleted, pod

from devkube.kubelet.pod_types import ContainerStateWaiting, KubeletPodStatus
from devkube.kubelet.pods.reporting import status_difference
from devkube.kubelet.pods.state import Blocked, Probed, ProbeKind, StartFailed
from devkube.kubelet.pods.status import compute_status, restore_state
from kubeloop.objects.core import PodIP


def status_of(
    simulation: PodSimulation, before: KubeletPodStatus | None = None
) -> KubeletPodStatus:
    known = simulation.pod.status if before is None else before
    return compute_status(
        simulation.pod, simulation.state, before=known, host="10.0.0.1", now=at(simulation.now).wall
    )


def conditions(status: KubeletPodStatus) -> dict[str, str]:
    return {c.type: c.status for c in status.conditions}


def test_a_new_pod_is_pending_and_its_containers_are_being_created():
    status = status_of(PodSimulation(pod()))
    assert status.phase == "Pending"
    assert status.start_time == "2030-01-01T00:00:00Z"
    assert status.host_ips == (PodIP("10.0.0.1"),)
    assert status.container_statuses[0].state.waiting == ContainerStateWaiting("ContainerCreating")
    assert conditions(status) == {
        "PodReadyToStartContainers": "False",
        "Initialized": "True",
        "Ready": "False",
        "ContainersReady": "False",
        "PodScheduled": "True",
    }


def test_a_running_pod_has_addresses_and_a_start_time():
    simulation = PodSimulation(pod())
    simulation.prepared()
    simulation.started(now=3)
    status = status_of(simulation)
    assert (status.phase, status.pod_ip, status.pod_ips) == (
        "Running",
        "127.20.0.1",
        (PodIP("127.20.0.1"),),
    )
    container = status.container_statuses[0]
    assert container.state.running is not None
    assert container.state.running.started_at == "2030-01-01T00:00:03Z"
    assert (container.ready, container.started, container.restart_count) == (True, True, 0)
    assert set(conditions(status).values()) == {"True"}


def test_conditions_keep_their_time_until_they_change():
    simulation = PodSimulation(pod())
    simulation.prepared()
    simulation.started(now=3, ready=False)
    first = status_of(simulation)
    simulation.observe(Probed("main", ProbeKind.READINESS, healthy=True), now=9)
    second = status_of(simulation, before=first)
    times = {c.type: c.last_transition_time for c in second.conditions}
    assert times["PodScheduled"] == "2030-01-01T00:00:03Z"
    assert times["Ready"] == "2030-01-01T00:00:09Z"


def test_the_ready_condition_names_the_containers_that_are_not():
    simulation = PodSimulation(pod("a", "b"))
    simulation.prepared()
    simulation.started("a")
    simulation.started("b", ready=False)
    ready = status_of(simulation).condition("Ready")
    assert ready is not None
    assert (ready.reason, ready.message) == (
        "ContainersNotReady",
        "containers with unready status: [b]",
    )


def test_readiness_gates_need_conditions_of_others():
    gate = [{"conditionType": "example.com/ok"}]
    simulation = PodSimulation(pod(readinessGates=gate))
    simulation.prepared()
    simulation.started()
    ready = status_of(simulation).condition("Ready")
    assert ready is not None
    assert ready.reason == "ReadinessGatesNotReady"
    assert ready.message.endswith("are not True: example.com/ok")
    theirs = [{"type": "example.com/ok", "status": "True"}]
    simulation.pod = msgspec.structs.replace(
        simulation.pod, status=msgspec.convert({"conditions": theirs}, KubeletPodStatus)
    )
    status = status_of(simulation)
    assert conditions(status)["Ready"] == "True"
    assert "example.com/ok" not in conditions(status)


def test_init_containers_hold_the_phase_and_the_condition():
    simulation = PodSimulation(pod("main", initContainers=[{"name": "one"}]))
    simulation.prepared()
    simulation.started("one")
    status = status_of(simulation)
    assert status.phase == "Pending"
    found = status.condition("Initialized")
    assert found is not None
    assert found.message == "containers with incomplete status: [one]"
    assert status.container_statuses[0].state.waiting == ContainerStateWaiting("PodInitializing")
    simulation.exited("one", 0)
    status = status_of(simulation)
    assert conditions(status)["Initialized"] == "True"
    assert status.init_container_statuses[0].ready


def test_a_crash_loop_shows_why_it_waits_and_how_it_ended():
    simulation = PodSimulation(pod())
    simulation.prepared()
    for second in (1, 2):
        simulation.started()
        simulation.exited(code=3, now=second)
    container = status_of(simulation).container_statuses[0]
    assert container.state.waiting is not None
    assert container.state.waiting.reason == "CrashLoopBackOff"
    assert container.last_state.terminated is not None
    assert (container.last_state.terminated.exit_code, container.last_state.terminated.reason) == (
        3,
        "Error",
    )
    assert container.restart_count == 1
    assert status_of(simulation).phase == "Running"


def test_a_program_that_did_not_start_is_shown_as_kubernetes_does():
    simulation = PodSimulation(pod(restartPolicy="Never"))
    simulation.prepared()
    simulation.observe(StartFailed("main", "devkube://x", "exec: nope", at(1)))
    status = status_of(simulation)
    ended = status.container_statuses[0].state.terminated
    assert ended is not None
    assert (ended.exit_code, ended.reason, ended.message) == (128, "StartError", "exec: nope")
    assert ended.started_at == "1970-01-01T00:00:00Z"
    assert status.phase == "Failed"


def test_a_container_with_a_config_error_waits_with_the_reason():
    simulation = PodSimulation(pod())
    simulation.prepared()
    simulation.observe(
        Blocked("main", ContainerStateWaiting("CreateContainerConfigError", "no"), 10)
    )
    status = status_of(simulation)
    assert status.container_statuses[0].state.waiting == ContainerStateWaiting(
        "CreateContainerConfigError", "no"
    )
    assert status.phase == "Pending"


def test_phases_of_pods_that_end():
    for policy, codes, phase in (
        ("Never", (0, 0), "Succeeded"),
        ("Never", (0, 1), "Failed"),
        ("OnFailure", (0, 0), "Succeeded"),
    ):
        simulation = PodSimulation(pod("a", "b", restartPolicy=policy))
        simulation.prepared()
        for name, code in zip("ab", codes, strict=True):
            simulation.started(name)
            simulation.exited(name, code)
        status = status_of(simulation)
        assert status.phase == phase
        assert conditions(status)["Ready"] == "False"
        reason = {"Succeeded": "PodCompleted", "Failed": "PodFailed"}[phase]
        assert status.condition("ContainersReady").reason == reason  # type: ignore[union-attr]
        assert conditions(status)["PodReadyToStartContainers"] == "False"


def test_a_pod_that_is_going_keeps_its_address_and_readiness():
    simulation = PodSimulation(pod())
    simulation.prepared()
    simulation.started()
    simulation.pod = deleted(simulation.pod, 30)
    simulation.plan()
    status = status_of(simulation)
    assert (status.phase, status.pod_ip) == ("Running", "127.20.0.1")
    assert conditions(status)["Ready"] == "True"
    simulation.exited(code=0)
    assert status_of(simulation).phase == "Succeeded"


# What an earlier kubelet left.

RUNNING = {
    "phase": "Running",
    "podIP": "127.20.0.9",
    "containerStatuses": [
        {
            "name": "main",
            "restartCount": 2,
            "containerID": "devkube://old",
            "state": {"running": {"startedAt": "2029-12-31T00:00:00Z"}},
        }
    ],
}


def test_what_ran_under_an_earlier_kubelet_is_lost_and_starts_again():
    simulation = PodSimulation(pod(status=RUNNING))
    assert simulation.prepared() != ()
    container = status_of(simulation).container_statuses[0]
    assert container.restart_count == 3
    last = container.last_state.terminated
    assert last is not None
    assert (last.reason, last.exit_code, last.container_id) == (
        "ContainerStatusUnknown",
        137,
        "devkube://old",
    )


def test_a_lost_container_that_never_restarts_has_failed():
    simulation = PodSimulation(pod(status=RUNNING, restartPolicy="Never"))
    simulation.prepared()
    assert status_of(simulation).phase == "Failed"


def test_a_pod_that_had_ended_stays_unchanged():
    ended = {
        "phase": "Succeeded",
        "containerStatuses": [{"name": "main", "state": {"terminated": {"exitCode": 0}}}],
    }
    simulation = PodSimulation(pod(status=ended))
    assert simulation.actions == ()
    assert status_of(simulation).phase == "Succeeded"
    gone = deleted(simulation.pod, 0)
    assert not restore_state(gone, at(0)).finished


def test_init_containers_run_again_under_a_new_kubelet():
    status = {
        **RUNNING,
        "initContainerStatuses": [{"name": "one", "state": {"terminated": {"exitCode": 0}}}],
    }
    simulation = PodSimulation(pod("main", initContainers=[{"name": "one"}], status=status))
    actions = simulation.prepared()
    assert [a.name for a in actions] == ["one"]


# Patches.


def test_a_patch_has_what_changed_and_nulls_what_is_gone():
    old = KubeletPodStatus(phase="Pending", message="x", host_ip="1")
    new = KubeletPodStatus(phase="Running", host_ip="1", pod_ips=(PodIP("2"),))
    assert status_difference(old, new) == {
        "phase": "Running",
        "message": None,
        "podIPs": ({"ip": "2"},),
    }


def test_addresses_are_replaced_not_added_to():
    old, new = KubeletPodStatus(pod_ips=(PodIP("1"),)), KubeletPodStatus(pod_ips=(PodIP("2"),))
    assert status_difference(old, new) == {"podIPs": [{"$patch": "replace"}, {"ip": "2"}]}
