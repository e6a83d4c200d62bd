"""`elasti uninstall`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import click

from elasti.api.names import NAMESPACE
from elasti.cli.exits import Failure
from elasti.cli.options import cluster_options, namespace_option, timeout_option

if TYPE_CHECKING:
    from collections.abc import Iterable

    from elasti.cli.cluster import AccessOptions
    from elasti.cli.rendering import Progress
    from elasti.cli.uninstall.survey import UninstallSurvey


@click.command("uninstall")
@namespace_option("The namespace of the installation.", NAMESPACE)
@cluster_options
@click.option(
    "--keep-crd",
    is_flag=True,
    help="Keep the CustomResourceDefinition and every ElastiService; their targets stay awake.",
)
@click.option(
    "--wake-only",
    is_flag=True,
    help="Wake every target and stop both programs; remove nothing else. For uninstalls by Helm.",
)
@click.option("-y", "--yes", is_flag=True, help="Do not ask.")
@click.option("--force", is_flag=True, help="Continue even if a target cannot be woken.")
@timeout_option(300.0, "How long to wait for targets to wake")
def command(
    *,
    namespace: str,
    access: AccessOptions,
    keep_crd: bool,
    wake_only: bool,
    yes: bool,
    force: bool,
    timeout: float,
) -> None:
    """Remove Elasti from a cluster, with every target awake and no request lost.

    Sleeping targets are woken first; then the ElastiServices are removed, the programs, their
    rights, and the definition last. The namespace stays. You can run it again at any time: it
    continues where it stopped.

    \b
    Examples:
      elasti uninstall
      elasti uninstall --keep-crd --yes
      elasti uninstall --namespace scale --timeout 600
    """
    from elasti.cli.rendering import Progress
    from elasti.cli.running import run_to_end
    from elasti.cli.uninstall.survey import announcement, refusal

    progress = Progress()
    found = run_to_end(lambda: _survey(access, namespace, wake_only=wake_only))
    lines: Iterable[str]
    if wake_only:
        lines = [f"This wakes every target of Elasti in namespace {namespace}, then stops Elasti."]
    elif found.is_done(keep=keep_crd):
        progress.say(f"Nothing of Elasti is in namespace {namespace}.")
        if found.has_definition and found.needed_by:
            progress.say(f"The CustomResourceDefinition stays: {found.needed_by}.")
        return
    elif (refused := refusal(found, keep=keep_crd)) is not None:
        raise refused
    else:
        lines = announcement(found, keep=keep_crd)
    for line in lines:
        progress.say(line)
    if not yes:
        _ask()
    choices = {"keep": keep_crd or wake_only, "force": force, "seconds": timeout}
    run_to_end(lambda: _uninstall(access, found, progress, **choices))
    if not wake_only:
        progress.say(
            f"Elasti is removed. Its namespace stays: kubectl delete namespace {namespace}"
        )


async def _survey(access: AccessOptions, namespace: str, *, wake_only: bool) -> UninstallSurvey:
    from elasti.cli.running import connected
    from elasti.cli.uninstall.survey import survey

    async with connected(access) as client:
        return await survey(client, namespace, wake_only=wake_only)


async def _uninstall(
    access: AccessOptions, found: UninstallSurvey, progress: Progress, **choices: Any
) -> None:
    import asyncio

    from elasti.cli.running import connected
    from elasti.cli.uninstall.uninstaller import Uninstaller

    async with connected(access) as client:
        try:
            await Uninstaller(client, found, progress, **choices).run()
        except asyncio.CancelledError:
            progress.say("Stopped half-way. Run it again to continue.")
            raise


def _ask() -> None:
    """Go on only after a yes. Raises Failure; no answer, as without a terminal, is a no."""
    try:
        agreed = click.confirm("Go on?")
    except click.Abort:
        agreed = False
        click.echo(err=True)
    if not agreed:
        raise Failure("nothing was removed; add --yes to skip the question")
