"""What to do about one ElastiService, from all that is known of it. Pure.

What the operator's conditions say is repeated here only where it is in the way: advice is short, and
every line names something to check or to do.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.api import conditions as words
from elasti.api.names import SLEEP_ANNOTATION, WAKE_ANNOTATION
from elasti.api.view import condition, moment
from elasti.cli.rendering import duration

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasti.cli.describe.model import Description, PodSummary

_PATIENCE = 60.0
"""A request that the operator has not carried out for so many seconds is worth a word."""

_HOLDING = ("Parking", "Proxy", "Waking")


def advice(found: Description) -> Iterator[str]:
    """Yield what to check or to do, the most urgent first."""
    if not found.es.status.conditions:
        yield "No operator has reconciled this ElastiService yet: elasti doctor says why."
        return
    yield from _about_operator(found)
    yield from _about_conditions(found)
    yield from _about_pods(found)
    yield from _about_traffic(found)


def _about_operator(found: Description) -> Iterator[str]:
    meta, status = found.es.metadata, found.es.status
    if status.observed_generation < meta.generation:
        yield (
            f"The operator has not taken in the last change of the spec (generation"
            f" {meta.generation}, observed {status.observed_generation}): elasti doctor says whether"
            " one leads."
        )
    for verb, annotation in (("wake", WAKE_ANNOTATION), ("sleep", SLEEP_ANNOTATION)):
        asked = moment((meta.annotations or {}).get(annotation, "").partition(" ")[0])
        waited = (found.now - asked).total_seconds() if asked else 0.0
        if waited > _PATIENCE and not (verb == "sleep" and status.state == "Proxy"):
            yield (
                f"A request to {verb} has been waiting for {duration(waited)}: elasti doctor says"
                " whether an operator leads."
            )


def _about_conditions(found: Description) -> Iterator[str]:
    bad = {
        words.READY: "False",
        words.RESOLVER_AVAILABLE: "False",
        words.TRIGGERS_HEALTHY: "False",
        words.SCALE_CONTESTED: "True",
    }
    for kind, status in bad.items():
        entry = condition(found.es, kind)
        if entry is not None and entry.status == status:
            yield f"{kind} is {status} ({entry.reason}): {entry.message}."
    ready = condition(found.es, words.READY)
    if ready is not None and ready.status == "True" and ready.message:
        yield f"It may sleep, but: {ready.message}"


def _about_pods(found: Description) -> Iterator[str]:
    namespace = found.es.metadata.namespace
    if not isinstance(found.pods, tuple):
        return
    for pod in found.pods:
        if pod.trouble:
            yield f"Pod {pod.name} does not get ready: {pod.trouble}."
        elif _is_crashing(pod):
            yield (
                f"Pod {pod.name} was restarted {pod.restarts} times and is not ready: kubectl logs -n"
                f" {namespace} {pod.name} --previous."
            )
    if found.es.status.state == "Waking" and not found.pods:
        ref = found.es.spec.scale_target_ref
        yield (
            f"It is waking, and {ref.kind} {ref.name} has no pod yet: kubectl describe -n {namespace}"
            f" {ref.kind.lower()} {ref.name} says what keeps it (quotas, admission, nodes)."
        )


def _is_crashing(pod: PodSummary) -> bool:
    return not pod.ready and pod.restarts > 1


def _about_traffic(found: Description) -> Iterator[str]:
    service = found.es.spec.service
    if isinstance(found.services, tuple):
        for entry in found.services:
            if entry.role == "private" and not entry.exists and found.es.status.state:
                yield (
                    f"The private Service {entry.name} is missing; the operator makes it again,"
                    " unless it may not create Services: check its logs."
                )
    if not isinstance(found.slices, tuple):
        return
    public = [
        endpoint_slice for endpoint_slice in found.slices if endpoint_slice.service == service
    ]
    if public and not any(endpoint_slice.ready for endpoint_slice in public):
        yield (
            f"No endpoint of Service {service} is ready, neither a pod nor a resolver: connections to"
            " it are refused now."
        )
    holding = found.es.status.state in _HOLDING
    if holding and not any(
        endpoint_slice.of == "resolver" and endpoint_slice.total for endpoint_slice in public
    ):
        yield (
            f"State {found.es.status.state}, but no resolver is in the rotation of Service"
            f" {service}: elasti doctor says whether resolvers are ready."
        )
