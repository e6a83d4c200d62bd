"""`elasti enable`: from a workload to a Service that may sleep, in one command.

It finds the Service by its selector and the autoscaler by its target, creates the ElastiService, and prints each
decision with its reason. If a decision is ambiguous, it lists the choices. It never changes an existing ElastiService.
The operator reports whether the installation has default triggers.
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any

import click

from elasti.api.names import ELASTISERVICES
from elasti.cli.exits import ExitCode, Failure
from elasti.cli.options import cluster_options, namespace_option, span, timeout_option
from elasti.cli.options import name as object_name
from elasti.cli.rendering import duration, echo, render

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasti.api.types import ElastiService
    from elasti.cli.cluster import AccessOptions
    from elasti.operator.enrolment.finder import WorkloadRef
    from kubeloop.client import Client
    from kubeloop.objects.core import Service
    from kubeloop.objects.meta import JsonObject

_KINDS = {
    "Deployment": ("deployment", "deployments", "deployments.apps", "deployment.apps", "deploy"),
    "StatefulSet": ("statefulset", "statefulsets", "statefulsets.apps", "statefulset.apps", "sts"),
}
_LONGEST = 604_800


def _workload(text: str) -> WorkloadRef:
    from elasti.operator.enrolment.finder import WorkloadRef

    word, slash, rest = text.partition("/")
    for kind, words in _KINDS.items():
        if slash and word.lower() in words:
            return WorkloadRef(kind, object_name(rest))
    raise click.BadParameter(f"{text!r} is not a workload; write deployment/web or statefulset/web")


def _seconds(text: str) -> int:
    seconds = round(span(text))
    if not 1 <= seconds <= _LONGEST:
        raise click.BadParameter(f"{text!r} is not between 1s and 168h")
    return seconds


def _names(text: str) -> list[str]:
    return [object_name(name) for name in dict.fromkeys(text.split(","))] if text else []


@click.command("enable")
@click.argument("workload", metavar="KIND/NAME", required=False, type=_workload)
@namespace_option()
@click.option(
    "--after",
    metavar="DURATION",
    type=_seconds,
    help="Let it sleep after this long without use.  [default: 15m]",
)
@click.option(
    "--service",
    metavar="NAME",
    type=object_name,
    help="The Service whose traffic wakes it, if several select its pods.",
)
@click.option(
    "--with",
    "needs",
    metavar="NAME,...",
    type=_names,
    default="",
    help="What belongs to it, such as postgres,worker. An ElastiService wakes before it and does not sleep before it;"
    " a Deployment or StatefulSet without a Service sleeps and wakes with it.",
)
@click.option(
    "--observe", is_flag=True, help="Only observe it: report what Elasti would do, without scaling."
)
@click.option(
    "--observed",
    is_flag=True,
    help="Instead of a workload: enable sleep for every observed ElastiService whose verdict is Recommended.",
)
@click.option(
    "-l",
    "--selector",
    default="",
    help="With --observed, those with these labels, such as team=shop, of their own or of their Service or namespace.",
)
@click.option(
    "-A", "--all-namespaces", "everywhere", is_flag=True, help="With --observed, all namespaces."
)
@click.option("--yes", is_flag=True, help="With --observed, do not ask.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Print the ElastiService, checked by the server, and change nothing.",
)
@timeout_option(10.0, "How long to wait for the operator's first report")
@cluster_options
def command(*, workload: WorkloadRef | None, access: AccessOptions, **options: Any) -> None:
    """Let a Deployment or StatefulSet sleep while it is not used.

    The Service is the one whose selector matches the workload's pods. If several match, they are listed; choose one
    with --service. An HPA or ScaledObject of the workload becomes its autoscaler. The ElastiService has the
    workload's name; an existing one is not changed. It leaves out triggers, which means those of the
    installation. If the installation has no triggers, the command prints how to add one.

    \b
    Examples:
      elasti enable deployment/web
      elasti enable statefulset/db -n shop --after 1h
      elasti enable deployment/api -n shop --with db,worker --dry-run
      elasti enable deployment/web --dry-run > web.yaml
      elasti enable deployment/web --observe
      elasti enable --observed -A -l team=shop
    """
    from elasti.cli.enable_observed import enable_observed
    from elasti.cli.running import run_to_end

    names = ("observed", "selector", "yes", "everywhere")
    observed, selector, yes, everywhere = (options.pop(name) for name in names)
    if (workload is not None) == observed:
        raise click.UsageError("give a workload such as deployment/web, or --observed")
    if observed:
        where, dry_run = "" if everywhere else options["namespace"], options["dry_run"]
        run_to_end(
            lambda: enable_observed(
                access, namespace=where, selector=selector, yes=yes, dry_run=dry_run
            )
        )
    elif selector or yes or everywhere:
        raise click.UsageError("-l, -A and --yes need --observed")
    else:
        assert workload is not None
        run_to_end(lambda: _enable(workload, access, **options))


async def _enable(
    workload: WorkloadRef,
    access: AccessOptions,
    *,
    namespace: str | None,
    after: int | None,
    service: str | None,
    needs: list[str],
    observe: bool,
    dry_run: bool,
    timeout: float,
) -> None:
    """Create the ElastiService. Raises Failure and KubeError."""
    from elasti.api.defaults import COOLDOWN
    from elasti.api.names import CLI_FIELD_MANAGER
    from elasti.api.observed import policy_patch
    from elasti.cli.elastiservices import ElastiServices
    from elasti.cli.running import connected
    from kubeloop.client.errors import NotFound
    from kubeloop.objects.core import SERVICES, Service

    async with connected(access) as client:
        where = namespace or client.namespace
        present = await ElastiServices(client, where).all()
        try:
            found = await client.resource(workload.resource).get(workload.name, namespace=where)
        except NotFound:
            message = f"there is no {workload} in namespace {where}; choose another with -n"
            raise Failure(message, code=ExitCode.NOT_FOUND) from None
        labels = found["spec"]["template"]["metadata"].get("labels") or {}
        services = await client.resource(SERVICES, Service).items(namespace=where).to_list()
        refs = ((es.spec.scale_target_ref, es.spec.service) for es in present)
        known = (of for ref, of in refs if (ref.kind, ref.name) == workload)
        named = service or next(known, None)
        chosen, why = choose_service(workload, labels, services, named, namespace=where)
        if there := already_there(workload, chosen, present, after, namespace=where):
            echo(there)
            return
        echo(f"Service {chosen}: {why}", err=True)
        autoscaler = await _autoscaler(client, where, workload)
        cooldown = COOLDOWN if after is None else after
        echo(f"cooldown {duration(cooldown)}: it may sleep after this long without use", err=True)
        if autoscaler is None and (replicas := found["spec"].get("replicas", 1)) > 1:
            echo(f"{replicas} replicas: it wakes with 1 unless wake.replicas is Previous", err=True)
        apart = await _apart(client, where, needs, {es.metadata.name for es in present}, services)
        body = _elastiservice(
            workload, where, chosen, cooldown, autoscaler, needs=needs, workers=apart
        )
        if observe:
            body["spec"] |= policy_patch(observe=True)["spec"]
        await client.resource(ELASTISERVICES).create(
            body, namespace=where, field_manager=CLI_FIELD_MANAGER, dry_run=dry_run
        )
        if dry_run:
            echo(render(body, "yaml"), nl=False)
            echo("accepted by the server; nothing was changed (dry run)", err=True)
            return
        echo(f"elastiservice/{workload.name} created")
        await _report(client, where, workload.name, timeout)


def choose_service(
    workload: WorkloadRef,
    labels: dict[str, str],
    services: Sequence[Service],
    named: str | None,
    *,
    namespace: str,
) -> tuple[str, str]:
    """Return the name of the Service that selects a workload's pods, and the reason. Raises Failure."""
    from elasti.operator.enrolment.finder import is_private, services_of

    refused = services_of(labels, services)
    usable = [name for name, finding in refused.items() if finding is None]
    problems = "".join(f"\n  {finding.message}" for finding in refused.values() if finding)
    if named is not None:
        if named in usable:
            return named, "named by --service, and its selector matches the pods"
        if found := refused.get(named):
            raise Failure(found.message)
        there = ", ".join(refused) or "none"
        raise Failure(
            f"no Service {named} in namespace {namespace} selects the pods of {workload}"
            f" ({_pairs(labels)}); these do: {there}",
            code=ExitCode.NOT_FOUND,
        )
    if len(usable) == 1:
        others = f"; not usable:{problems}" if problems else ""
        why = f"the only Service that selects the pods of {workload} ({_pairs(labels)}){others}"
        return usable[0], why
    if usable:
        base = f"elasti enable {workload} -n {namespace} --service"
        raise Failure(
            f"{len(usable)} Services select the pods of {workload}; name the one whose traffic wakes it",
            remedy="".join(f"  {base} {name}\n" for name in sorted(usable)).rstrip(),
        )
    if problems:
        raise Failure(f"no Service of {workload} can be used", remedy=problems.strip("\n"))
    raise Failure(
        f"no Service in namespace {namespace} selects the pods of {workload} ({_pairs(labels)})",
        code=ExitCode.NOT_FOUND,
        remedy=f"Create one: kubectl expose {workload} -n {namespace} --port=80 --target-port=<the pods' port>"
        + "".join(
            f"\n  Service {s.metadata.name} selects {_pairs(s.spec.selector)}"
            for s in services
            if s.spec.selector and not is_private(s)
        ),
    )


