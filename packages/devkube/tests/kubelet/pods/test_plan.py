from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from tests.kubelet.builders import Story, at, deleted, pod

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
    HookFailed,
    Probed,
    ProbeKind,
    RestartBackoff,
    StartFailed,
    StopReason,
)


def running(*containers, **fields) -> Story:
    story = Story(pod(*containers, **fields))
    story.prepared()
    for item in story.pod.spec.containers:
        story.started(item.name)
    return story


def test_a_pod_is_prepared_once_before_anything_starts():
    story = Story(pod("a", "b"))
    assert story.actions == (PrepareSandbox(),)
    assert story.look() == ()
    assert story.prepared() == (StartContainer("a", 0), StartContainer("b", 0))
    assert story.look() == ()


def test_init_containers_run_one_after_the_other():
    story = Story(pod("main", initContainers=[{"name": "one"}, {"name": "two"}]))
    assert story.prepared() == (StartContainer("one", 0),)
    assert story.started("one") == ()
    assert story.exited("one", 0) == (StartContainer("two", 0),)
    story.started("two")
    assert story.exited("two", 0) == (StartContainer("main", 0),)


def test_a_failed_init_container_runs_again_unless_the_policy_is_never():
    again = Story(pod("main", initContainers=[{"name": "one"}], restartPolicy="OnFailure"))
    again.prepared()
    again.started("one")
    assert again.exited("one", 1) == (StartContainer("one", 1),)
    never = Story(pod("main", initContainers=[{"name": "one"}], restartPolicy="Never"))
    never.prepared()
    never.started("one")
    assert never.exited("one", 1) == (FinishPod(remove=False),)
    assert never.state.ending is not None
    assert never.state.ending.why is StopReason.INIT_FAILED


def test_a_sidecar_must_have_started_before_the_next_and_goes_last():
    sidecar = {"name": "side", "restartPolicy": "Always", "startupProbe": {"exec": {}}}
    story = Story(pod("main", initContainers=[sidecar], restartPolicy="Never"))
    assert story.prepared() == (StartContainer("side", 0),)
    assert story.started("side", started=False, ready=False) == ()
    probed = Probed("side", ProbeKind.STARTUP, healthy=True, ready_at_once=True)
    assert story.tell(probed) == (StartContainer("main", 0),)
    story.started("main")
    (stop,) = story.exited("main", 0, now=5)
    assert stop == StopContainer("side", StopReason.COMPLETED, 35)
    assert story.exited("side", 143) == (FinishPod(remove=False),)


def test_sidecars_stop_in_reverse_order_and_restart_when_they_end():
    sides = [{"name": "s1", "restartPolicy": "Always"}, {"name": "s2", "restartPolicy": "Always"}]
    story = Story(pod("main", initContainers=sides))
    story.prepared()
    assert story.started("s1") == (StartContainer("s2", 0),)
    assert story.started("s2") == (StartContainer("main", 0),)
    story.started("main")
    assert story.exited("s1", 1) == (StartContainer("s1", 1),)
    story.started("s1")
    story.pod = deleted(story.pod, 30)
    assert [a.name for a in story.look()] == ["main"]
    assert [a.name for a in story.exited("main", 0)] == ["s2"]
    assert [a.name for a in story.exited("s2", 0)] == ["s1"]
    assert story.exited("s1", 0) == (FinishPod(remove=True),)


def test_the_first_restart_is_at_once_and_later_ones_rest_longer_and_longer():
    story = running()
    assert story.exited(code=1, now=1) == (StartContainer("main", 1),)
    story.started()
    assert story.exited(code=1, now=2) == (ReportBackOff("main"),)
    assert story.last.wake_at == 12
    run = story.state.containers["main"]
    text = "back-off 10s restarting failed container=main pod=web_default(u1)"
    assert run.waiting == ContainerStateWaiting("CrashLoopBackOff", text)
    assert story.look(11.9) == ()
    assert story.look(12) == (StartContainer("main", 2),)
    story.started(now=12)
    story.exited(code=1, now=13)
    assert story.last.wake_at == 33


def test_rests_are_counted_from_the_end_of_the_run():
    story = running()
    story.exited(code=1, now=0)
    story.started()
    assert story.exited(code=1, now=60) == (ReportBackOff("main"),)
    assert story.last.wake_at == 70


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
        story = running(restartPolicy=policy)
        story.exited(code=code)
        assert (story.actions == (StartContainer("main", 1),)) is again, (policy, code)


def test_a_pod_is_over_when_all_its_containers_are():
    story = running("a", "b", restartPolicy="Never")
    assert story.exited("a", 0) == ()
    assert story.exited("b", 1) == (FinishPod(remove=False),)
    assert story.look() == ()


def test_a_blocked_container_is_tried_again_when_its_time_has_come():
    story = Story(pod())
    story.prepared()
    waiting = ContainerStateWaiting("CreateContainerConfigError", "no")
    assert story.tell(Blocked("main", waiting, 10)) == ()
    assert story.last.wake_at == 10
    assert story.look(10) == (StartContainer("main", 0),)


def test_a_blocked_container_is_tried_again_when_something_changed():
    story = Story(pod())
    story.prepared()
    story.tell(Blocked("main", ContainerStateWaiting("CreateContainerConfigError", "no"), 10))
    assert story.tell(Changed(), now=1) == (StartContainer("main", 0),)


def test_a_program_that_did_not_start_counts_as_a_run():
    story = Story(pod())
    story.prepared()
    assert story.tell(StartFailed("main", "elasti://x", "no", at(0))) == (
        StartContainer("main", 1),
    )
    assert story.tell(StartFailed("main", "elasti://y", "no", at(0))) == (ReportBackOff("main"),)


