"""`elasti install`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from elasti.api.names import NAMESPACE
from elasti.cli.install.flags import choices_of, install_options, merged, written
from elasti.cli.options import cluster_options, timeout_option

if TYPE_CHECKING:
    from elasti.cli.cluster import AccessOptions
    from elasti.cli.install.choices import InstallOptions


@click.command("install")
@install_options
@cluster_options
@click.option("--reset", is_flag=True, help="Start from the defaults; drop earlier options.")
@click.option("--from-helm", is_flag=True, help="Adopt a Helm release; Helm no longer manages it.")
@click.option(
    "--dry-run",
    is_flag=True,
    help="Show what would change, checked by the server, and change nothing.",
)
@click.option("--no-wait", is_flag=True, help="Do not wait until operator and resolver run.")
@timeout_option(180.0, "How long to wait")
def command(*, no_wait: bool, timeout: float, **given: Any) -> None:
    """Install or upgrade Elasti in a cluster: definition, rights, operator, resolver.

    It applies the objects that `elasti manifests` prints, by server-side apply (field manager `elasti`). Run
    again, it keeps the options of the current installation, except those given now (--reset keeps none). It shows
    each change, makes it, and removes objects that are no longer needed; pods are replaced one by one. Objects
    that the server would refuse are found before anything changes.

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
    from elasti.cli.rendering import Progress
    from elasti.cli.running import connected

    progress = Progress()
    async with connected(access) as client:
        previous = await installed_operator(client, namespace)
        wanted = merged(previous.options, options) if previous and not reset else options
        given = written(options)
        if "shared_port" not in wanted and await replaces_kubeelasti(client, namespace):
            progress.say(
                "KubeElasti is installed: its shared port stays open (--no-shared-port closes it)."
            )
            wanted = {**wanted, "shared_port": True}
        if "default_triggers" not in wanted and await keeps_without_triggers(client, previous):
            # In this cluster an object without triggers never slept by itself, and must not start now.
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
            progress.say("Stopped half-way. Run it again to continue.")
            raise
    where = "" if namespace == NAMESPACE else f" --elasti-namespace {namespace}"
    progress.say(f"Elasti is installed in namespace {namespace}. See: elasti doctor{where}")
