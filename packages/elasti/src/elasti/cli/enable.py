"""`elasti enable`: from a workload to a Service that may sleep, in one command.

It finds the Service by its selector and the autoscaler by its target, writes the ElastiService, and says what
it decided and why. What is ambiguous is answered with the choices, and an ElastiService that is there is
never changed. Whether the installation has triggers of its own is the operator's to know: it reports.
"""

from __future__ import annotations

import json
import shlex
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from elasti.cli.exits import ExitCode, Failure
from elasti.cli.options import AccessOptions, cluster_options, namespace_option, timeout_option
from elasti.cli.options import name as object_name
from elasti.cli.rendering import duration, echo, render

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasti.api.types import ElastiService
    from kubeloop.client import Client
    from kubeloop.objects.core import Service
    from kubeloop.objects.meta import JsonObject

_KINDS = {
    "Deployment": ("deployment", "deployments", "deployments.apps", "deployment.apps", "deploy"),
    "StatefulSet": ("statefulset", "statefulsets", "statefulsets.apps", "statefulset.apps", "sts"),
}
_LONGEST = 604_800
_AUTOSCALERS = (
    ("hpa", "autoscaling/v2/horizontalpodautoscalers"),
    ("keda", "keda.sh/v1alpha1/scaledobjects"),
)


class WorkloadRef(NamedTuple):
    """What is to sleep."""

    kind: str
    name: str

    def __str__(self) -> str:
        return f"{self.kind.lower()}/{self.name}"

    @property
    def resource(self) -> str:
        """Its resource."""
        return f"apps/v1/{self.kind.lower()}s"


def _workload(_ctx: click.Context, _param: click.Parameter, text: str) -> WorkloadRef:
    word, slash, rest = text.partition("/")
    for kind, words in _KINDS.items():
        if slash and word.lower() in words:
            return WorkloadRef(kind, object_name(rest))
    raise click.BadParameter(f"{text!r} is no workload; write deployment/web or statefulset/web")


def _seconds(_ctx: click.Context, _param: click.Parameter, text: str | None) -> int | None:
    from elasti.api.parsing import parse_duration

    if text is None:
        return None
    try:
        seconds = round(parse_duration(text))
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(str(error)) from error
    if not 1 <= seconds <= _LONGEST:
        raise click.BadParameter(f"{text!r} is not between 1s and 168h")
    return seconds


@click.command("enable")
@click.argument("workload", metavar="KIND/NAME", callback=_workload)
@namespace_option()
@click.option(
    "--after",
    metavar="DURATION",
    callback=_seconds,
    help="Let it sleep after so long without use, such as 15m, which is the default.",
)
@click.option(
    "--service",
    metavar="NAME",
    type=object_name,
    help="The Service whose traffic wakes it, where several lead to it.",
)
@click.option(
    "--dry-run", is_flag=True, help="Let the server check it, print it, and change nothing."
)
@timeout_option(10.0, "How long to wait for the operator's first report")
@cluster_options
def command(*, workload: WorkloadRef, access: AccessOptions, **options: Any) -> None:
    """Let a Deployment or StatefulSet sleep while it is not used.

    The Service is the one whose selector matches the workload's pods; where several do, they are listed, and
    --service names one. An HPA or ScaledObject of the workload is named as its autoscaler. The result is an
    ElastiService of the workload's name; one that is there is not changed. Its triggers are left out, which
    means those of the installation; where it has none, what to add is printed.

    \b
    Examples:
      elasti enable deployment/web
      elasti enable statefulset/db -n shop --after 1h
      elasti enable deployment/web --dry-run > web.yaml
    """
    from elasti.cli.running import run_to_end

    run_to_end(lambda: _enable(workload, access, **options))


