"""`elasti wake`: a sleeping target, up now."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from elasti.cli.options import cluster_options, names_argument, namespace_option, timeout_option

if TYPE_CHECKING:
    from elasti.cli.options import AccessOptions


@click.command("wake")
@names_argument(required=True)
@namespace_option
@click.option("--wait", is_flag=True, help="Wait until an endpoint is ready.")
@timeout_option(300.0)
@cluster_options
def command(
    *,
    names: tuple[str, ...],
    namespace: str | None,
    wait: bool,
    timeout: float,
    access: AccessOptions,
) -> None:
    """Wake the targets of ElastiServices, as traffic would.

    The request is an annotation on the ElastiService: it survives a change of leaders, and the operator
    takes it away when an endpoint is ready. A target that is up stays up for another cooldown.

    \b
    Examples:
      elasti wake web
      elasti wake web api -n shop --wait --timeout 60
    """
    from elasti.cli.running import run_to_end
    from elasti.cli.wake_sleep import RequestKind, request

    run_to_end(
        lambda: request(
            RequestKind.WAKE,
            names,
            access=access,
            namespace=namespace,
            wait=wait,
            timeout=timeout,
            say=click.echo,
        )
    )
