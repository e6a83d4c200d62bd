"""`elasti informer`: a shared informer at the command line; three handlers, a line for everything.

Errors that pass by themselves are lines too; those that do not, such as a missing right, end it.
"""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING, Any

import click

from elasti.cli.options import Number, cluster_options, namespace_option
from elasti.cli.rendering import echo

if TYPE_CHECKING:
    from elasti.cli.cluster import AccessOptions
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
    type=Number(min=0),
    default=30.0,
    show_default=True,
    help="Resync interval in seconds; 0 disables it.",
)
@click.option(
    "--period",
    type=Number(min=0),
    default=10.0,
    show_default=True,
    help="Interval between `run` lines in seconds; 0 disables them.",
)
@cluster_options
def command(**options: Any) -> None:
    """Print what an informer of kubeloop sees of RESOURCE, until Ctrl-C: which handler is called when.

    It shows the library at work; to follow objects, `kubectl get -w` shows more.

    RESOURCE is what kubectl takes: a plural, a singular, a short name, or with its group
    (deployments.apps).

    \b
    Examples:
      elasti informer pods
      elasti informer deploy -n default -l app=web --resync 0
    """
    from elasti.cli.running import run_until_interrupted

    run_until_interrupted(lambda: follow(**options))


async def follow(
    *,
    resource: str,
    namespace: str,
    selector: str,
    field_selector: str,
    resync: float,
    period: float,
    access: AccessOptions,
) -> None:
    """Follow a slice of a resource and print what happens, until cancelled. Raises Failure."""
    import asyncio

    from elasti.cli.elastiservices import PERMANENT_ERRORS
    from elasti.cli.running import connected
    from kubeloop.aio.tasks import Interruptible
    from kubeloop.aio.wait import until
    from kubeloop.informer import SharedInformerFactory

    async with connected(access) as client, Interruptible() as block:

        def stamped(words: str) -> None:
            try:
                echo(f"{dt.datetime.now().astimezone():%Y/%m/%d %H:%M:%S} {words}")
            except OSError as error:  # the reader is gone, as after `| head`: the end
                block.interrupt(error)

        def on_error(error: Exception) -> None:
            if isinstance(error.__cause__, PERMANENT_ERRORS):
                block.interrupt(error.__cause__)
            else:
                stamped(str(error))

        info = await client.mapper.resolve(resource)
        factory = SharedInformerFactory(client, resync=resync, namespace=namespace)
        informer = factory.informer(
            info.gvr, metadata_only=True, label_selector=selector, field_selector=field_selector
        )
        informer.add_handler(on_event=lambda note: stamped(sentence(info.kind, note)))
        informer.set_error_handler(on_error)
        async with factory.running():
            await factory.wait_for_sync(timeout=_SYNC_TIMEOUT)
            stamped("cache is synced")
            if period:
                await until(lambda: stamped("run"), period)
            await asyncio.Event().wait()


def sentence(kind: str, note: Notification[PartialObjectMetadata]) -> str:
    """Return what a notification means."""
    from kubeloop.informer import Added, Deleted, Updated

    verbs = {Added: "Add", Updated: "Update", Deleted: "Delete"}
    return f"handle{verbs[type(note)]} is called for {kind} (key: {note.key})"
