"""ElastiServices as they change, for commands that wait or watch.

An informer does the work: it lists, watches and resumes for as long as it takes. What it would try
for ever in vain, since the caller has no right to it, ends the wait instead.
"""

from __future__ import annotations

import asyncio
import contextlib
from typing import TYPE_CHECKING, NamedTuple

from elasti.api.types import ElastiService
from elasti.cli.objects import RESOURCE
from kubeloop.client.errors import Forbidden, NotFound, Unauthorized
from kubeloop.informer import Deleted, SharedInformerFactory, Updated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from kubeloop.client import Client
    from kubeloop.informer import Notification

HOPELESS = (Forbidden, Unauthorized, NotFound)
"""What does not pass by itself."""


class Change(NamedTuple):
    """What an ElastiService is now, or was when it was deleted."""

    es: ElastiService
    deleted: bool


class Following:
    """Changes, in their order; made by `following`."""

    def __init__(self) -> None:
        self._changes: asyncio.Queue[Change | Exception] = asyncio.Queue()

    async def next(self) -> Change:
        """Wait for the next change. Raises KubeError where there cannot be one."""
        change = await self._changes.get()
        if isinstance(change, Exception):
            raise change
        return change

    def on_event(self, note: Notification[ElastiService]) -> None:
        """Take in what the informer says."""
        obj = note.new if isinstance(note, Updated) else note.obj
        self._changes.put_nowait(Change(obj, isinstance(note, Deleted)))

    def on_error(self, error: Exception) -> None:
        """Take in what went wrong, where it will not pass by itself."""
        if isinstance(error.__cause__, HOPELESS):
            self._changes.put_nowait(error.__cause__)


@contextlib.asynccontextmanager
async def following(client: Client, namespace: str, name: str = "") -> AsyncIterator[Following]:
    """Follow the ElastiServices of a namespace, or of all; or only one by its name."""
    factory = SharedInformerFactory(client, namespace=namespace)
    selector = f"metadata.name={name}" if name else ""
    informer = factory.informer(RESOURCE, ElastiService, field_selector=selector)
    followed = Following()
    informer.set_error_handler(followed.on_error)
    informer.add_handler(on_event=followed.on_event)
    async with factory.running():
        yield followed