def _pairs(labels: dict[str, str]) -> str:
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or "no labels"


def already_there(
    workload: WorkloadRef,
    service: str,
    present: Sequence[ElastiService],
    after: int | None,
    *,
    namespace: str,
) -> str:
    """Return a message if the same ElastiService exists already, else "".

    Raises Failure if a different one exists.
    """
    for es in present:
        name, ref = es.metadata.name, es.spec.scale_target_ref
        same = (ref.kind, ref.name, es.spec.service) == (*workload, service)
        if same and after in (None, round(es.spec.cooldown)):
            return f"elastiservice/{name} exists already, for {workload} and Service {service}"
        if same:
            patch = shlex.quote(json.dumps({"spec": {"cooldownPeriod": after}}))
            raise Failure(
                f"ElastiService {name} exists already, with a cooldown of"
                f" {duration(es.spec.cooldown)}; it is not changed",
                remedy="To change it: kubectl patch elastiservice"
                f" {name} -n {namespace} --type merge -p {patch}",
            )
        if name == workload.name or es.spec.service == service:
            raise Failure(
                f"ElastiService {name} exists already, for {ref.kind.lower()}/{ref.name} and Service"
                f" {es.spec.service}; it is not changed",
                remedy=f"See it: elasti describe {name} -n {namespace}",
            )
    return ""


