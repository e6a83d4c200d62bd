"""`elasti sleep`: a target at rest, without waiting for the cooldown."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from elasti.cli.options import cluster_options, names_argument, namespace_option, timeout_option

if TYPE_CHECKING:
    from elasti.cli.options import AccessOptions


@click.command("sleep")
@names_argument(required=True)
@namespace_option
@click.option("--wait", is_flag=True, help="Wait until it is asleep, or refused.")
@timeout_option(120.0)
@cluster_options
def command(
    *,
    names: tuple[str, ...],
    namespace: str | None,
    wait: bool,
    timeout: float,
    access: AccessOptions,
) -> None:
    """Put the targets of ElastiServices to sleep now, without losing a request.

    The rest of the cooldown is skipped, and the triggers are not asked, this once. Everything that
    protects traffic stays: the resolver is put in front first and settles, open connections and arrivals
    keep the target up, other ElastiServices on the same target must agree, spec.enabledPeriod holds,
    KEDA is paused. Where one of them says no, nothing is changed, and --wait tells which.

    \b
    Examples:
      elasti sleep web
      elasti sleep web -n shop --wait
    """
    from elasti.cli.running import run_to_end
    from elasti.cli.wake_sleep import RequestKind, request

    run_to_end(
        lambda: request(
            RequestKind.SLEEP,
            names,
            access=access,
            namespace=namespace,
            wait=wait,
            timeout=timeout,
            say=click.echo,
        )
    )
