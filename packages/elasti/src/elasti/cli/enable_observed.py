"""`elasti enable --observed`: let the observed ElastiServices sleep that the operator recommends."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

import click

from elasti.cli.exits import ExitCode, Failure
from elasti.cli.rendering import counted, echo

if TYPE_CHECKING:
    from elasti.cli.cluster import AccessOptions


async def enable_observed(
    access: AccessOptions, *, namespace: str | None, selector: str, yes: bool, dry_run: bool
) -> None:
    """List the recommended ones, ask, and set policy Enforce. Raises Failure and KubeError."""
    from elasti.api.observed import policy_patch, recommended
    from elasti.cli.elastiservices import ElastiServices
    from elasti.cli.report_content import Report, observed_entry
    from elasti.cli.running import connected
    from kubeloop.objects.patches import MergePatch

    async with connected(access) as client:
        where = client.namespace if namespace is None else namespace
        objects = ElastiServices(client, where)
        found = await (objects.labelled(selector) if selector else objects.all())
        observed = [es for es in found if es.spec.observes]
        chosen = [es for es in observed if recommended(es)]
        rest = len(observed) - len(chosen)
        if not chosen:
            raise Failure(
                f"no observed ElastiService of {f'namespace {where}' if where else 'all namespaces'} is recommended"
                f" ({counted(rest, 'other')} observed); nothing was changed",
                code=ExitCode.NOT_FOUND,
                remedy=f"See why: elasti report --observe{f' -n {where}' if where else ''}",
            )
        entries = [observed_entry(es) for es in chosen]
        report = Report(entries=entries, now=dt.datetime.now(dt.UTC), observe=True)
        echo(report.sheet().rendered("table"), nl=False)
        if rest:
            echo(f"{counted(rest, 'other')} observed and not recommended: unchanged")
        if dry_run:
            echo("nothing was changed (dry run)", err=True)
            return
        if not yes and not click.confirm(f"Let {counted(len(chosen), 'target')} sleep?"):
            raise Failure("nothing was changed")
        for es in chosen:
            own = ElastiServices(client, es.metadata.namespace)
            await own.patch(es.metadata.name, MergePatch(policy_patch(observe=False)))
            echo(f"{f'{es.metadata.namespace}/' if not where else ''}{es.metadata.name} may sleep")
