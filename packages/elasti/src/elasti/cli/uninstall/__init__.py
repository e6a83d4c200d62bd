"""`elasti uninstall`."""

from __future__ import annotations

import click

from elasti.api.names import NAMESPACE
from elasti.cli.exits import ExitCode, Failure
from elasti.cli.options import AccessOptions, cluster_options, namespace_option, timeout_option


@click.command("uninstall")
@namespace_option("Where it is installed.", NAMESPACE)
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
@click.option("--force", is_flag=True, help="Go on although a target cannot be woken.")
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

    Targets that sleep are woken first; then ElastiServices go, the programs, their rights, and the
    definition last. The namespace stays. It may be called again at any time: it goes on where it was.

    \b
    Examples:
      elasti uninstall
      elasti uninstall --keep-crd --yes
      elasti uninstall --namespace scale --timeout 600
    """
    import asyncio

    from elasti.cli.progress import Progress
    from elasti.cli.running import connected, run_to_end
    from elasti.cli.uninstall.survey import UninstallSurvey, announcement, refusal, survey
    from elasti.cli.uninstall.uninstaller import Uninstaller

    progress = Progress()

    async def read() -> UninstallSurvey:
        async with connected(access) as client:
            return await survey(client, namespace, wake_only=wake_only)

    async def act() -> None:
        async with connected(access) as client:
            uninstalling = Uninstaller(
                client,
                found,
                progress,
                keep=keep_crd or wake_only,
                force=force,
                seconds=timeout,
            )
            try:
                await uninstalling.run()
            except asyncio.CancelledError:
                progress.say("Stopped half-way. Call again to go on.")
                raise

    found = run_to_end(read)
    if wake_only:
        progress.say(
            f"Every target of namespace {namespace}'s Elasti is woken, then it is stopped."
        )
        if not yes:
            _ask()
        run_to_end(act)
        return
    if found.is_done(keep=keep_crd):
        progress.say(f"Nothing of Elasti is in namespace {namespace}.")
        if found.has_definition and found.needed_by:
            progress.say(f"The CustomResourceDefinition stays: {found.needed_by}.")
        return
    if (refused := refusal(found, keep=keep_crd)) is not None:
        raise refused
    for line in announcement(found, keep=keep_crd):
        progress.say(line)
    if not yes:
        _ask()
    run_to_end(act)
    progress.say(f"Elasti is removed. Its namespace stays: kubectl delete namespace {namespace}")


def _ask() -> None:
    """Go on only after a yes. Raises Failure; no answer, as without a terminal, is a no."""
    try:
        agreed = click.confirm("Go on?")
    except click.Abort:
        agreed = False
        click.echo(err=True)
    if not agreed:
        raise Failure(ExitCode.FAILED, "nothing was removed; --yes goes on without asking")