def test_deletion_stops_everything_and_removes_the_pod_when_all_has_ended():
    story = running("a", "b")
    story.pod = deleted(story.pod, 30)
    assert story.look(5) == (
        StopContainer("a", StopReason.DELETED, 35),
        StopContainer("b", StopReason.DELETED, 35),
    )
    assert story.look(6) == ()
    assert story.exited("a", 0) == ()
    assert story.exited("b", 137) == (FinishPod(remove=True),)
    assert story.look() == ()


def test_a_second_deletion_may_only_shorten_the_grace():
    story = running()
    story.pod = deleted(story.pod, 30)
    story.look(0)
    story.pod = deleted(story.pod, 5)
    assert story.look(10) == (StopContainer("main", StopReason.DELETED, 15),)
    story.pod = deleted(story.pod, 60)
    assert story.look(11) == ()


def test_a_container_that_is_just_starting_is_stopped_when_it_runs():
    story = Story(pod())
    story.prepared()
    story.pod = deleted(story.pod, 30)
    assert story.look() == ()
    assert story.started(now=1) == (StopContainer("main", StopReason.DELETED, 30),)


def test_a_pod_that_waits_for_its_volumes_can_be_deleted():
    story = Story(pod())
    story.pod = deleted(story.pod, 30)
    assert story.look() == (FinishPod(remove=True),)


def test_a_deleted_pod_restarts_nothing():
    story = running()
    story.pod = deleted(story.pod, 30)
    story.look()
    assert story.exited(code=1) == (FinishPod(remove=True),)


def test_a_failed_liveness_probe_stops_the_container_with_the_probes_grace():
    probe = {"exec": {}, "terminationGracePeriodSeconds": 3}
    story = running({"name": "main", "livenessProbe": probe})
    failed = Probed("main", ProbeKind.LIVENESS, healthy=False)
    assert story.tell(failed, now=7) == (StopContainer("main", StopReason.LIVENESS, 10),)
    assert story.look() == ()
    assert story.exited(code=137) == (StartContainer("main", 1),)
    assert story.state.containers["main"].unhealthy is None


def test_a_failed_hook_stops_the_container():
    story = running()
    assert story.tell(HookFailed("main")) == (StopContainer("main", StopReason.POST_START, 30),)


def test_a_late_verdict_about_a_run_that_is_over_changes_nothing():
    story = running()
    story.exited(code=1)
    before = story.state
    story.tell(Probed("main", ProbeKind.READINESS, healthy=True))
    assert story.state == before
    assert story.state.containers["main"].stage is ContainerStage.STARTING


def test_an_active_deadline_ends_the_pod():
    story = running(activeDeadlineSeconds=20, restartPolicy="Never")
    assert story.last.wake_at == 20
    assert story.look(20) == (StopContainer("main", StopReason.DEADLINE, 50),)
    assert story.exited(code=143) == (FinishPod(remove=False),)


def test_a_deadline_counts_from_the_pods_start_also_under_a_later_kubelet():
    story = Story(pod(activeDeadlineSeconds=20, status={"startTime": "2029-12-31T23:59:45Z"}))
    assert story.last.wake_at == 5


def test_a_pod_that_has_ended_is_removed_when_it_is_deleted_later():
    story = running(restartPolicy="Never")
    assert story.exited(code=0) == (FinishPod(remove=False),)
    story.pod = deleted(story.pod, 0)
    assert story.look() == (FinishPod(remove=True),)
    assert story.look() == ()


# Any life.


@st.composite
def stories(draw):
    init = [{"name": "i"}] if draw(st.booleans()) else []
    side = [{"name": "s", "restartPolicy": "Always"}] if draw(st.booleans()) else []
    policy = draw(st.sampled_from(["Always", "OnFailure", "Never"]))
    return pod("a", "b", initContainers=[*side, *init], restartPolicy=policy)


@given(stories(), st.data())
def test_whatever_happens_nothing_runs_twice_and_a_deleted_pod_comes_to_its_end(made, data):
    story, alive = Story(made), set()

    def check(actions):
        for action in actions:
            match action:
                case StartContainer(name=name):
                    assert name not in alive
                    assert story.state.ending is None
                    alive.add(name)
                case StopContainer(name=name):
                    assert name in alive
                case FinishPod():
                    assert not alive
                    assert story.state.ending is not None

    def step(name):
        stage = story.state.containers[name].stage
        if stage is ContainerStage.STARTING:
            kinds = ["started", "blocked", "failed"]
        else:
            kinds = ["exited", "liveness", "readiness"]
        match data.draw(st.sampled_from(kinds)):
            case "started":
                return story.started(name)
            case "blocked":
                alive.discard(name)
                return story.tell(Blocked(name, ContainerStateWaiting("X"), story.now + 5))
            case "failed":
                alive.discard(name)
                return story.tell(StartFailed(name, "id", "no", at(story.now)))
            case "exited":
                alive.discard(name)
                return story.exited(name, data.draw(st.sampled_from([0, 1])))
            case "liveness":
                return story.tell(Probed(name, ProbeKind.LIVENESS, healthy=False))
            case _:
                return story.tell(Probed(name, ProbeKind.READINESS, healthy=True))

    check(story.prepared())
    for _ in range(data.draw(st.integers(0, 12))):
        if alive:
            check(step(data.draw(st.sampled_from(sorted(alive)))))
        check(story.look(story.now + data.draw(st.sampled_from([0, 1, 400]))))
    story.pod = deleted(story.pod, 30)
    check(story.look())
    for _ in range(20):
        if story.state.removed:
            break
        name = min(alive)
        starting = story.state.containers[name].stage is ContainerStage.STARTING
        if starting:
            check(story.started(name))
        else:
            alive.discard(name)
            check(story.exited(name, 0))
    assert story.state.removed
    assert not alive
