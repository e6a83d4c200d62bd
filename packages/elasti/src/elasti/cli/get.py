"""`elasti get`: the ElastiServices of a cluster, and why they are not asleep."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from elasti.cli.options import (
    cluster_options,
    elasti_namespace_option,
    names_argument,
    namespace_option,
    output_option,
)

if TYPE_CHECKING:
    from elasti.cli.options import AccessOptions


@click.command("get")
@names_argument(required=False)
@namespace_option
@click.option("-A", "--all-namespaces", "everywhere", is_flag=True, help="All namespaces.")
@output_option("table", "wide", "json", "yaml", "name")
@click.option("-w", "--watch", is_flag=True, help="Go on and print what changes, until Ctrl-C.")
@elasti_namespace_option
@cluster_options
def command(
    *,
    names: tuple[str, ...],
    namespace: str | None,
    everywhere: bool,
    output: str,
    watch: bool,
    elasti_namespace: str,
    access: AccessOptions,
) -> None:
    """Show ElastiServices: mode, target, held connections, last wake, why not asleep.

    HELD is asked of the resolvers through the API server's proxy to pods, which needs the right `get
    pods/proxy` in Elasti's namespace; where one of them cannot be reached it is `-`, and a line on
    standard error says why. Everything else is what the operator reports in status.

    \b
    Examples:
      elasti get
      elasti get web -o wide
      elasti get -A --watch
      elasti get -A -o json | jq -r '.[] | select(.mode == "serve") | .whyNotAsleep.reason'
    """
    from elasti.cli.get_run import GetQuery, show, watch_changes
    from elasti.cli.running import run_to_end, run_until_interrupted

    if names and everywhere:
        raise click.UsageError("give either names or --all-namespaces, not both")
    wanted = GetQuery(
        names=names,
        namespace=namespace,
        everywhere=everywhere,
        output=output,
        elasti_namespace=elasti_namespace,
    )
    if watch:
        run_until_interrupted(lambda: watch_changes(access, wanted, say=click.echo))
    else:
        run_to_end(lambda: show(access, wanted, say=click.echo))
