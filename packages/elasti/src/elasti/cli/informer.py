"""`elasti informer`: a shared informer at the command line; three handlers, a line for everything.

Errors that pass by themselves are lines too; those that do not, such as a missing right, end it.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
from typing import TYPE_CHECKING

import click

from elasti.cli.options import AccessOptions, cluster_options, namespace_option
from elasti.cli.rendering import echo

if TYPE_CHECKING:
    import asyncio

    from kubeloop.informer import Notification
    from kubeloop.objects.meta import PartialObjectMetadata

_SYNC_TIMEOUT = 60.0


@click.command("informer")
@click.argument("resource")
@namespace_option("Only this namespace; all by default.", "")
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
    from elasti.cli.running import run_until_interrupted

    scope = WatchScope(resource, namespace, selector, field_selector)
    run_until_interrupted(lambda: follow(scope, resync=resync, period=period, access=access))


@dataclasses.dataclass(frozen=True, slots=True)
class WatchScope:
    """What is watched."""

    resource: str
    namespace: str
    selector: str
    field_selector: str


async def follow(
    scope: WatchScope,
    *,
    resync: float,
    period: float,
    access: AccessOptions,
) -> None:
    """Follow a slice of a resource and print what happens, until cancelled. Raises Failure."""
    import asyncio

    from elasti.cli.elastiservices import PERMANENT_ERRORS
    from elasti.cli.running import connected
    from kubeloop.aio.wait import until
    from kubeloop.informer import SharedInformerFactory

    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def stamped(words: str) -> None:
        if failed.done():
            return
        try:
            echo(f"{dt.datetime.now().astimezone():%Y/%m/%d %H:%M:%S} {words}")
        except OSError as error:  # the reader is gone, as after `| head`: the end
            failed.set_exception(error)

    async with connected(access) as client:
        info = await client.mapper.resolve(scope.resource)
        factory = SharedInformerFactory(client, resync=resync, namespace=scope.namespace)
        informer = factory.informer(
            info.gvr,
            metadata_only=True,
            label_selector=scope.selector,
            field_selector=scope.field_selector,
        )
        informer.add_handler(on_event=lambda note: stamped(sentence(info.kind, note)))

        def on_error(error: Exception) -> None:
            if isinstance(error.__cause__, PERMANENT_ERRORS) and not failed.done():
                failed.set_exception(error.__cause__)
            else:
                stamped(str(error))

        async def live() -> None:
            await factory.wait_for_sync(timeout=_SYNC_TIMEOUT)
            stamped("cache is synced")
            if period:
                await until(lambda: stamped("run"), period)
            await asyncio.Event().wait()

        informer.set_error_handler(on_error)
        async with factory.running():
            await _first_ended(failed, asyncio.create_task(live(), name="informer"))


async def _first_ended(failed: asyncio.Future[None], living: asyncio.Task[None]) -> None:
    """Wait for the first to end; its exception is raised, and nothing is left running."""
    import asyncio

    from kubeloop.aio.tasks import finish

    try:
        await asyncio.wait({failed, living}, return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            failed.result()
        living.result()
    finally:
        await finish([living])
        if not failed.cancel() and not failed.cancelled():
            failed.exception()  # retrieved here: nothing else awaits it


def sentence(kind: str, note: Notification[PartialObjectMetadata]) -> str:
    """Return what a notification means."""
    from kubeloop.informer import Added, Updated

    match note:
        case Added():
            verb = "handleAdd"
        case Updated():
            verb = "handleUpdate"
        case _:
            verb = "handleDelete"
    return f"{verb} is called for {kind} (key: {note.key})"
