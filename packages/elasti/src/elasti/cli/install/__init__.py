"""`elasti install`."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from elasti.cli.install.choices import install_options
from elasti.cli.options import cluster_options, timeout_option

if TYPE_CHECKING:
    from elasti.cli.install.choices import Choices
    from elasti.cli.options import AccessOptions


@click.command("install")
@install_options
@cluster_options
@click.option("--dry-run", is_flag=True, help="Ask the server, show what would change, do nothing.")
@click.option("--no-wait", is_flag=True, help="Do not wait until operator and resolver run.")
@timeout_option(180.0, "How long to wait")
def command(
    *,
    choices: Choices,
    access: AccessOptions,
    dry_run: bool,
    no_wait: bool,
    timeout: float,
) -> None:
    """Install or upgrade Elasti in a cluster: definition, rights, operator, resolver.

    Everything is applied by the server (field manager `elasti`), as `elasti manifests` prints it.
    Called again, with another image or other options, it changes what is different and removes what is
    no longer needed; pods are replaced one by one. Options that are left out are the defaults again. What
    would be refused is found before anything has changed.

    \b
    Examples:
      elasti install --image registry.example.com/elasti:1
      elasti install --image registry.example.com/elasti:2 --dry-run
      elasti install --namespaced --watch-namespace shop --no-crd
    """
    import asyncio

    from elasti.cli.install.installer import Installer
    from elasti.cli.progress import Progress
    from elasti.cli.running import connected, run_to_end

    progress = Progress()

    async def job() -> None:
        async with connected(access) as client:
            installing = Installer(client, choices, progress)
            if dry_run:
                await installing.ask()
                return
            try:
                await installing.install(wait=None if no_wait else timeout)
            except asyncio.CancelledError:
                progress.say("Stopped half-way. Call again to go on.")
                raise
        progress.say(f"Elasti is installed in namespace {choices.namespace}. See: elasti doctor")

    run_to_end(job)
