"""`elasti install`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from elasti.api.names import NAMESPACE
from elasti.cli.install.flags import choices_of, install_options, merged, written
from elasti.cli.options import AccessOptions, cluster_options, timeout_option

if TYPE_CHECKING:
    from elasti.cli.install.choices import InstallOptions


@click.command("install")
@install_options
@cluster_options
@click.option("--reset", is_flag=True, help="Begin from the defaults; forget earlier options.")
@click.option(
    "--from-helm", is_flag=True, help="Take over a release of the chart; Helm forgets it."
)
@click.option("--dry-run", is_flag=True, help="Ask the server, show what would change, do nothing.")
@click.option("--no-wait", is_flag=True, help="Do not wait until operator and resolver run.")
@timeout_option(180.0, "How long to wait")
def command(*, no_wait: bool, timeout: float, **given: Any) -> None:
    """Install or upgrade Elasti in a cluster: definition, rights, operator, resolver.

    Everything is applied by the server (field manager `elasti`), as `elasti manifests` prints it.
    Called again, it keeps the options of the installation that is there, but for those given now
    (--reset keeps none), shows what will change, changes it and removes what is no longer needed; pods
    are replaced one by one. What would be refused is found before anything has changed.

    \b
    Examples:
      elasti install --image registry.example.com/elasti:1
      elasti install --image registry.example.com/elasti:2 --dry-run
      elasti install --namespaced --watch-namespace shop --no-crd
    """
    from elasti.cli.running import run_to_end

    run_to_end(lambda: _install(wait=None if no_wait else timeout, **given))


async def _install(
    *,
    namespace: str,
    options: InstallOptions,
    reset: bool,
    from_helm: bool,
    access: AccessOptions,
    dry_run: bool,
    wait: float | None,
) -> None:
    import asyncio

    from elasti.cli.install.installer import Installer
    from elasti.cli.install.inventory import (
        installed_operator,
        keeps_without_triggers,
        replaces_kubeelasti,
    )
    from elasti.cli.progress import Progress
    from elasti.cli.running import connected

    progress = Progress()
    async with connected(access) as client:
        previous = await installed_operator(client, namespace)
        wanted = merged(previous.options, options) if previous and not reset else options
        given = written(options)
        if "shared_port" not in wanted and await replaces_kubeelasti(client, namespace):
            progress.say(
                "KubeElasti is here: its shared port stays open (--no-shared-port closes it)."
            )
            wanted = {**wanted, "shared_port": True}
        if "default_triggers" not in wanted and await keeps_without_triggers(client, previous):
            # Here an object without triggers never slept by itself, and must not begin to.
            wanted = {**wanted, "default_triggers": ()}
        if kept := [text for text in written(wanted) if text not in given]:
            progress.say(f"Options kept, without --reset: {' '.join(kept)}")
        if wanted.get("namespaced"):
            progress.say("Kubelets are not read: the trigger network needs a ClusterRole.")
        installing = Installer(
            client,
            choices_of(namespace, wanted),
            progress,
            from_helm=from_helm,
            image_is_named="image" in wanted,
        )
        if dry_run:
            await installing.ask()
            return
        try:
            await installing.install(wait=wait)
        except asyncio.CancelledError:
            progress.say("Stopped half-way. Call again to go on.")
            raise
    where = "" if namespace == NAMESPACE else f" --elasti-namespace {namespace}"
    progress.say(f"Elasti is installed in namespace {namespace}. See: elasti doctor{where}")
