"""`elasti schedule`: when the schedules of an ElastiService next change what they ask for."""

from __future__ import annotations

import datetime as dt
import itertools
from typing import TYPE_CHECKING

import click

from elasti.cli import options
from elasti.cli.completion import complete_names
from elasti.cli.options import cluster_options, namespace_option, output_option
from elasti.cli.rendering import NOTHING, duration, echo, render, table

if TYPE_CHECKING:
    from elasti.api.types import ElastiService
    from elasti.cli.cluster import AccessOptions

_SHOWN = 10
_HEADS = ("AT", "LOCAL", "IN", "STATE", "SCHEDULE")


@click.command("schedule")
@click.argument("name", type=options.name, shell_complete=complete_names)
@namespace_option()
@output_option("table", "json", "yaml")
@cluster_options
def command(*, name: str, namespace: str | None, output: str, access: AccessOptions) -> None:
    """Show the next ten changes of an ElastiService's schedules.

    The first line is the present state. Awake: the target is kept awake. Asleep: it sleeps unless there is
    traffic. By use: traffic and triggers decide. LOCAL is the time in the zone of the first schedule. With warmBy,
    a change to awake is shown when the wake-up begins. Schedules that cannot be read are named on standard error,
    and keep the target awake.

    \b
    Examples:
      elasti schedule web
      elasti schedule web -n shop -o json | jq -r '.[1].at'
    """
    from elasti.api.schedules import schedule_problems
    from elasti.cli.running import run_to_end

    es = run_to_end(lambda: _get(access, name, namespace))
    for problem in schedule_problems(es.spec.schedules):
        echo(f"Not readable: {problem}", err=True)
    echo(rendered(es, dt.datetime.now(dt.UTC), output), nl=False)


def rendered(es: ElastiService, now: dt.datetime, output: str) -> str:
    """Return the present level and the next changes, in an output format."""
    from elasti.api.schedules import Change, changes, level_at, read_schedule, schedule_lead
    from kubeloop.objects.times import format_time

    schedules, lead = es.spec.schedules, schedule_lead(es)
    if not schedules and output == "table":
        return f"ElastiService {es.metadata.name} has no schedules; spec.schedules adds them.\n"
    present = Change(now, level_at(schedules, now, lead))
    found = [present, *itertools.islice(changes(schedules, now, lead), _SHOWN)]
    words = {"Awake": "awake", "Asleep": "asleep"}
    if output != "table":
        return render(
            [
                {"at": format_time(at), "state": words.get(keep, "by use"), "schedule": by}
                for at, (keep, by) in found
            ],
            output,
        )
    window = read_schedule(schedules[0])
    zone = dt.UTC if isinstance(window, str) else window.zone
    rows = [
        (
            format_time(at),
            f"{at.astimezone(zone):%a %Y-%m-%d %H:%M %Z}",
            "now" if at is now else duration((at - now).total_seconds()),
            words.get(keep, "by use"),
            by or NOTHING,
        )
        for at, (keep, by) in found
    ]
    return table(_HEADS, rows)


async def _get(access: AccessOptions, name: str, namespace: str | None) -> ElastiService:
    from elasti.cli.elastiservices import ElastiServices
    from elasti.cli.running import connected

    async with connected(access) as client:
        return await ElastiServices(client, namespace or client.namespace).get(name)
