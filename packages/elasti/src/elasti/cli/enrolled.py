"""`elasti enrolled`: which Services are enrolled, which are not, and why."""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import TYPE_CHECKING, NamedTuple

import click

from elasti.api.names import ENROLLED_LABEL, PLURAL, SLEEP_LABEL
from elasti.cli import options
from elasti.cli.rendering import NOTHING, counted, echo, render, table

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator, Mapping

    from elasti.cli.cluster import AccessOptions
    from elasti.operator.enrolment.decide import EnrolmentDecision, Surroundings
    from elasti.operator.enrolment.finder import Workload, WorkloadRef
    from kubeloop.client import Client
    from kubeloop.objects.meta import JsonObject, PartialObjectMetadata

_HEADS = ("NAMESPACE", "SERVICE", "STATE", "TEMPLATE", "WHY")


class EnrolledRow(NamedTuple):
    """One Service that a label concerns."""

    namespace: str
    service: str
    state: str
    template: str
    why: str


@click.command("enrolled")
@options.namespace_option()
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="All namespaces.")
@options.output_option("table", "json", "yaml")
@options.elasti_namespace_option
@options.cluster_options
def command(
    *,
    namespace: str | None,
    everywhere: bool,
    output: str,
    elasti_namespace: str,
    access: AccessOptions,
) -> None:
    """Show which labelled Services are enrolled, which are not, and why.

    STATE is observed, enforced or suspended for a Service with an ElastiService, pending or leaving while the operator
    works, and "left out" if there is a reason against it. The command makes the same decision as the operator,
    with your own rights.

    \b
    Examples:
      elasti enrolled
      elasti enrolled -A -o json | jq -r '.[] | select(.state == "left out") | .why'
    """
    from elasti.cli.running import run_to_end

    rows = run_to_end(lambda: _rows(access, namespace, elasti_namespace, everywhere=everywhere))
    if output != "table":
        echo(render([row._asdict() for row in rows], output), nl=False)
    elif rows:
        echo(table(_HEADS, rows), nl=False)
    else:
        echo(f"No Service or namespace here has the label {SLEEP_LABEL}.")


async def _rows(
    access: AccessOptions, namespace: str | None, elasti_namespace: str, *, everywhere: bool
) -> list[EnrolledRow]:
    """Read the cluster. Raises Failure and KubeError."""
    from elasti.cli.running import connected

    async with connected(access) as client:
        enabled, observe_for = await enrolment_settings(client, elasti_namespace)
        where = "" if everywhere else namespace or client.namespace
        rows: list[EnrolledRow] = []
        async for around in surroundings(client, where, elasti_namespace, observe_for):
            rows += enrolled_rows(around, enabled=enabled)
    if not enabled:
        there = sum(row.state not in ("off", "left out") for row in rows)
        echo(
            f"Enrolment is off in this installation: {counted(there, 'enrolled Service')} stay unchanged."
            " Switch it on: elasti install --enrolment\nOr end it, with every target awake:"
            f" kubectl delete {PLURAL} -A -l {ENROLLED_LABEL}=true",
            err=True,
        )
    return rows


async def surroundings(
    client: Client,
    namespace: str,
    elasti_namespace: str,
    observe_for: float,
    given: Mapping[str, JsonObject] | None = None,
) -> AsyncIterator[Surroundings]:
    """Read a namespace, or one after the other if it is empty. Raises KubeError.

    `given`: templates in the place of the stored ones.
    """
    from kubeloop.objects.meta import PartialObjectMetadata

    namespaces = client.resource("v1/namespaces", PartialObjectMetadata)
    if namespace:
        places = [await namespaces.get(namespace)]
    else:
        places = await namespaces.items().to_list()
    templates = await _templates(client)
    for place in places:
        around = await _around(client, place, templates, elasti_namespace, observe_for)
        yield dataclasses.replace(around, templates={**around.templates, **(given or {})})


def enrolled_rows(around: Surroundings, *, enabled: bool = True) -> Iterator[EnrolledRow]:
    """Yield a row for each Service of a namespace that a label concerns."""
    from elasti.operator.enrolment.decide import Action, decide

    for service in sorted(around.services, key=lambda one: one.metadata.name):
        found = decide(service, around)
        if found.action is not Action.IGNORE:
            state = _state(found) if enabled or found.existing else "off"
            meta, why = service.metadata, found.message or NOTHING
            yield EnrolledRow(meta.namespace, meta.name, state, found.template or NOTHING, why)


def _state(found: EnrolmentDecision) -> str:
    from elasti.operator.enrolment.decide import Action

    if found.existing is None:
        return "pending" if found.action is Action.ENROL else "left out"
    if found.action is Action.REMOVE:
        return "leaving"
    spec = found.existing.spec
    return "observed" if spec.observes else "suspended" if spec.suspended else "enforced"


async def enrolment_settings(client: Client, namespace: str) -> tuple[bool, float]:
    """Return whether the operator enrols, and for how long it observes first; the defaults if that is unknown."""
    from elasti.api.defaults import ENROLMENT_OBSERVE_FOR
    from elasti.api.parsing import parse_bool, parse_seconds
    from elasti.cli.install.inventory import installed_operator
    from kubeloop.client.errors import Forbidden

    try:
        operator = await installed_operator(client, namespace)
        if operator is None:
            return True, ENROLMENT_OBSERVE_FOR
        given = operator.variables
        observed = given.get("ELASTI_ENROLMENT_OBSERVE_FOR", "")
        enabled = parse_bool(given.get("ELASTI_ENROLMENT", "") or "false")
        return enabled, parse_seconds(observed) if observed else ENROLMENT_OBSERVE_FOR
    except (Forbidden, ValueError):
        return True, ENROLMENT_OBSERVE_FOR


async def _templates(client: Client) -> dict[str, JsonObject] | None:
    """Return the templates by name; None if the user may not list them."""
    from elasti.api.names import TEMPLATES
    from kubeloop.client.errors import Forbidden, NotFound

    try:
        found = client.resource(TEMPLATES).items()
        return {one["metadata"]["name"]: one async for one in found}
    except NotFound:
        return {}  # no definition: nothing was ever enrolled
    except Forbidden:
        echo("You may not list ElastiTemplates, so missing ones are not noticed.", err=True)
        return None


async def _around(
    client: Client,
    place: PartialObjectMetadata,
    templates: dict[str, JsonObject] | None,
    elasti_namespace: str,
    observe_for: float,
) -> Surroundings:
    from elasti.cli.elastiservices import ElastiServices
    from elasti.operator.enrolment.decide import Surroundings, template_name
    from elasti.operator.enrolment.finder import KINDS, Workload, WorkloadRef, workload_resource
    from kubeloop.objects.core import SERVICES, Service

    name = place.metadata.name
    services = await client.resource(SERVICES, Service).items(namespace=name).to_list()
    workloads: dict[WorkloadRef, Workload] = {}
    for kind in KINDS:
        listed = client.resource(workload_resource(kind), Workload).items(namespace=name)
        workloads |= {WorkloadRef(kind, one.metadata.name): one async for one in listed}
    if templates is None:
        templates = {template_name(one, place): {"spec": {}} for one in services}
    return Surroundings(
        namespace=place,
        services=services,
        workloads=workloads,
        elastiservices=await ElastiServices(client, name).all(),
        templates=templates,
        own_namespace=elasti_namespace,
        observe_for=observe_for,
        now=dt.datetime.now(dt.UTC).timestamp(),
    )