async def _autoscaler(client: Client, namespace: str, workload: WorkloadRef) -> JsonObject | None:
    """Return the workload's autoscaler, in the form of the spec. Raises KubeError."""
    from elasti.operator.enrolment.finder import autoscalers_in

    def forbidden(resource: str) -> None:
        echo(f"autoscaler: {resource} may not be listed; name one in spec.autoscaler", err=True)

    if (found := (await autoscalers_in(client, namespace, forbidden)).get(workload)) is not None:
        echo(f"autoscaler {found['type']}/{found['name']}: it scales {workload}", err=True)
    return found


async def _apart(
    client: Client,
    namespace: str,
    names: Sequence[str],
    known: set[str],
    services: Sequence[Service],
) -> list[WorkloadRef]:
    """Return the names that are workloads instead of ElastiServices. Raises Failure and KubeError."""
    from elasti.operator.enrolment.finder import KINDS, WorkloadRef, leads_to
    from kubeloop.client.errors import NotFound

    workers = []
    for name in names:
        if name in known:
            echo(f"{name}: an ElastiService, which wakes before it (dependsOn)", err=True)
            continue
        for one in (WorkloadRef(kind, name) for kind in KINDS):
            try:
                found = await client.resource(one.resource).get(name, namespace=namespace)
            except NotFound:
                continue
            labels = found["spec"]["template"]["metadata"].get("labels") or {}
            serving = (s.metadata.name for s in services if leads_to(s, labels))
            if (service := next(serving, None)) is not None:
                raise Failure(
                    f"--with names {name}, which Service {service} leads to: its connections would be refused"
                    " while it sleeps",
                    remedy=f"Enable it first: elasti enable {one} -n {namespace}",
                )
            echo(f"{one}: without a Service, so it sleeps and wakes with it (targets)", err=True)
            workers.append(one)
            break
        else:
            raise Failure(
                f"--with names {name}, and namespace {namespace} has no ElastiService, Deployment or"
                " StatefulSet of that name",
                code=ExitCode.NOT_FOUND,
            )
    return workers


