"""Why a target cannot doze, each with its remedy. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from elasti.api.conditions import Reason
from elasti.api.triggers.registry import Role
from elasti.api.types import ElastiService, ElastiServiceSpec
from elasti.operator.doze.requests import RESOURCES, noted
from elasti.operator.model.doze import DozePod, DozeView
from elasti.operator.model.findings import Finding

NOT_ENABLED = Finding(
    Reason.DOZE_NOT_ENABLED,
    "spec.sleep.mode asks for Doze, which this installation does not enable, so the target stays awake;"
    " set the chart's doze.enabled, or run elasti install --doze",
)
UNSUPPORTED = Finding(
    Reason.DOZE_UNSUPPORTED,
    "the API server has no pods/resize, so the target stays awake; upgrade Kubernetes to 1.33 or newer, or"
    " set spec.sleep.mode to Zero",
)


def forbidden(error: object) -> Finding:
    """Return the finding for a right that the operator lacks."""
    return Finding(Reason.DOZE_NOT_ENABLED, f"{error}; {NOT_ENABLED.message.rpartition('; ')[2]}")


def spec_refusals(spec: ElastiServiceSpec, sharing: Sequence[str]) -> Iterator[Finding]:
    """Iterate over what is wrong whatever the pods are; `sharing`: others on the same target."""
    if sharing:
        yield Finding(
            Reason.DOZE_SHARED_TARGET,
            f"ElastiService {', '.join(sharing)} has the same target, and only one may change its requests;"
            " set spec.sleep.mode to Zero, or delete the other one",
        )
    signals = [one for one in spec.triggers if one.effective_role is Role.SIGNAL]
    if signals and all(trigger.look_seconds for trigger in signals):
        yield Finding(
            Reason.DOZE_UNSEEN_USE,
            f"spec.triggers has only {signals[0].type} as a Signal, which the resolver sees, and a dozing"
            " target's traffic does not pass through it; add one that measures pods, such as {type: network}",
        )


def pod_refusals(es: ElastiService, view: DozeView) -> Iterator[Finding]:
    """Iterate over what is wrong with the pods, the first of each kind."""
    changed = RESOURCES if es.spec.sleep.doze.memory == "Usage" else RESOURCES[:1]
    for pod in view.pods:
        name = pod.metadata.name
        if pod.spec.resources is not None:
            yield Finding(
                Reason.DOZE_POD_LEVEL_REQUESTS,
                f"pod {name} has spec.resources, which count instead of its containers' requests; move them"
                " to the containers",
            )
        elif pod.status.qos_class == "BestEffort":
            yield Finding(
                Reason.DOZE_BEST_EFFORT,
                f"pod {name} is BestEffort: it requests nothing, so there is nothing to give back; add"
                " requests to its containers, or set spec.sleep.mode to Zero",
            )
        elif pod.status.qos_class == "Guaranteed":
            yield Finding(
                Reason.DOZE_GUARANTEED,
                f"pod {name} is Guaranteed, and its requests cannot shrink below its limits; raise its"
                " limits above its requests, or remove its CPU limit",
            )
        for _, _, container in pod.resizable():
            for policy in container.resize_policy or ():
                if policy.resource_name in changed and policy.restart_policy == "RestartContainer":
                    yield Finding(
                        Reason.DOZE_RESTARTS_CONTAINER,
                        f"container {container.name} of pod {name} restarts when its {policy.resource_name}"
                        " changes; set its resizePolicy to NotRequired",
                    )
    known = es.status.doze.containers if es.status.doze is not None else ()
    if view.pods and not known and not noted((), view, es.spec.sleep.doze):
        yield Finding(
            Reason.DOZE_BEST_EFFORT,
            f"no container of pod {view.pods[0].metadata.name} requests more than it would while dozing"
            f" ({es.spec.sleep.doze.cpu}, or a LimitRange's minimum); set spec.sleep.mode to Zero",
        )
    if (uneven := _uneven(view.pods, {entry.template for entry in known})) is not None:
        yield uneven


def _uneven(pods: Iterable[DozePod], known: set[str]) -> Finding | None:
    seen: dict[tuple[str, str, str], Any] = {}
    for pod in pods:
        for _, _, container in pod.resizable() if pod.template not in known else ():
            for resource in RESOURCES:
                key = pod.template, container.name, resource
                request = container.request(resource)
                if seen.setdefault(key, request) != request:
                    return Finding(
                        Reason.DOZE_UNEVEN_REQUESTS,
                        f"pods of one template request different {resource} in container {container.name}"
                        f" ({seen[key]} and {request}), so the original request is unknown; restart them"
                        " with kubectl rollout restart",
                    )
    return None


def hpa_refusal(hpa: Any, es: ElastiService) -> Finding | None:
    """Return why an HPA forbids a doze; None if it does not."""
    spec, ref = hpa["spec"], es.spec.scale_target_ref
    if (spec["scaleTargetRef"]["kind"], spec["scaleTargetRef"]["name"]) != (ref.kind, ref.name):
        return None
    changed = RESOURCES if es.spec.sleep.doze.memory == "Usage" else RESOURCES[:1]
    for metric in spec.get("metrics") or ():
        found = metric.get("resource") or metric.get("containerResource") or {}
        if found.get("name") in changed and "averageUtilization" in (found.get("target") or {}):
            return Finding(
                Reason.DOZE_HPA,
                f"HPA {hpa['metadata']['name']} scales by {found['name']} utilization, which is a share of the"
                " request: with a small request it scales up; let it use averageValue, or another metric",
            )
    return None


def vpa_refusal(vpa: Any, es: ElastiService) -> Finding | None:
    """Return why a VerticalPodAutoscaler forbids a doze; None if it does not."""
    spec, ref = vpa["spec"], es.spec.scale_target_ref
    target = spec.get("targetRef") or {}
    mode = (spec.get("updatePolicy") or {}).get("updateMode", "Auto")
    named = (target.get("kind"), target.get("name")) == (ref.kind, ref.name)
    if not named or mode in ("Off", "Initial"):
        return None
    return Finding(
        Reason.DOZE_VPA,
        f"VerticalPodAutoscaler {vpa['metadata']['name']} has updateMode {mode}, so it changes or evicts pods"
        " whose requests shrink; set its updateMode to Initial or Off",
    )
