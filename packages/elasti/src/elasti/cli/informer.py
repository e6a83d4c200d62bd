"""`elasti informer`: a shared informer at the command line."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from elasti.cli import options
from elasti.cli.options import cluster_options

if TYPE_CHECKING:
    from elasti.cli.options import AccessOptions


@click.command("informer")
@click.argument("resource")
@click.option(
    "-n",
    "--namespace",
    type=options.namespace,
    default="",
    help="Only this namespace; all by default.",
)
@click.option("-l", "--selector", default="", help="Only objects that match this label selector.")
@click.option("--field-selector", default="", help="Only objects that match this field selector.")
@click.option(
    "--resync",
    type=click.FloatRange(min=0),
    default=30.0,
    show_default=True,
    help="Repeat every object so often, in seconds; 0 never.",
)
@click.option(
    "--period",
    type=click.FloatRange(min=0),
    default=10.0,
    show_default=True,
    help="Say `run` so often, in seconds; 0 never.",
)
@cluster_options
def command(
    *,
    resource: str,
    namespace: str,
    selector: str,
    field_selector: str,
    resync: float,
    period: float,
    access: AccessOptions,
) -> None:
    """Watch RESOURCE and print what happens to it, until Ctrl-C.

    RESOURCE is what kubectl takes: a plural, a singular, a short name, or with its group
    (deployments.apps).

    \b
    Examples:
      elasti informer pods
      elasti informer deploy -n default -l app=web --resync 0
    """
    from elasti.cli.informer_run import WatchScope, follow
    from elasti.cli.running import run_until_interrupted

    scope = WatchScope(resource, namespace, selector, field_selector)
    run_until_interrupted(
        lambda: follow(scope, resync=resync, period=period, access=access, say=click.echo)
    )
