"""Finds what is wrong with an ElastiService and what it names, and what may surprise its user.

`DefinitionCheck` reads now and then which fields the served definition knows: an older one
(KubeElasti's) prunes the others, and users wonder why nothing happens.
"""

from __future__ import annotations

import asyncio
import datetime as dt
from collections.abc import Iterable, Iterator, Mapping, Sequence

from elasti.api.conditions import Reason
from elasti.api.crd import missing_fields
from elasti.api.names import GROUP, KEEP_AWAKE_ANNOTATION, PLURAL
from elasti.api.schedules import overlap, schedule_problems
from elasti.api.types import ElastiService, Schedule
from elasti.api.validation import SpecProblem
from elasti.logger import get_logger
from elasti.operator.model.facts import ClusterSnapshot
from elasti.operator.model.findings import Finding, service_findings, target_findings, warning
from elasti.operator.model.state import ServiceState
from kubeloop.aio.wait import until
from kubeloop.client.client import Client
from kubeloop.client.errors import KubeError
from kubeloop.objects.core import Service
from kubeloop.objects.times import parse_time, unix_seconds

_DEFINITIONS = "apiextensions.k8s.io/v1/customresourcedefinitions"
_PERIOD = 600.0
_SHOWN = 40
"""Of a value that a user wrote, in a message."""

_log = get_logger(__name__)


def findings_of(
    snapshot: ClusterSnapshot,
    *,
    problems: Sequence[SpecProblem],
    owner: str,
    outdated: Finding | None,
    shared_with: Sequence[str],
    keep_awake: str,
    page: str,
    schedules: Iterable[Finding] = (),
    dependencies: Iterable[str] = (),
    workers: Iterable[str] = (),
    flapping: bool = False,
) -> tuple[Finding, ...]:
    """Return what is wrong with an ElastiService and what it names, refusals and warnings.

    `owner` is the ElastiService that owns its Service, if that is another; `keep_awake` says why the
    time to keep it awake until has no effect; `page` why a waiting page of its own cannot be shown; `flapping`
    whether a client wakes it at a steady period.
    """
    es, found = snapshot.es, []
    if problems:
        found.append(Finding(Reason.INVALID_SPEC, "; ".join(map(str, problems))))
    if owner:
        found.append(
            Finding(
                Reason.SERVICE_OWNED_BY_ANOTHER,
                f"Service {es.spec.service} belongs to ElastiService {owner}, which is"
                " older; delete one of the two",
            )
        )
    if outdated is not None:
        found.append(outdated)
    if es.spec.observes and not es.spec.suspend:
        text = (
            "spec.policy is Observe and spec.suspend is false: a version that does not know the policy would put"
            " the target to sleep; set spec.suspend to true"
        )
        found.append(warning(Reason.NOT_SUSPENDED, text))
    given = {Reason.KEEP_AWAKE_IGNORED: keep_awake, Reason.PAGE_INVALID: page}
    found += [warning(reason, text) for reason, text in given.items() if text]
    found += schedules
    found += [warning(Reason.DEPENDENCY_IGNORED, text) for text in dependencies]
    found += [warning(Reason.TARGET_IGNORED, text) for text in workers]
    found += _threshold_findings(es)
    if flapping:
        found.append(
            warning(
                Reason.FLAPPING,
                "a request ended each of its last sleeps within two minutes, at a steady period: a client such"
                " as a Prometheus that scrapes the Service, or a health check, wakes it again and again; its"
                " cooldown is four times as long, at most an hour longer, until a sleep lasts; let the resolver answer"
                " it (spec.probeResponse, with a path such as /metrics), or point it at the pods",
            )
        )
    if snapshot.service is not None:
        found += _service_warnings(snapshot, snapshot.service, shared_with)
    return tuple(found)


