"""What an uninstall will do, in words, and when it must not. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.cli.exits import ExitCode, Failure
from elasti.cli.uninstall.targets import sleeps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasti.cli.uninstall.survey import Survey


def refusal(survey: Survey, *, keep: bool) -> Failure | None:
    """Return why nothing may be removed: others would lose what is theirs."""
    if keep or not survey.has_definition or not survey.needed_by:
        return None
    return Failure(
        ExitCode.FAILED,
        f"the CustomResourceDefinition cannot go: {survey.needed_by}",
        remedy="Keep it, and everybody's ElastiServices: --keep-crd",
    )


def announced(survey: Survey, *, keep: bool) -> Iterator[str]:
    """Yield what will happen, a line for each thing."""
    yield f"From namespace {survey.namespace} this removes Elasti:"
    count = len(survey.elastiservices)
    asleep = sum(map(sleeps, survey.elastiservices))
    if count:
        fate = "kept, with their targets awake" if keep else "deleted"
        woken = f" (asleep, and woken first: {asleep})" if asleep else ""
        yield f"  ElastiServices {fate}: {count}{woken}"
    if survey.objects:
        yield f"  {len(survey.objects)} objects: operator, resolver, their Services and rights"
    if survey.has_definition:
        yield f"  the CustomResourceDefinition {'is kept' if keep else 'goes last'}"
    elif survey.foreign_definition:
        yield "  the CustomResourceDefinition is kept: `elasti install` did not make it"
    if count and not keep:
        yield "To have them again later, save them first:"
        yield "  kubectl get elastiservices -A -o yaml > elastiservices.yaml"
