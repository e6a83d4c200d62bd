"""What is wrong with ElastiServices, their Services and their autoscalers. Pure.

Where an operator has looked, its own conditions count. Where none has, what it would refuse is found
here by the same rules.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from elasti.api.names import KIND
from elasti.api.validation import problems
from elasti.cli.doctor.findings import DoctorFinding, FindingLevel
from elasti.cli.view import condition
from elasti.operator.report import conditions as words
from kubeloop.objects.core import Service

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from elasti.api.types import ElastiService
    from kubeloop.objects.meta import JsonObject

TOPIC = KIND
# Conditions beside Ready, with the status that is bad, and how bad it is.
_BAD = (
    (words.TRIGGERS_HEALTHY, "False", FindingLevel.WARNING),
    (words.SCALE_CONTESTED, "True", FindingLevel.WARNING),
)


def judge_services(
    found: Sequence[ElastiService], services: Mapping[tuple[str, str], JsonObject] | None
) -> Iterator[DoctorFinding]:
    """Judge every ElastiService; `services` are all Services by place, None where not known."""
    good = 0
    for es in found:
        complaints = list(_judge(es, services))
        good += all(complaint.level is FindingLevel.HINT for complaint in complaints)
        yield from complaints
    if good:
        yield DoctorFinding(
            FindingLevel.OK, "ElastiServices", f"{len(found)}, {good} of them in order"
        )
    elif not found:
        yield DoctorFinding(FindingLevel.OK, "ElastiServices", "there is none yet")


def judge_autoscalers(
    found: Iterable[ElastiService],
    hpas: Iterable[JsonObject],
    scaled: Iterable[JsonObject],
) -> Iterator[DoctorFinding]:
    """Judge HorizontalPodAutoscalers and KEDA's ScaledObjects on the targets."""
    by_target = {_target(es): es for es in found}
    for hpa in hpas:
        es = by_target.get(_scaled_by(hpa))
        minimum = (hpa.get("spec") or {}).get("minReplicas", 1)
        if es is not None and minimum == 0:
            yield _finding(
                FindingLevel.WARNING,
                es,
                f"HPA {hpa['metadata']['name']} has minReplicas: 0, so it may wake the target or put"
                " it to sleep by itself",
                "Set its minReplicas to 1.",
            )
    for obj in scaled:
        es = by_target.get(_scaled_by(obj))
        if es is None:
            continue
        name, autoscaler = obj["metadata"]["name"], es.spec.autoscaler
        if autoscaler is None or (autoscaler.type, autoscaler.name) != ("keda", name):
            yield _finding(
                FindingLevel.PROBLEM,
                es,
                f"KEDA's ScaledObject {name} scales the same target, and would scale it up again",
                f"Name it: spec.autoscaler: {{type: keda, name: {name}}}; it is paused for the sleep.",
            )


def _judge(
    es: ElastiService, services: Mapping[tuple[str, str], JsonObject] | None
) -> Iterator[DoctorFinding]:
    ready = condition(es, words.READY)
    if ready is None:
        yield _finding(
            FindingLevel.PROBLEM,
            es,
            "no operator has looked at it",
            "See the findings about operator and leader; does it watch this namespace"
            " (WATCH_NAMESPACES)?",
        )
        yield from _judge_unseen(es, services)
        return
    if ready.status == "False":
        yield _finding(FindingLevel.PROBLEM, es, f"{ready.reason}: {ready.message}")
    elif ready.message:
        yield _finding(FindingLevel.HINT, es, ready.message)
    if es.status.observed_generation < es.metadata.generation:
        yield _finding(
            FindingLevel.WARNING, es, "the operator has not taken in the last change of its spec"
        )
    for kind, status, level in _BAD:
        entry = condition(es, kind)
        if entry is not None and entry.status == status:
            yield _finding(level, es, f"{entry.reason}: {entry.message}")


def _judge_unseen(
    es: ElastiService, services: Mapping[tuple[str, str], JsonObject] | None
) -> Iterator[DoctorFinding]:
    for problem in problems(es.spec):
        yield _finding(FindingLevel.PROBLEM, es, str(problem))
    if services is None:
        return
    obj = services.get((es.metadata.namespace, es.spec.service))
    if obj is None:
        yield _finding(FindingLevel.PROBLEM, es, f"there is no Service {es.spec.service}")
        return
    for finding in words.service_findings(msgspec.convert(obj, Service)):
        yield _finding(
            FindingLevel.PROBLEM if finding.refuses else FindingLevel.HINT, es, finding.message
        )


def _finding(
    level: FindingLevel, es: ElastiService, message: str, remedy: str = ""
) -> DoctorFinding:
    return DoctorFinding(
        level, f"{TOPIC} {es.metadata.namespace}/{es.metadata.name}", message, remedy
    )


def _target(es: ElastiService) -> tuple[str, str, str]:
    ref = es.spec.scale_target_ref
    kind = ref.kind.lower().removesuffix("s")
    return es.metadata.namespace, kind, ref.name


def _scaled_by(obj: JsonObject) -> tuple[str, str, str]:
    ref = (obj.get("spec") or {}).get("scaleTargetRef") or {}
    kind = ref.get("kind", "Deployment").lower()
    return obj["metadata"]["namespace"], kind, ref.get("name", "")