async def _enable(
    workload: WorkloadRef,
    access: AccessOptions,
    *,
    namespace: str | None,
    after: int | None,
    service: str | None,
    dry_run: bool,
    timeout: float,
) -> None:
    """Write the ElastiService. Raises Failure and KubeError."""
    from elasti.api.defaults import COOLDOWN
    from elasti.api.names import CLI_FIELD_MANAGER
    from elasti.cli.elastiservices import RESOURCE, ElastiServices
    from elasti.cli.running import connected
    from kubeloop.client.errors import NotFound
    from kubeloop.objects.core import SERVICES, Service

    async with connected(access) as client:
        where = namespace or client.namespace
        present = await ElastiServices(client, where).all()
        try:
            found = await client.resource(workload.resource).get(workload.name, namespace=where)
        except NotFound:
            message = f"there is no {workload} in namespace {where}; -n names another"
            raise Failure(ExitCode.NOT_FOUND, message) from None
        labels = found["spec"]["template"]["metadata"].get("labels") or {}
        listed = client.resource(SERVICES, Service).items(namespace=where)
        refs = ((es.spec.scale_target_ref, es.spec.service) for es in present)
        known = (of for ref, of in refs if (ref.kind, ref.name) == workload)
        named = service or next(known, None)
        chosen, why = choose_service(
            workload, labels, [item async for item in listed], named, namespace=where
        )
        if there := already_there(workload, chosen, present, after, namespace=where):
            echo(there)
            return
        echo(f"Service {chosen}: {why}", err=True)
        autoscaler = await _autoscaler(client, where, workload)
        cooldown = COOLDOWN if after is None else after
        echo(f"cooldown {duration(cooldown)}: it may sleep after so long without use", err=True)
        body = _elastiservice(workload, where, chosen, cooldown, autoscaler)
        await client.resource(RESOURCE).create(
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
    """Return the name of the Service that leads to a workload, and why that one. Raises Failure."""
    from elasti.api.names import PRIVATE_LABEL
    from elasti.operator.report.conditions import refusal, service_findings

    public = [s for s in services if PRIVATE_LABEL not in (s.metadata.labels or {})]
    leading = [s for s in public if s.spec.selector and s.selects(labels)]
    refused = {s.metadata.name: refusal(service_findings(s)) for s in leading}
    usable = [name for name, finding in refused.items() if finding is None]
    problems = "".join(f"\n  {finding.message}" for finding in refused.values() if finding)
    if named is not None:
        if named in usable:
            return named, "named by --service, and its selector matches the pods"
        if found := refused.get(named):
            raise Failure(ExitCode.FAILED, found.message)
        there = ", ".join(refused) or "none"
        raise Failure(
            ExitCode.NOT_FOUND,
            f"no Service {named} in namespace {namespace} selects the pods of {workload}"
            f" ({_pairs(labels)}); these do: {there}",
        )
    if len(usable) == 1:
        others = f"; not usable:{problems}" if problems else ""
        return usable[0], f"it alone selects the pods of {workload} ({_pairs(labels)}){others}"
    if usable:
        base = f"elasti enable {workload} -n {namespace} --service"
        raise Failure(
            ExitCode.FAILED,
            f"{len(usable)} Services select the pods of {workload}; name the one whose traffic wakes it",
            remedy="".join(f"  {base} {name}\n" for name in sorted(usable)).rstrip(),
        )
    if problems:
        raise Failure(
            ExitCode.FAILED, f"no Service of {workload} can be used", remedy=problems.strip("\n")
        )
    raise Failure(
        ExitCode.NOT_FOUND,
        f"no Service in namespace {namespace} selects the pods of {workload} ({_pairs(labels)})",
        remedy=f"Make one: kubectl expose {workload} -n {namespace} --port=80 --target-port=<the pods' port>"
        + "".join(
            f"\n  Service {s.metadata.name} selects {_pairs(s.spec.selector)}"
            for s in public
            if s.spec.selector
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
    """Return what to say where the ElastiService is there already; "" where it is not.

    Raises Failure where one is there that is another.
    """
    from elasti.api.defaults import cooldown_of

    for es in present:
        name, ref = es.metadata.name, es.spec.scale_target_ref
        same = (ref.kind, ref.name, es.spec.service) == (*workload, service)
        if same and after in (None, round(cooldown_of(es.spec))):
            return f"elastiservice/{name} is there already, for {workload} and Service {service}"
        if same:
            patch = shlex.quote(json.dumps({"spec": {"cooldownPeriod": after}}))
            raise Failure(
                ExitCode.FAILED,
                f"ElastiService {name} is there already, with a cooldown of"
                f" {duration(cooldown_of(es.spec))}; it is not changed",
                remedy="To change it: kubectl patch elastiservice"
                f" {name} -n {namespace} --type merge -p {patch}",
            )
        if name == workload.name or es.spec.service == service:
            raise Failure(
                ExitCode.FAILED,
                f"ElastiService {name} is there already, for {ref.kind.lower()}/{ref.name} and Service"
                f" {es.spec.service}; it is not changed",
                remedy=f"See it: elasti describe {name} -n {namespace}",
            )
    return ""


async def _autoscaler(client: Client, namespace: str, workload: WorkloadRef) -> JsonObject | None:
    """Return what owns the workload's replicas, as the ElastiService names it. Raises KubeError."""
    from kubeloop.client.errors import Forbidden, NotFound

    for kind, resource in _AUTOSCALERS:
        try:
            items = [item async for item in client.resource(resource).items(namespace=namespace)]
        except NotFound:
            continue  # not installed
        except Forbidden:
            echo(f"autoscaler: {resource} may not be listed; name one in spec.autoscaler", err=True)
            continue
        for item in items:
            ref = item["spec"].get("scaleTargetRef") or {}
            # KEDA's own HPA is KEDA's to keep.
            owners = item["metadata"].get("ownerReferences") or ()
            if any(owner.get("kind") == "ScaledObject" for owner in owners):
                continue
            if (ref.get("kind", "Deployment"), ref.get("name")) == workload:
                name = item["metadata"]["name"]
                echo(f"autoscaler {kind}/{name}: it scales {workload}", err=True)
                return {"type": kind, "name": name}
    return None


def _elastiservice(
    workload: WorkloadRef,
    namespace: str,
    service: str,
    cooldown: int,
    autoscaler: JsonObject | None,
) -> JsonObject:
    from elasti.api.names import API_VERSION, KIND

    target = {"apiVersion": "apps/v1", "kind": workload.kind, "name": workload.name}
    spec: JsonObject = {"service": service, "scaleTargetRef": target, "cooldownPeriod": cooldown}
    if autoscaler is not None:
        spec["autoscaler"] = autoscaler
    metadata = {"name": workload.name, "namespace": namespace}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": metadata, "spec": spec}


async def _report(client: Client, namespace: str, name: str, timeout: float) -> None:
    """Say what the operator makes of it. Raises Failure and KubeError."""
    import asyncio

    from elasti.api.conditions import READY, TRIGGERS_HEALTHY, Reason
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
            ExitCode.FAILED,
            f"{name} cannot sleep: {found[READY].message}",
            remedy=f"See more: elasti describe {name} -n {namespace}",
        )
    if found[TRIGGERS_HEALTHY].reason == Reason.NO_TRIGGERS:
        patch = shlex.quote(json.dumps({"spec": {"triggers": [{"type": "traffic"}]}}))
        echo(
            "It does not sleep by itself yet: the installation has no default triggers, so nothing shows"
            " that it is idle.\nOne that needs nothing else (the guide lists all):\n"
            f"  kubectl patch elastiservice {name} -n {namespace} --type merge -p {patch}"
        )
        return
    echo(
        f"It is watched from now on; elasti describe {name} -n {namespace} says what keeps it awake"
    )
