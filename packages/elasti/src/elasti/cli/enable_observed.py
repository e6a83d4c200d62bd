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
        where = namespace or client.namespace
        objects = ElastiServices(client, where)
        observed = [es for es in await objects.all(selector) if es.spec.observes]
        chosen = [es for es in observed if recommended(es)]
        rest = len(observed) - len(chosen)
        if not chosen:
            raise Failure(
                ExitCode.NOT_FOUND,
                f"no observed ElastiService of namespace {where} is recommended"
                f" ({counted(rest, 'other')} observed); nothing was changed",
                remedy=f"See why: elasti report --observe -n {where}",
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
            raise Failure(ExitCode.FAILED, "nothing was changed")
        for es in chosen:
            await objects.patch(es.metadata.name, MergePatch(policy_patch(observe=False)))
            echo(f"{es.metadata.name} may sleep")
