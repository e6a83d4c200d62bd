"""What is wrong with an ElastiService and what it names, or lets it sleep but may surprise its user.

`PodLabels` indexes the labels of every target's pods: a Service that comes, goes or changes its
selector concerns not only the ElastiServices that name it, but all whose pods it selects, or
selected. `DefinitionCheck` reads now and then which fields the served definition knows: an older one
(KubeElasti's) prunes the others, and users wonder why nothing happens.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

import structlog

from elasti.api.conditions import Reason
from elasti.api.crd import missing_fields
from elasti.api.names import GROUP, PLURAL
from elasti.operator.report.conditions import Finding, service_findings
from kubeloop.aio.wait import until
from kubeloop.client.errors import KubeError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from elasti.api.types import ElastiService
    from elasti.api.validation import SpecProblem
    from elasti.operator.handover.observe import ClusterSnapshot
    from kubeloop.client.client import Client
    from kubeloop.controller.reconcile import Request

_DEFINITIONS = "apiextensions.k8s.io/v1/customresourcedefinitions"
_PERIOD = 600.0

_log = structlog.get_logger(__name__)


class PodLabels:
    """The labels of the pods of every ElastiService's target. One writer: the leader's reconciler."""

    def __init__(self) -> None:
        self._labels: dict[Request, Mapping[str, str]] = {}
        self._having: dict[tuple[str, str, str], set[Request]] = {}

    def put(self, request: Request, labels: Mapping[str, str]) -> None:
        """Note the labels that a target gives its pods now."""
        if self._labels.get(request) == labels:
            return
        self.forget(request)
        self._labels[request] = labels
        for key, value in labels.items():
            self._having.setdefault((request.namespace, key, value), set()).add(request)

    def forget(self, request: Request) -> None:
        """The ElastiService is gone; safe where it is not known."""
        for key, value in self._labels.pop(request, {}).items():
            pair = request.namespace, key, value
            having = self._having[pair]
            having.discard(request)
            if not having:
                del self._having[pair]

    def selected_by(self, namespace: str, selector: Mapping[str, str]) -> Iterator[Request]:
        """Iterate over the ElastiServices whose pods a selector finds; an empty one finds none."""
        if not selector:
            return
        pairs = ((namespace, key, value) for key, value in selector.items())
        fewest = min((self._having.get(pair, set()) for pair in pairs), key=len)
        for request in sorted(fewest):
            if selector.items() <= self._labels[request].items():
                yield request


def findings_of(
    snapshot: ClusterSnapshot,
    *,
    problems: Sequence[SpecProblem],
    owner: str,
    outdated: Finding | None,
    shared_with: Sequence[str],
    keep_awake: str,
    page: str,
) -> tuple[Finding, ...]:
    """Return what is wrong with an ElastiService and what it names, refusals and warnings.

    `owner` is the ElastiService that owns its Service, where that is another; `keep_awake` says why the
    time to keep it awake until has no effect; `page` why a waiting page of its own cannot be shown.
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
    if keep_awake:
        found.append(Finding(Reason.KEEP_AWAKE_IGNORED, keep_awake, refuses=False))
    if page:
        found.append(Finding(Reason.PAGE_INVALID, page, refuses=False))
    found += _threshold_findings(es)
    if snapshot.service is None:
        return tuple(found)
    found += service_findings(snapshot.service)
    if shared_with:
        found.append(
            Finding(
                Reason.SHARED_PODS,
                f"other Services lead to the same pods ({', '.join(shared_with)}): their traffic does"
                " not wake the target; give each an ElastiService of its own",
                refuses=False,
            )
        )
    if snapshot.target is not None and snapshot.target.probed is False:
        found.append(
            Finding(
                Reason.NO_READINESS_PROBE,
                f"the pods of {es.spec.scale_target_ref.name} have no readiness probe, so"
                " they count as ready before they listen; add one",
                refuses=False,
            )
        )
    return tuple(found)


def _threshold_findings(es: ElastiService) -> Iterator[Finding]:
    for index, trigger in enumerate(es.spec.triggers):
        try:
            threshold = float(trigger.metadata.get("threshold") or 0)
        except (TypeError, ValueError):
            continue  # it is a problem of the spec, which says so itself
        if "threshold" in trigger.metadata and threshold <= 0:
            yield Finding(
                Reason.THRESHOLD_ZERO,
                f"triggers[{index}] has a threshold of {threshold:g}: only a value of exactly 0 lets"
                " the target sleep; set it above what an idle target shows",
                refuses=False,
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
        """Check now; where the definition may not be read, nothing is reported."""
        try:
            found = await self._definitions.get(f"{PLURAL}.{GROUP}")
        except KubeError as error:
            _log.info("the CustomResourceDefinition cannot be read", error=str(error))
            return
        missing = missing_fields(found)
        self.finding = _outdated(missing) if missing else None


def _outdated(missing: list[str]) -> Finding:
    return Finding(
        Reason.DEFINITION_OUTDATED,
        f"the cluster's CustomResourceDefinition is older and drops {', '.join(missing)}; upgrade it:"
        " elasti crd | kubectl apply --server-side --force-conflicts -f -",
        refuses=False,
    )
