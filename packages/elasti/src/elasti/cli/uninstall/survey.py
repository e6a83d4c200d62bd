"""Finds what to remove, what must stay because others need it, and describes the plan.

Everything is read from the cluster, nothing is remembered: an uninstall that was killed half-way
finds, when it is called again, just what is left to do.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from elasti.api.names import GROUP, MANAGED_BY, PLURAL
from elasti.api.states import State
from elasti.cli.exits import Failure
from elasti.cli.install.inventory import (
    installed_operator,
    installed_operators,
    is_held,
    key_of,
    list_elastiservices,
    name_some,
    objects_of,
)
from kubeloop.client.errors import Forbidden, NotFound

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from elasti.cli.install.inventory import InstalledObject, InstalledOperator
    from kubeloop.client import Client
    from kubeloop.objects.meta import JsonObject


DEFINITIONS = "apiextensions.k8s.io/v1/customresourcedefinitions"
DEFINITION = f"{PLURAL}.{GROUP}"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UninstallSurvey:
    """The findings.

    watches: the installation's namespaces, empty for all. variables: its operator's, if it has one.
    needed_by: why the definition cannot go, for people; empty if it can. has_definition: whether
    there is one that was installed with the programs.
    """

    namespace: str
    watches: tuple[str, ...]
    elastiservices: tuple[JsonObject, ...]
    objects: tuple[InstalledObject, ...]
    has_definition: bool
    needed_by: str = ""
    foreign_definition: bool = False
    helm_release: str = ""
    variables: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def is_done(self, *, keep: bool) -> bool:
        """Whether nothing is left to remove; to let go of, where ElastiServices are kept."""
        if self.objects:
            return False
        if keep:
            return not any(map(is_held, self.elastiservices))
        goes = self.has_definition and not self.needed_by
        return not (self.elastiservices or goes)


async def survey(client: Client, namespace: str, *, wake_only: bool = False) -> UninstallSurvey:
    """Read an installation; with `wake_only` none of its objects, which then stay. Raises KubeError."""
    ours = await installed_operator(client, namespace)
    others = [item for item in await installed_operators(client) if item.namespace != namespace]
    watches = ours.watches if ours else ()
    everywhere = await list_elastiservices(client, ())
    objects = [] if wake_only else [item async for item in objects_of(client, namespace, watches)]
    mine = await _mine(client, ours, others, everywhere)
    definition = await _definition(client)
    labels = (definition or {}).get("metadata", {}).get("labels") or {}
    foreign = definition is not None and labels.get("app.kubernetes.io/managed-by") != MANAGED_BY
    return UninstallSurvey(
        namespace=namespace,
        watches=watches,
        elastiservices=tuple(mine),
        objects=tuple(objects),
        has_definition=definition is not None and not foreign,
        needed_by=_needed_by(others, everywhere, mine),
        foreign_definition=foreign,
        helm_release=ours.helm_release if ours else "",
        variables=ours.variables if ours else {},
    )


async def _mine(
    client: Client,
    ours: InstalledOperator | None,
    others: list[InstalledOperator],
    everywhere: list[JsonObject] | None,
) -> list[JsonObject]:
    """Return the ElastiServices that end with this installation."""
    if ours is not None and ours.watches:
        return await list_elastiservices(client, ours.watches) or []
    if ours is None and others:
        return []
    return everywhere or []


async def _definition(client: Client) -> JsonObject | None:
    try:
        return await client.resource(DEFINITIONS).get(DEFINITION)
    except (NotFound, Forbidden):
        return None


def _needed_by(
    others: list[InstalledOperator], everywhere: list[JsonObject] | None, mine: list[JsonObject]
) -> str:
    if others:
        places = ", ".join(sorted(item.namespace for item in others))
        return f"another installation needs it (namespace {places})"
    if everywhere is None:
        return "you may not list the ElastiServices of all namespaces"
    known = {key_of(es) for es in mine}
    left = [es for es in everywhere if key_of(es) not in known]
    if not left:
        return ""
    return f"ElastiServices outside of this installation would be lost with it: {name_some(left)}"


def refusal(survey: UninstallSurvey, *, keep: bool) -> Failure | None:
    """Return why nothing may be removed: others would lose what is theirs, or Helm does it."""
    if release := survey.helm_release:
        return Failure(
            f"Elasti in namespace {survey.namespace} is the Helm release {release}",
            remedy=f"helm uninstall {release} --namespace {survey.namespace}\n"
            "It wakes every target first, and keeps the ElastiServices and their definition.",
        )
    if keep or not survey.has_definition or not survey.needed_by:
        return None
    return Failure(
        f"the CustomResourceDefinition cannot be removed: {survey.needed_by}",
        remedy="Keep it, and all ElastiServices: --keep-crd",
    )


def sleeps(es: JsonObject) -> bool:
    """Whether the resolver may be in the way of its traffic, or its pods doze."""
    status = es.get("status") or {}
    return status.get("state", "") not in ("", State.SERVE) or bool(status.get("doze"))


def announcement(survey: UninstallSurvey, *, keep: bool) -> Iterator[str]:
    """Yield what will happen, a line for each thing."""
    yield f"This removes Elasti from namespace {survey.namespace}:"
    count = len(survey.elastiservices)
    asleep = sum(map(sleeps, survey.elastiservices))
    if count:
        fate = "kept, with their targets awake" if keep else "deleted"
        woken = f" (asleep or dozing, and woken first: {asleep})" if asleep else ""
        yield f"  ElastiServices {fate}: {count}{woken}"
    if survey.objects:
        yield f"  {len(survey.objects)} objects: operator, resolver, their Services and rights"
    if survey.has_definition:
        yield f"  the CustomResourceDefinition {'is kept' if keep else 'goes last'}"
    elif survey.foreign_definition:
        yield "  the CustomResourceDefinition is kept: `elasti install` did not make it"
    if count and not keep:
        yield "To restore them later, save them first:"
        yield "  kubectl get elastiservices -A -o yaml > elastiservices.yaml"
