from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.kubelet.builders import PodSimulation, at, deleted, pod

from devkube.kubelet.pod_types import ContainerStateWaiting
from devkube.kubelet.pods.plan import (
    FinishPod,
    PrepareSandbox,
    ReportBackOff,
    RestartPolicy,
    StartContainer,
    StopContainer,
    span,
)
from devkube.kubelet.pods.state import (
    Blocked,
    Changed,
    ContainerStage,
    Probed,
    ProbeKind,
    RestartBackoff,
    StartFailed,
    StopReason,
)


def running(*containers, **fields) -> PodSimulation:
    simulation = PodSimulation(pod(*containers, **fields))
    simulation.prepared()
    for item in simulation.pod.spec.containers:
        simulation.started(item.name)
    return simulation


def test_a_pod_is_prepared_once_before_anything_starts():
    simulation = PodSimulation(pod("a", "b"))
    assert simulation.actions == (PrepareSandbox(),)
    assert simulation.plan() == ()
    assert simulation.prepared() == (StartContainer("a", 0), StartContainer("b", 0))
    assert simulation.plan() == ()


def test_init_containers_run_one_after_the_other():
    simulation = PodSimulation(pod("main", initContainers=[{"name": "one"}, {"name": "two"}]))
    assert simulation.prepared() == (StartContainer("one", 0),)
    assert simulation.started("one") == ()
    assert simulation.exited("one", 0) == (StartContainer("two", 0),)
    simulation.started("two")
    assert simulation.exited("two", 0) == (StartContainer("main", 0),)


def test_a_failed_init_container_runs_again_unless_the_policy_is_never():
    again = PodSimulation(pod("main", initContainers=[{"name": "one"}], restartPolicy="OnFailure"))
    again.prepared()
    again.started("one")
    assert again.exited("one", 1) == (StartContainer("one", 1),)
    never = PodSimulation(pod("main", initContainers=[{"name": "one"}], restartPolicy="Never"))
    never.prepared()
    never.started("one")
    assert never.exited("one", 1) == (FinishPod(remove=False),)
    assert never.state.ending is not None
    assert never.state.ending.why is StopReason.INIT_FAILED


def test_the_first_restart_is_at_once_and_later_ones_rest_longer_and_longer():
    simulation = running()
    assert simulation.exited(code=1, now=1) == (StartContainer("main", 1),)
    simulation.started()
    assert simulation.exited(code=1, now=2) == (ReportBackOff("main"),)
    assert simulation.last.wake_at == 12
    run = simulation.state.containers["main"]
    text = "back-off 10s restarting failed container=main pod=web_default(u1)"
    assert run.waiting == ContainerStateWaiting("CrashLoopBackOff", text)
    assert simulation.plan(11.9) == ()
    assert simulation.plan(12) == (StartContainer("main", 2),)
    simulation.started(now=12)
    simulation.exited(code=1, now=13)
    assert simulation.last.wake_at == 33


def test_back_off_is_counted_from_the_end_of_the_run():
    simulation = running()
    simulation.exited(code=1, now=0)
    simulation.started()
    assert simulation.exited(code=1, now=60) == (ReportBackOff("main"),)
    assert simulation.last.wake_at == 70


@given(st.integers(2, 12))
def test_a_rest_is_never_longer_than_five_minutes(crashes):
    policy, backoff, now = RestartPolicy(), RestartBackoff(), 0.0
    for _ in range(crashes):
        now = policy.rests_until(backoff, now)
        backoff = policy.restarted(backoff, ended=now, now=now)
    assert backoff.delay == min(10 * 2 ** (crashes - 1), 300)


def test_a_container_that_ran_for_ten_minutes_starts_over():
    policy = RestartPolicy()
    tired = RestartBackoff(160, since=0)
    assert policy.rests_until(tired, 600) == 760
    assert policy.rests_until(tired, 601) == 601
    assert policy.restarted(tired, ended=601, now=601) == RestartBackoff(10, 601)


def test_durations_are_written_as_go_writes_them():
    assert [span(s) for s in (10, 160, 300)] == ["10s", "2m40s", "5m0s"]


def test_policies_decide_about_restarts():
    for policy, code, again in (
        ("Always", 0, True),
        ("OnFailure", 0, False),
        ("OnFailure", 1, True),
        ("Never", 1, False),
    ):
        simulation = running(restartPolicy=policy)
        simulation.exited(code=code)
        assert (simulation.actions == (StartContainer("main", 1),)) is again, (policy, code)


def test_a_pod_is_over_when_all_its_containers_are():
    simulation = running("a", "b", restartPolicy="Never")
    assert simulation.exited("a", 0) == ()
    assert simulation.exited("b", 1) == (FinishPod(remove=False),)
    assert simulation.plan() == ()


def test_a_blocked_container_is_tried_again_when_its_time_has_come():
    simulation = PodSimulation(pod())
    simulation.prepared()
    waiting = ContainerStateWaiting("CreateContainerConfigError", "no")
    assert simulation.observe(Blocked("main", waiting, 10)) == ()
    assert simulation.last.wake_at == 10
    assert simulation.plan(10) == (StartContainer("main", 0),)


def test_a_blocked_container_is_tried_again_when_something_changed():
    simulation = PodSimulation(pod())
    simulation.prepared()
    simulation.observe(
        Blocked("main", ContainerStateWaiting("CreateContainerConfigError", "no"), 10)
    )
    assert simulation.observe(Changed(), now=1) == (StartContainer("main", 0),)