def _elastiservice(
    workload: WorkloadRef,
    namespace: str,
    service: str,
    cooldown: int,
    autoscaler: JsonObject | None,
    *,
    needs: Sequence[str] = (),
    workers: Sequence[WorkloadRef] = (),
) -> JsonObject:
    from elasti.api.names import API_VERSION, KIND

    target = {"apiVersion": "apps/v1", "kind": workload.kind, "name": workload.name}
    spec: JsonObject = {"service": service, "scaleTargetRef": target, "cooldownPeriod": cooldown}
    if autoscaler is not None:
        spec["autoscaler"] = autoscaler
    named = {one.name for one in workers}
    if needed := [{"name": name} for name in needs if name not in named]:
        spec["dependsOn"] = needed
    if workers:
        spec["targets"] = [
            {"apiVersion": "apps/v1", "kind": one.kind, "name": one.name} for one in workers
        ]
    metadata = {"name": workload.name, "namespace": namespace}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


async def _report(client: Client, namespace: str, name: str, timeout: float) -> None:
    """Print the operator's first report. Raises Failure and KubeError."""
    import asyncio

    from elasti.api.conditions import READY, TRIGGERS_HEALTHY, Reason
    from elasti.api.triggers.registry import self_sufficient_type
    from elasti.cli.elastiservices import watch_elastiservices

    try:
        async with (
            asyncio.timeout(timeout),
            watch_elastiservices(client, namespace, name) as changes,
        ):
            while not (es := (await changes.next()).es).status.conditions:
                continue
    except TimeoutError:
        echo("no operator has reported on it yet; elasti doctor says why", err=True)
        return
    found = {condition.type: condition for condition in es.status.conditions}
    if found[READY].status == "False":
        raise Failure(
            f"{name} cannot sleep: {found[READY].message}",
            remedy=f"See more: elasti describe {name} -n {namespace}",
        )
    if found[TRIGGERS_HEALTHY].reason in (Reason.NO_TRIGGERS, Reason.NO_DEFAULT_TRIGGERS):
        patch = shlex.quote(json.dumps({"spec": {"triggers": [{"type": self_sufficient_type()}]}}))
        echo(
            "It does not sleep by itself yet: the installation has no default triggers, so nothing shows"
            " that it is idle.\nAdd a trigger. This one needs nothing else (the guide lists all):\n"
            f"  kubectl patch elastiservice {name} -n {namespace} --type merge -p {patch}"
        )
        return
    echo(f"Elasti watches it now; elasti describe {name} -n {namespace} shows what keeps it awake")
