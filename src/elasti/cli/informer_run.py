"""What `elasti informer` does: one informer, three handlers, and a line for everything."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
from typing import TYPE_CHECKING

from kubeloop.aio.wait import until
from kubeloop.client import Client
from kubeloop.informer import Added, SharedInformerFactory, Updated

if TYPE_CHECKING:
    from collections.abc import Callable

    from kubeloop.informer import Notification
    from kubeloop.objects.meta import PartialObjectMetadata

_SYNC_TIMEOUT = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Slice:
    """What is watched."""

    resource: str
    namespace: str
    selector: str
    field_selector: str


async def follow(
    piece: Slice, *, resync: float, period: float, context: str | None, say: Callable[[str], None]
) -> None:
    """Follow a slice of a resource and say what happens, until cancelled. Raises KubeError."""

    def stamped(words: str) -> None:
        say(f"{dt.datetime.now().astimezone():%Y/%m/%d %H:%M:%S} {words}")

    async with Client.from_env(context=context) as client:
        info = await client.mapper.resolve(piece.resource)
        factory = SharedInformerFactory(client, resync=resync, namespace=piece.namespace)
        informer = factory.informer(
            info.gvr,
            metadata_only=True,
            label_selector=piece.selector,
            field_selector=piece.field_selector,
        )
        informer.add_handler(on_event=lambda note: stamped(sentence(info.kind, note)))
        async with factory.running():
            await factory.wait_for_sync(timeout=_SYNC_TIMEOUT)
            stamped("cache is synced")
            if period:
                await until(lambda: stamped("run"), period)
            await asyncio.Event().wait()


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
