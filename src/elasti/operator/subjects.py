"""What triggers' evidence is about: one ElastiService, with one Service and one target.

Evidence of idleness is kept under all of it. Where another target or Service is named, or other triggers,
nothing has been shown yet, from the moment at which the directory knows: not only from the next round on.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elasti.api.types import ElastiServiceSpec
    from elasti.operator.directory import Directory
    from elasti.scaling.decide import Evidence
    from elasti.scaling.evaluator import Evaluator
    from kubeloop.controller.reconcile import Request


class SubjectKey(NamedTuple):
    """One ElastiService and what it names; prints as the ElastiService."""

    request: Request
    uid: str
    service: str
    api_version: str
    kind: str
    target: str

    def __str__(self) -> str:
        return str(self.request)


def subject_key(request: Request, uid: str, spec: ElastiServiceSpec) -> SubjectKey:
    """Return what evidence is kept under."""
    ref = spec.scale_target_ref
    return SubjectKey(request, uid, spec.service, ref.api_version, ref.kind, ref.name)


def evidence_by(
    directory: Directory, evaluator: Evaluator
) -> Callable[[Request], Sequence[Evidence]]:
    """Return what finds the evidence for an ElastiService as it is now."""

    def evidence(request: Request) -> Sequence[Evidence]:
        details = directory.get(request)
        if details is None:
            return ()
        key = subject_key(request, details.uid, details.spec)
        return evaluator.evidence(key, details.spec.triggers)

    return evidence