def test_a_program_that_did_not_start_counts_as_a_run():
    simulation = PodSimulation(pod())
    simulation.prepared()
    assert simulation.observe(StartFailed("main", "devkube://x", "no", at(0))) == (
        StartContainer("main", 1),
    )
    assert simulation.observe(StartFailed("main", "devkube://y", "no", at(0))) == (
        ReportBackOff("main"),
    )


def test_deletion_stops_everything_and_removes_the_pod_when_all_has_ended():
    simulation = running("a", "b")
    simulation.pod = deleted(simulation.pod, 30)
    assert simulation.plan(5) == (
        StopContainer("a", StopReason.DELETED, 35),
        StopContainer("b", StopReason.DELETED, 35),
    )
    assert simulation.plan(6) == ()
    assert simulation.exited("a", 0) == ()
    assert simulation.exited("b", 137) == (FinishPod(remove=True),)
    assert simulation.plan() == ()


def test_a_second_deletion_may_only_shorten_the_grace():
    simulation = running()
    simulation.pod = deleted(simulation.pod, 30)
    simulation.plan(0)
    simulation.pod = deleted(simulation.pod, 5)
    assert simulation.plan(10) == (StopContainer("main", StopReason.DELETED, 15),)
    simulation.pod = deleted(simulation.pod, 60)
    assert simulation.plan(11) == ()


def test_a_container_that_is_just_starting_is_stopped_when_it_runs():
    simulation = PodSimulation(pod())
    simulation.prepared()
    simulation.pod = deleted(simulation.pod, 30)
    assert simulation.plan() == ()
    assert simulation.started(now=1) == (StopContainer("main", StopReason.DELETED, 30),)


def test_a_pod_that_waits_for_its_volumes_can_be_deleted():
    simulation = PodSimulation(pod())
    simulation.pod = deleted(simulation.pod, 30)
    assert simulation.plan() == (FinishPod(remove=True),)


def test_a_deleted_pod_restarts_nothing():
    simulation = running()
    simulation.pod = deleted(simulation.pod, 30)
    simulation.plan()
    assert simulation.exited(code=1) == (FinishPod(remove=True),)


def test_a_failed_liveness_probe_stops_the_container_with_the_pods_grace():
    simulation = running({"name": "main", "livenessProbe": {"exec": {}}})
    failed = Probed("main", ProbeKind.LIVENESS, healthy=False)
    assert simulation.observe(failed, now=7) == (StopContainer("main", StopReason.LIVENESS, 37),)
    assert simulation.plan() == ()
    assert simulation.exited(code=137) == (StartContainer("main", 1),)
    assert simulation.state.containers["main"].unhealthy is None


def test_a_late_verdict_about_a_run_that_is_over_changes_nothing():
    simulation = running()
    simulation.exited(code=1)
    before = simulation.state
    simulation.observe(Probed("main", ProbeKind.READINESS, healthy=True))
    assert simulation.state == before
    assert simulation.state.containers["main"].stage is ContainerStage.STARTING


def test_a_pod_that_has_ended_is_removed_when_it_is_deleted_later():
    simulation = running(restartPolicy="Never")
    assert simulation.exited(code=0) == (FinishPod(remove=False),)
    simulation.pod = deleted(simulation.pod, 0)
    assert simulation.plan() == (FinishPod(remove=True),)
    assert simulation.plan() == ()


# Any life.


@st.composite
def stories(draw):
    init = [{"name": "i"}] if draw(st.booleans()) else []
    side = [{"name": "s", "restartPolicy": "Always"}] if draw(st.booleans()) else []
    policy = draw(st.sampled_from(["Always", "OnFailure", "Never"]))
    return pod("a", "b", initContainers=[*side, *init], restartPolicy=policy)


@given(stories(), st.data())
def test_whatever_happens_nothing_runs_twice_and_a_deleted_pod_comes_to_its_end(made, data):
    simulation, alive = PodSimulation(made), set()

    def check(actions):
        for action in actions:
            match action:
                case StartContainer(name=name):
                    assert name not in alive
                    assert simulation.state.ending is None
                    alive.add(name)
                case StopContainer(name=name):
                    assert name in alive
                case FinishPod():
                    assert not alive
                    assert simulation.state.ending is not None

    def step(name):
        stage = simulation.state.containers[name].stage
        if stage is ContainerStage.STARTING:
            kinds = ["started", "blocked", "failed"]
        else:
            kinds = ["exited", "liveness", "readiness"]
        match data.draw(st.sampled_from(kinds)):
            case "started":
                return simulation.started(name)
            case "blocked":
                alive.discard(name)
                return simulation.observe(
                    Blocked(name, ContainerStateWaiting("X"), simulation.now + 5)
                )
            case "failed":
                alive.discard(name)
                return simulation.observe(StartFailed(name, "id", "no", at(simulation.now)))
            case "exited":
                alive.discard(name)
                return simulation.exited(name, data.draw(st.sampled_from([0, 1])))
            case "liveness":
                return simulation.observe(Probed(name, ProbeKind.LIVENESS, healthy=False))
            case _:
                return simulation.observe(Probed(name, ProbeKind.READINESS, healthy=True))

    check(simulation.prepared())
    for _ in range(data.draw(st.integers(0, 12))):
        if alive:
            check(step(data.draw(st.sampled_from(sorted(alive)))))
        check(simulation.plan(simulation.now + data.draw(st.sampled_from([0, 1, 400]))))
    simulation.pod = deleted(simulation.pod, 30)
    check(simulation.plan())
    for _ in range(20):
        if simulation.state.removed:
            break
        name = min(alive)
        starting = simulation.state.containers[name].stage is ContainerStage.STARTING
        if starting:
            check(simulation.started(name))
        else:
            alive.discard(name)
            check(simulation.exited(name, 0))
    assert simulation.state.removed
    assert not alive
