"""`elasti wake` and `elasti sleep`: what they ask for, and how they wait."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from typing import Any

import msgspec
import pytest
from tests.cli.environment import CommandEnvironment

from elasti.api.names import KEEP_AWAKE_ANNOTATION, SLEEP_ANNOTATION, WAKE_ANNOTATION
from elasti.api.states import SleepOutcome
from elasti.api.types import (
    DozeStatus,
    ElastiService,
    ElastiServiceSpec,
    ScaleTargetRef,
    SleepRequestStatus,
    SleepSpec,
    StatusCondition,
    TriggerStatus,
)
from elasti.api.types import ElastiServiceStatus as Status
from elasti.api.wire import ActivityReport
from elasti.cli.options import Timeout
from elasti.cli.wake import RequestKind, RequestProgress, _RequestWait, _warn_of_cuts, progress_of
from kubeloop.objects.meta import JsonObject, ObjectMeta
from kubeloop.objects.patches import MergePatch

# The judgement


@pytest.mark.parametrize(
    ("state", "quiet_since", "is_told"),
    [("Serve", None, True), ("Serve", "2026-01-01T00:00:00Z", False), ("Proxy", None, False)],
)
def test_sleep_says_what_it_will_cut(
    state: str, quiet_since: str | None, is_told: bool, capsys: pytest.CaptureFixture[str]
):
    es = elastiservice(state)
    triggers = (TriggerStatus("prometheus", quiet_since=quiet_since),)
    _warn_of_cuts(msgspec.structs.replace(es, status=Status(state=state, triggers=triggers)))
    assert ("triggers[0] (prometheus)" in capsys.readouterr().err) is is_told


def test_a_target_that_will_doze_keeps_its_connections(capsys: pytest.CaptureFixture[str]):
    es = elastiservice("Serve")
    es = msgspec.structs.replace(
        es,
        spec=msgspec.structs.replace(es.spec, sleep=SleepSpec("Doze")),
        status=Status(state="Serve", triggers=(TriggerStatus("prometheus"),)),
    )
    _warn_of_cuts(es)
    assert capsys.readouterr().err == ""


BEFORE, AFTER = "2030-01-01T00:00:00Z", "2030-01-01T00:00:07Z"
ASKED = "2030-01-01T00:00:00.000002Z"
EARLIER, LATER = "2030-01-01T00:00:00.000001Z", "2030-01-01T00:00:00.000003Z"


def elastiservice(
    state: str,
    *asked: str,
    why: str = "",
    ready: str = "True",
    noted: SleepRequestStatus | None = None,
    doze: str = "",
    asleep_since: str | None = None,
) -> ElastiService:
    meta = ObjectMeta(name="web", annotations=dict.fromkeys(asked, ASKED))
    conditions = (
        StatusCondition("Ready", ready, "Valid"),  # type: ignore[arg-type]  # one of the three words
        StatusCondition("MaySleep", "False", "AttemptEnded", why),
    )
    ref = ScaleTargetRef("apps/v1", "Deployment", "web")
    return ElastiService(
        ElastiServiceSpec(ref, "web"),
        meta,
        Status(
            state=state,
            conditions=conditions,
            asleep_since=asleep_since,
            sleep_request=noted,
            doze=DozeStatus(doze, ASKED) if doze else None,
        ),
    )


def asleep(request: str) -> SleepRequestStatus:
    return SleepRequestStatus(request, SleepOutcome.ASLEEP)


def refused(request: str) -> SleepRequestStatus:
    return SleepRequestStatus(request, SleepOutcome.REFUSED, "TrafficArrived", "a reason")


@pytest.mark.parametrize(
    ("wish", "es", "over", "refused"),
    [
        (RequestKind.WAKE, elastiservice("Proxy", WAKE_ANNOTATION), False, ""),
        (RequestKind.WAKE, elastiservice("Waking", WAKE_ANNOTATION), False, ""),
        (RequestKind.WAKE, elastiservice("Serve", WAKE_ANNOTATION), False, ""),
        (RequestKind.WAKE, elastiservice("Waking"), False, ""),
        (RequestKind.WAKE, elastiservice("Releasing"), True, ""),
        (RequestKind.WAKE, elastiservice("Serve"), True, ""),
        # The operator has taken the request; status is of before it, or of a park after it.
        (RequestKind.WAKE, elastiservice("Proxy", asleep_since=BEFORE), False, ""),
        (RequestKind.WAKE, elastiservice("Proxy", asleep_since=AFTER), True, "--for"),
        (RequestKind.WAKE, elastiservice("Proxy", WAKE_ANNOTATION, asleep_since=AFTER), False, ""),
        (RequestKind.WAKE, elastiservice("", WAKE_ANNOTATION, ready="False"), True, "Valid"),
        (RequestKind.SLEEP, elastiservice("Serve", SLEEP_ANNOTATION), False, ""),
        (RequestKind.SLEEP, elastiservice("Engaging", SLEEP_ANNOTATION), False, ""),
        # The state alone may be of before the request.
        (RequestKind.SLEEP, elastiservice("Proxy", SLEEP_ANNOTATION), False, ""),
        (RequestKind.SLEEP, elastiservice("Proxy", noted=asleep(ASKED)), True, ""),
        (
            RequestKind.SLEEP,
            elastiservice("Proxy", SLEEP_ANNOTATION, noted=asleep(ASKED)),
            True,
            "",
        ),
        (RequestKind.SLEEP, elastiservice("Waking", noted=asleep(ASKED)), True, "woken again"),
        (RequestKind.SLEEP, elastiservice("Serve", noted=refused(ASKED)), True, "a reason"),
        # Of another request
        (
            RequestKind.SLEEP,
            elastiservice("Serve", SLEEP_ANNOTATION, noted=asleep(EARLIER)),
            False,
            "",
        ),
        (
            RequestKind.SLEEP,
            elastiservice("Serve", SLEEP_ANNOTATION, noted=refused(EARLIER)),
            False,
            "",
        ),
        (RequestKind.SLEEP, elastiservice("Serve", noted=refused(LATER)), True, "a reason"),
        # A target that dozes
        (RequestKind.WAKE, elastiservice("Serve", doze="Dozing"), False, ""),
        (RequestKind.WAKE, elastiservice("Serve", doze="Growing"), False, ""),
        (
            RequestKind.SLEEP,
            elastiservice("Serve", noted=asleep(ASKED), doze="Shrinking"),
            True,
            "",
        ),
        (RequestKind.SLEEP, elastiservice("Serve", noted=asleep(ASKED), doze="Dozing"), True, ""),
        (
            RequestKind.SLEEP,
            elastiservice("Serve", noted=asleep(ASKED), doze="Growing"),
            True,
            "woken again",
        ),
        # An operator that is older than the command
        (RequestKind.SLEEP, elastiservice("Proxy"), True, ""),
        (RequestKind.SLEEP, elastiservice("Serve", why="traffic arrived"), True, "traffic arrived"),
    ],
)
def test_each_report_of_the_operator_is_understood(
    wish: RequestKind, es: ElastiService, over: bool, refused: str
):
    step = progress_of(wish, es, ASKED)
    assert step.over is over
    assert refused in step.refused
    assert bool(step.refused) is bool(refused)


def test_an_operator_that_has_not_looked_yet_is_waited_for():
    ref = ScaleTargetRef("apps/v1", "Deployment", "web")
    new = ElastiService(
        ElastiServiceSpec(ref, "web"), ObjectMeta(name="web", annotations={WAKE_ANNOTATION: "x"})
    )
    assert progress_of(RequestKind.WAKE, new) == RequestProgress()


@pytest.mark.parametrize(
    ("kind", "before", "after", "end"),
    [
        (RequestKind.SLEEP, "", "Dozing", "web is dozing ("),
        (RequestKind.WAKE, "Stuck", "", "web is awake ("),
    ],
)
async def test_the_last_line_of_a_wait_names_the_doze(
    kind: RequestKind,
    before: str,
    after: str,
    end: str,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
):
    wait = _RequestWait(kind, elastiservice("Serve", kind.value, doze=before))

    async def last_step(*_: object) -> RequestProgress:
        wait._seen = elastiservice("Serve", noted=asleep(ASKED), doze=after)
        wait._report()
        return progress_of(kind, wait._seen, ASKED)

    @contextlib.asynccontextmanager
    async def watch(*_: object) -> AsyncIterator[None]:
        yield

    monkeypatch.setattr(wait, "_last_step", last_step)
    monkeypatch.setattr("elasti.cli.elastiservices.watch_elastiservices", watch)
    client: Any = None
    await wait.until_over(client, asyncio.get_running_loop().time() + 5)
    found = capsys.readouterr()
    assert found.out.startswith(end)
    if before == "Stuck":
        assert "web: waking: its pods serve; a node has no room for their requests" in found.err


# On a cluster


def annotations_of(environment: CommandEnvironment, name: str) -> JsonObject:
    found: JsonObject = environment.call(environment.rig.elastiservices.get(name))
    return found["metadata"].get("annotations") or {}


def web(environment: CommandEnvironment, name: str, replicas: int, state: str, **spec: Any) -> None:
    environment.call(environment.rig.web(replicas, name, **{"cooldownPeriod": 900, **spec}))
    environment.call(environment.rig.becomes(state, name))


def test_there_and_back_again_with_wait(environment: CommandEnvironment):
    web(environment, "turns", 1, "Serve")
    result = environment.run("sleep", "turns", "--wait", "--timeout", "50")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("turns is asleep (")
    assert "turns: awake: traffic goes" in result.stderr
    assert "turns: asleep" in result.stderr
    assert environment.call(environment.rig.replicas("turns")) == 0
    assert environment.call(environment.rig.addresses("turns")) == [
        environment.rig.resolver.address
    ]
    result = environment.run("wake", "turns", "--wait", "--timeout", "50")
    assert result.exit_code == 0, result.output
    assert result.stdout.startswith("turns is awake (")
    assert "turns: waking" in result.stderr
    assert environment.call(environment.rig.replicas("turns")) == 1


def test_without_wait_it_only_asks(environment: CommandEnvironment):
    web(environment, "asked", 0, "Proxy")
    said = environment.ok("wake", "asked")
    assert said == "asked: wake requested; follow it with elasti get\n"
    environment.call(environment.rig.becomes("Serve", "asked"))


def test_it_is_kept_awake_suspended_and_resumed(environment: CommandEnvironment):
    web(environment, "kept", 0, "Proxy", cooldownPeriod=1)
    environment.ok("wake", "kept", "--for", "3h", "--wait", "--timeout", "50")
    assert KEEP_AWAKE_ANNOTATION in annotations_of(environment, "kept")
    result = environment.run("sleep", "kept", "--wait", "--timeout", "50")
    assert result.exit_code == 1
    assert "kept awake" in result.stderr
    assert environment.ok("suspend", "kept") == "kept is suspended\n"
    assert environment.ok("resume", "kept") == "kept is resumed: it may sleep again\n"
    assert KEEP_AWAKE_ANNOTATION not in annotations_of(environment, "kept")


def test_a_cooldown_that_ends_before_the_start_is_named(
    environment: CommandEnvironment, monkeypatch: pytest.MonkeyPatch
):
    kubelet = environment.rig.cluster.kubelet
    monkeypatch.setattr(
        kubelet, "may_be_ready", lambda pod: not pod["metadata"]["name"].startswith("slow-")
    )
    quiet = environment.prometheus.trigger()
    web(environment, "slow", 0, "Proxy", cooldownPeriod=1, triggers=[quiet])
    result = environment.run("wake", "slow", "--wait", "--timeout", "50")
    assert result.exit_code == 1, result.output
    assert "slow is not awake: it is asleep again" in result.stderr
    assert "--for" in result.stderr


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((), "one of the three"),
        (("web", "--all"), "one of the three"),
        (("web", "--for", "3h", "--until", "18:00"), "not both"),
        (("web", "--for", "tomorrow"), "is not a duration"),
        (("web", "--for", "-3h"), "must be in the future"),
        (("web", "--for", "99999999999h"), ""),
        (("web", "--until", "2020-01-31T18:00:00Z"), "must be in the future"),
        (("web", "--until", "25:00"), "is not a time"),
        (("web", "--until", "soon"), "is not a time"),
    ],
)
def test_a_wrong_choice_or_time_is_a_usage_error(
    environment: CommandEnvironment, arguments: tuple[str, ...], words: str
):
    result = environment.run("wake", *arguments)
    assert result.exit_code == 2, result.output
    assert words in result.stderr


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90.0), ("90s", 90.0), ("1m30s", 90.0), ("0.5", 0.5)]
)
def test_a_timeout_is_a_number_or_a_duration(text: str, seconds: float):
    assert Timeout().convert(text, None, None) == seconds


@pytest.mark.parametrize("text", ["0", "-3", "-3s", "nan", "inf", "soon"])
def test_another_timeout_is_a_usage_error(environment: CommandEnvironment, text: str):
    assert environment.run("sleep", "web", "--timeout", text).exit_code == 2


def test_labels_choose(environment: CommandEnvironment):
    web(environment, "labelled", 0, "Proxy")
    body = MergePatch({"metadata": {"labels": {"team": "shop"}}})
    environment.call(environment.rig.elastiservices.patch("labelled", body))
    assert (
        environment.ok("resume", "-l", "team=shop") == "labelled is resumed: it may sleep again\n"
    )
    listed = environment.ok("get", "-l", "team=shop", "-o", "name")
    assert listed == "elastiservice.elasti.truefoundry.com/labelled\n"
    nothing = environment.run("get", "-l", "team=none").stderr
    assert nothing.startswith("There is no ElastiService with team=none in namespace ")
    result = environment.run("resume", "-l", "team=none")
    assert result.exit_code == 3, result.output
    assert "there is no ElastiService with team=none" in result.stderr


def test_several_are_waited_for_together(environment: CommandEnvironment):
    web(environment, "both-one", 0, "Proxy")
    web(environment, "both-two", 0, "Proxy")
    said = environment.ok("wake", "both-one", "both-two", "both-one", "--wait", "--timeout", "50")
    assert [line.split()[0] for line in said.splitlines()] == ["both-one", "both-two"]


def test_what_is_up_already_is_awake_at_once(environment: CommandEnvironment):
    web(environment, "up-already", 1, "Serve")
    assert "up-already is awake" in environment.ok(
        "wake", "up-already", "--wait", "--timeout", "50"
    )


def test_traffic_refuses_a_sleep_and_the_command_says_so(environment: CommandEnvironment):
    busy = ActivityReport(held=0, open=1, last_arrival_age=0.1)
    environment.rig.resolver.reports[(environment.namespace, "in-use")] = busy
    web(environment, "in-use", 1, "Serve", triggers=[environment.prometheus.trigger()])
    result = environment.run("sleep", "in-use", "--wait", "--timeout", "50s")
    assert result.exit_code == 1
    assert "Error: in-use is not asleep: traffic arrived" in result.stderr
    assert environment.call(environment.rig.replicas("in-use")) == 1
    assert SLEEP_ANNOTATION not in annotations_of(environment, "in-use")


def test_a_refused_sleep_has_its_own_reason(environment: CommandEnvironment):
    triggers = [environment.prometheus.trigger()]
    web(environment, "first", 1, "Serve", triggers=triggers)
    target = {"apiVersion": "apps/v1", "kind": "Deployment", "name": "first"}
    environment.call(environment.rig.service("second"))
    environment.call(environment.rig.elastiservice("second", scaleTargetRef=target))
    for _ in range(2):  # the second time status has the outcome of the first
        result = environment.run("sleep", "first", "--wait", "--timeout", "50")
        assert result.exit_code == 1
        assert "first is not asleep: " in result.stderr
        assert "second" in result.stderr


def test_a_wake_takes_a_request_to_sleep_back(environment: CommandEnvironment):
    environment.rig.resolver.reports[(environment.namespace, "changed-mind")] = None
    web(environment, "changed-mind", 1, "Serve")
    environment.ok("sleep", "changed-mind")
    environment.ok("wake", "changed-mind", "--wait", "--timeout", "50")
    assert SLEEP_ANNOTATION not in annotations_of(environment, "changed-mind")


def test_a_missing_target_is_an_error_at_once(environment: CommandEnvironment):
    environment.call(environment.rig.service("lonely"))
    environment.call(environment.rig.elastiservice("lonely"))
    environment.call(environment.rig.tells("Ready", "TargetMissing", "lonely"))
    result = environment.run("wake", "lonely", "--wait", "--timeout", "50")
    assert result.exit_code == 1
    assert "TargetMissing: there is no Deployment lonely" in result.stderr
    assert "lonely: not ready" in result.stderr


def test_running_out_of_time_has_its_own_code(environment: CommandEnvironment):
    environment.rig.cluster.kubelet.may_be_ready = lambda pod: (
        pod["metadata"]["labels"].get("app") != "too-slow"
    )
    web(environment, "too-slow", 0, "Proxy")
    result = environment.run("wake", "too-slow", "--wait", "--timeout", "1.5")
    assert result.exit_code == 7
    assert "too-slow" in result.stderr
    assert "it is waking" in result.stderr
    assert "elasti describe too-slow" in result.stderr or "elasti doctor" in result.stderr


def test_without_an_operator_the_request_stays_and_doctor_is_named(environment: CommandEnvironment):
    # Confined to other namespaces, the operator does not see this one: nobody acts.
    environment.call(_unseen(environment, "unwatched", "unseen"))
    result = environment.run("wake", "unseen", "-n", "unwatched", "--wait", "--timeout", "1")
    assert result.exit_code == 7
    assert "has not carried out the request" in result.stderr


async def _unseen(environment: CommandEnvironment, namespace: str, name: str) -> None:
    client = environment.rig.client
    await client.resource("v1/namespaces").create({"metadata": {"name": namespace}})
    body = {
        "apiVersion": "elasti.truefoundry.com/v1alpha1",
        "kind": "ElastiService",
        "metadata": {"name": name},
        "spec": {
            "service": name,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
        },
    }
    await client.resource(
        "elasti.truefoundry.com/v1alpha1/elastiservices", namespace=namespace
    ).create(body)


def test_a_target_that_was_woken_since_its_status_was_written_is_not_asleep(
    environment: CommandEnvironment,
):
    environment.call(_unseen(environment, "stale", "web"))
    environment.call(_sleeps_by_its_status_only(environment, "stale", "web"))
    result = environment.run("sleep", "web", "-n", "stale", "--wait", "--timeout", "1")
    assert (result.exit_code, result.stdout) == (7, "")


async def _sleeps_by_its_status_only(
    environment: CommandEnvironment, namespace: str, name: str
) -> None:
    client = environment.rig.client
    pod = {
        "metadata": {"labels": {"app": name}},
        "spec": {"containers": [{"name": "app", "image": "none"}]},
    }
    spec = {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": pod}
    deployments = client.resource("apps/v1/deployments", namespace=namespace)
    await deployments.create({"metadata": {"name": name}, "spec": spec})
    services = client.resource(
        "elasti.truefoundry.com/v1alpha1/elastiservices", namespace=namespace
    )
    await services.subresource("status").patch(name, MergePatch({"status": {"state": "Proxy"}}))


@pytest.mark.parametrize("command", ["wake", "sleep"])
def test_a_missing_name_is_an_error(environment: CommandEnvironment, command: str):
    result = environment.run(command, "nobody-has-this")
    assert result.exit_code == 3
    assert "there is no ElastiService nobody-has-this" in result.stderr


def test_where_one_of_two_is_not_there_none_is_asked(environment: CommandEnvironment):
    web(environment, "one-of-two", 0, "Proxy")
    result = environment.run("wake", "one-of-two", "nobody-has-this")
    assert result.exit_code == 3
    assert WAKE_ANNOTATION not in annotations_of(environment, "one-of-two")
    assert environment.call(environment.rig.replicas("one-of-two")) == 0


@pytest.mark.parametrize("command", ["wake", "sleep"])
def test_names_are_needed(environment: CommandEnvironment, command: str):
    assert environment.run(command).exit_code == 2


def test_a_right_that_is_lost_while_waiting_ends_the_wait(environment: CommandEnvironment):
    web(environment, "no-watching", 0, "Proxy")
    rule = {
        "apiGroups": ["elasti.truefoundry.com"],
        "resources": ["elastiservices"],
        "verbs": ["get", "list", "patch"],
    }
    config = environment.user("may-not-watch", rule)
    result = environment.run("wake", "no-watching", "--wait", "--timeout", "50", kubeconfig=config)
    assert result.exit_code == 4
    assert 'verbs: ["watch"]' in result.stderr


def test_an_interrupted_wait_has_its_own_code_and_the_request_stays(
    environment: CommandEnvironment,
):
    environment.call(_unseen(environment, "unwatched-too", "alone"))
    command = [sys.executable, "-m", "elasti", "wake", "alone", "-n", "unwatched-too", "--wait"]
    command += ["--kubeconfig", str(environment.admin)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            assert "not seen by the operator yet" in process.stderr.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 130
            assert "Traceback" not in process.stderr.read()
        finally:
            process.kill()
