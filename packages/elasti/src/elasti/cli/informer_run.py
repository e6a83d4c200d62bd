"""What `elasti informer` does: one informer, three handlers, and a line for everything.

Troubles that pass are lines too; those that do not, since a right is missing, are the end.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
from typing import TYPE_CHECKING

from elasti.cli.elastiservices import PERMANENT_ERRORS
from elasti.cli.running import connected
from kubeloop.aio.tasks import finish
from kubeloop.aio.wait import until
from kubeloop.informer import Added, SharedInformerFactory, Updated

if TYPE_CHECKING:
    from collections.abc import Callable

    from elasti.cli.options import AccessOptions
    from kubeloop.informer import Notification
    from kubeloop.objects.meta import PartialObjectMetadata

_SYNC_TIMEOUT = 60.0


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
    say: Callable[[str], None],
) -> None:
    """Follow a slice of a resource and say what happens, until cancelled. Raises Failure."""
    failed: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def stamped(words: str) -> None:
        if failed.done():
            return
        try:
            say(f"{dt.datetime.now().astimezone():%Y/%m/%d %H:%M:%S} {words}")
        except OSError as error:  # nobody reads any more, as after `| head`: the end
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
    """Wait for whichever ends; its exception is raised, and nothing is left running."""
    try:
        await asyncio.wait({failed, living}, return_when=asyncio.FIRST_COMPLETED)
        if failed.done():
            failed.result()
        living.result()
    finally:
        await finish([living])
        if not failed.cancel() and not failed.cancelled():
            failed.exception()  # looked at: nobody else will


def sentence(kind: str, note: Notification[PartialObjectMetadata]) -> str:
    """Say what a notification means."""
    match note:
        case Added():
            verb = "handleAdd"
        case Updated():
            verb = "handleUpdate"
        case _:
            verb = "handleDelete"
    return f"{verb} is called for {kind} (key: {note.key})"