def _service_warnings(
    snapshot: ClusterSnapshot, service: Service, shared_with: Sequence[str]
) -> Iterator[Finding]:
    spec, target = snapshot.es.spec, snapshot.target
    yield from service_findings(service)
    if target is not None:
        yield from target_findings(service, target, spec.scale_target_ref.name)
    if spec.sleep.drain == "Selector" and not snapshot.may_drain:
        yield warning(
            Reason.DRAIN_IGNORED,
            f"sleep.drain: Selector has no effect on Service {spec.service}, which Argo Rollouts leads: a Rollout"
            " whose Service has another key in its selector stops no pod; give the pods a preStop pause",
        )
    if shared_with:
        yield warning(
            Reason.SHARED_PODS,
            f"other Services lead to the same pods ({', '.join(shared_with)}): their traffic does"
            " not wake the target; give each an ElastiService of its own",
        )
    if target is not None and target.probed is False:
        yield warning(
            Reason.NO_READINESS_PROBE,
            f"the pods of {spec.scale_target_ref.name} have no readiness probe, so"
            " they count as ready before they listen; add one",
        )


def keep_awake_complaint(
    annotations: Mapping[str, str] | None, state: ServiceState, now: float
) -> str:
    """Return why the time to keep a target awake until has no effect; "" if it has, or had."""
    text = (annotations or {}).get(KEEP_AWAKE_ANNOTATION)
    if text is None or (text and text == state.requests.kept_text):
        return ""
    try:
        parse_time(text)
    except ValueError:
        return (
            f"the annotation {KEEP_AWAKE_ANNOTATION} is {text[:_SHOWN]!r}, which is not a time, so it"
            " keeps nothing awake; write it like 2030-01-31T18:00:00Z"
        )
    if now < unix_seconds(text):
        return ""
    return (
        f"the annotation {KEEP_AWAKE_ANNOTATION} is {text}, which is in the past, so it keeps nothing"
        " awake; write a later time, or remove it"
    )


def schedule_findings(schedules: Sequence[Schedule], now: dt.datetime) -> Iterator[Finding]:
    """Yield what is wrong with schedules: those that cannot be read, and Awake beside Asleep."""
    for problem in schedule_problems(schedules):
        text = f"{problem}; until then it keeps the target awake"
        yield warning(Reason.SCHEDULE_INVALID, text)
    if found := overlap(schedules, now):
        yield warning(Reason.SCHEDULE_OVERLAP, found)


def _threshold_findings(es: ElastiService) -> Iterator[Finding]:
    for index, trigger in enumerate(es.spec.triggers):
        try:
            threshold = float(trigger.metadata.get("threshold") or 0)
        except (TypeError, ValueError):
            continue  # it is a problem of the spec, which says so itself
        if "threshold" in trigger.metadata and threshold <= 0:
            yield warning(
                Reason.THRESHOLD_ZERO,
                f"triggers[{index}] has a threshold of {threshold:g}: only a value of exactly 0 lets"
                " the target sleep; set it above what an idle target shows",
            )


class DefinitionCheck:
    """Checks the served definition; `finding` is what is wrong with it."""

    def __init__(self, client: Client) -> None:
        self._definitions = client.resource(_DEFINITIONS)
        self.finding: Finding | None = None

    async def run(self) -> None:
        """Check periodically until cancelled; the first time after a period."""
        await asyncio.sleep(_PERIOD)
        await until(self.check, _PERIOD)

    async def check(self) -> None:
        """Check now; nothing is reported if the definition may not be read."""
        try:
            found = await self._definitions.get(f"{PLURAL}.{GROUP}")
        except KubeError as error:
            _log.info("the CustomResourceDefinition cannot be read", error=str(error))
            return
        missing = missing_fields(found)
        self.finding = _outdated(missing) if missing else None


def _outdated(missing: list[str]) -> Finding:
    return warning(
        Reason.DEFINITION_OUTDATED,
        f"the cluster's CustomResourceDefinition is older and drops {', '.join(missing)}; upgrade it:"
        " elasti crd | kubectl apply --server-side --force-conflicts -f -",
    )
