"""Every reason why a target cannot doze: what causes it, and what its message advises."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from elasti.api.conditions import Reason
from elasti.api.triggers.registry import Role
from elasti.api.types import (
    DozeSpec,
    DozeStatus,
    ElastiService,
    ElastiServiceSpec,
    ElastiServiceStatus,
    ScaleTargetRef,
    ScaleTrigger,
    SleepSpec,
)
from elasti.operator.doze import refusals
from elasti.operator.doze.requests import noted
from elasti.operator.model.doze import DozePod, DozeView
from elasti.operator.model.findings import Finding
from kubeloop.objects.meta import JsonObject

REF = ScaleTargetRef("apps/v1", "Deployment", "web")
NETWORK, TRAFFIC = ScaleTrigger("network"), ScaleTrigger("traffic")
VETO = ScaleTrigger("network", role=Role.VETO)


def service(*triggers: ScaleTrigger, memory: Any = "Keep", cpu: str = "1m") -> ElastiService:
    sleep = SleepSpec("Doze", DozeSpec(cpu=cpu, memory=memory))
    return ElastiService(ElastiServiceSpec(REF, "web", given_triggers=triggers, sleep=sleep))


def pod(
    cpu: str = "900m",
    *,
    name: str = "web-0",
    qos: str = "Burstable",
    policy: str = "",
    template: str = "abc",
    **spec: Any,
) -> DozePod:
    container: JsonObject = {"name": "app", "resources": {"requests": {"cpu": cpu}}}
    if policy:
        container["resizePolicy"] = [{"resourceName": policy, "restartPolicy": "RestartContainer"}]
    whole = {
        "metadata": {"name": name, "labels": {"pod-template-hash": template}},
        "spec": {"containers": [container], **spec},
        "status": {"qosClass": qos},
    }
    return msgspec.convert(whole, DozePod)


def of_pods(*pods: DozePod, **spec: Any) -> list[Finding]:
    return [*refusals.pod_refusals(service(**spec), DozeView(pods))]


def of_spec(*triggers: ScaleTrigger, sharing: tuple[str, ...] = ()) -> list[Finding]:
    return [*refusals.spec_refusals(service(*triggers).spec, sharing)]


def of_hpa(
    name: str = "cpu", *, kind: str = "resource", target: Any = None, **spec: Any
) -> list[Finding]:
    metric = {kind: {"name": name, "target": target or {"averageUtilization": 80}}}
    ref = {"kind": "Deployment", "name": spec.pop("on", "web")}
    hpa = {"metadata": {"name": "h"}, "spec": {"scaleTargetRef": ref, "metrics": [metric]}}
    found = refusals.hpa_refusal(hpa, service(**spec))
    return [found] if found else []


def of_vpa(mode: str = "", on: str = "web") -> list[Finding]:
    spec: JsonObject = {"targetRef": {"kind": "Deployment", "name": on}}
    if mode:
        spec["updatePolicy"] = {"updateMode": mode}
    found = refusals.vpa_refusal({"metadata": {"name": "v"}, "spec": spec}, service())
    return [found] if found else []


REFUSED: list[tuple[Reason, list[Finding], str]] = [
    (Reason.DOZE_NOT_ENABLED, [refusals.NOT_ENABLED], "elasti install --doze"),
    (
        Reason.DOZE_NOT_ENABLED,
        [refusals.forbidden("may not list limitranges")],
        "may not list limitranges; ",
    ),
    (
        Reason.DOZE_UNSUPPORTED,
        [refusals.UNSUPPORTED],
        "1.33",
    ),
    (
        Reason.DOZE_SHARED_TARGET,
        of_spec(NETWORK, sharing=("shop", "blog")),
        "ElastiService shop, blog ",
    ),
    (Reason.DOZE_SHARED_TARGET, of_spec(NETWORK, sharing=("shop",)), "ElastiService shop "),
    (
        Reason.DOZE_UNSEEN_USE,
        of_spec(TRAFFIC),
        "{type: network}",
    ),
    (Reason.DOZE_UNSEEN_USE, of_spec(TRAFFIC, VETO), " traffic "),
    (Reason.DOZE_POD_LEVEL_REQUESTS, of_pods(pod(resources={})), "pod web-0 "),
    (Reason.DOZE_BEST_EFFORT, of_pods(pod(qos="BestEffort")), "pod web-0 "),
    (
        Reason.DOZE_BEST_EFFORT,
        of_pods(pod("100m"), cpu="100m"),
        "(100m,",
    ),
    (Reason.DOZE_GUARANTEED, of_pods(pod(qos="Guaranteed")), "pod web-0 "),
    (
        Reason.DOZE_RESTARTS_CONTAINER,
        of_pods(pod(policy="cpu")),
        "NotRequired",
    ),
    (
        Reason.DOZE_RESTARTS_CONTAINER,
        of_pods(pod(policy="memory"), memory="Usage"),
        " memory ",
    ),
    (
        Reason.DOZE_UNEVEN_REQUESTS,
        of_pods(pod(), pod("800m", name="web-1")),
        "kubectl rollout restart",
    ),
    (Reason.DOZE_HPA, of_hpa(), "HPA h "),
    (
        Reason.DOZE_HPA,
        of_hpa(kind="containerResource"),
        "averageValue",
    ),
    (Reason.DOZE_HPA, of_hpa("memory", memory="Usage"), " memory "),
    (Reason.DOZE_VPA, of_vpa(), "updateMode Auto"),
    (Reason.DOZE_VPA, of_vpa("InPlaceOrRecreate"), "InPlaceOrRecreate"),
]


@pytest.mark.parametrize(("reason", "found", "named"), REFUSED)
def test_it_is_refused_with_a_reason_and_names_what_to_change(
    reason: Reason, found: list[Finding], named: str
):
    (one,) = found
    assert one.reason == reason
    assert one.refuses
    assert named in one.message


def test_every_reason_is_here():
    # That of an attempt which the server refused is no refusal of the target.
    reasons = {one for one in Reason if one.startswith("Doze")} - {Reason.DOZE_REFUSED}
    assert reasons == {reason for reason, _, _ in REFUSED}


ALLOWED = {
    "pods of one template": of_pods(pod(), pod(name="web-1")),
    "pods of two templates": of_pods(pod(), pod("800m", name="web-1", template="new")),
    "memory that is not changed": of_pods(pod(policy="memory")),
    "no pods": of_pods(),
    "a trigger that measures pods": of_spec(TRAFFIC, NETWORK),
    "a Veto alone, which never lets it doze": of_spec(VETO),
    "an HPA of another workload": of_hpa(on="blog"),
    "an HPA by average value": of_hpa(target={"averageValue": "100m"}),
    "an HPA by memory that is not changed": of_hpa("memory"),
    "a VPA of another workload": of_vpa(on="blog"),
    "a VPA that leaves pods alone": of_vpa("Off") + of_vpa("Initial"),
}


@pytest.mark.parametrize("found", ALLOWED.values(), ids=ALLOWED)
def test_it_is_not_refused(found: list[Finding]):
    assert found == []


def test_what_shrank_already_is_neither_uneven_nor_without_requests():
    """Half of the pods have shrunk: the leader that sees this must go on."""
    view = DozeView((pod(), pod("1m", name="web-1")))
    known = noted((), DozeView((pod(),)), DozeSpec())
    es = service()
    doze = DozeStatus("Shrinking", "2030-01-01T00:00:00Z", containers=known)
    es = msgspec.structs.replace(es, status=ElastiServiceStatus(doze=doze))
    assert [*refusals.pod_refusals(es, view)] == []
    assert [*refusals.pod_refusals(service(), view)] != []
