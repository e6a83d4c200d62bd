"""ElastiServices for commands: read, patched and watched, with errors that help.

An ElastiService that is not there, and a cluster that has no ElastiServices at all, are both 404 to
the server; here they are two different failures with two different remedies.

A watch is an informer: it lists, watches and resumes for as long as it takes. What it would retry without
effect, since the user lacks a permission, ends the wait instead.
"""

from __future__ import annotations

import asyncio
import contextlib
import difflib
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from elasti.api.names import CLI_FIELD_MANAGER, ELASTISERVICES
from elasti.api.types import ElastiService
from elasti.cli.exits import ExitCode, Failure
from elasti.cli.rendering import echo
from elasti.cli.running import is_not_installed, not_installed
from kubeloop.client.errors import Forbidden, KubeError, NotFound, Unauthorized
from kubeloop.informer import Deleted, Notification, SharedInformerFactory, Updated
from kubeloop.objects.selectors import LabelSelector

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Iterator

    from elasti.cli.options import Choice
    from kubeloop.client import Client, Resource
    from kubeloop.objects.patches import Patch


_MOST_NAMES = 8


class ElastiServices:
    """The ElastiServices of one namespace; of all namespaces if it is empty."""

    def __init__(self, client: Client, namespace: str) -> None:
        self._client = client
        self.resource: Resource[ElastiService] = client.resource(
            ELASTISERVICES, ElastiService, namespace=namespace
        )
        self.namespace = namespace

    async def all(self, selector: str = "") -> list[ElastiService]:
        """Return all, or those with these labels, by namespace and name. Raises Failure or KubeError."""
        with definition_needed():
            found = [item async for item in self.resource.items(selector=selector)]
        return sorted(found, key=lambda es: (es.metadata.namespace, es.metadata.name))

    async def labelled(self, selector: str = "") -> list[ElastiService]:
        """Return them with the labels of their Service and namespace beneath their own. Raises as `all` does."""
        from elasti.dashboard.fleet import labels_of
        from elasti.dashboard.model import key_of

        present = await self.all()
        labels, unread = await labels_of(self._client, self.namespace, present)
        for resource in unread:
            echo(f"You may not list {resource}, so their labels are not used.", err=True)
        wanted = LabelSelector.parse(selector)
        return [
            replace(es, metadata=replace(es.metadata, labels=labels[key_of(es)]))
            for es in present
            if wanted.matches(labels[key_of(es)])
        ]

    async def get(self, name: str) -> ElastiService:
        """Return one. Raises Failure or KubeError."""
        return await self._known(name, self.resource.get(name))

    async def named(
        self, names: tuple[str, ...], selector: str = ""
    ) -> tuple[list[ElastiService], list[Failure]]:
        """Return those named, in that order, and a failure for each that is not there; without names, all.

        Raises Failure or KubeError.
        """
        if not names:
            return await self.all(selector), []
        found, missing = [], []
        for name in dict.fromkeys(names):
            try:
                found.append(await self.get(name))
            except Failure as failure:
                if failure.code is not ExitCode.NOT_FOUND:
                    raise
                missing.append(failure)
        return found, missing

    async def chosen(self, choice: Choice) -> list[str]:
        """Return the names of those chosen; there is at least one. Raises Failure or KubeError."""
        if choice.names:
            return list(dict.fromkeys(choice.names))
        found = [es.metadata.name for es in await self.all(choice.selector)]
        if not found:
            having = f" with {choice.selector}" if choice.selector else ""
            raise Failure(
                f"there is no ElastiService{having} in namespace {self.namespace}",
                code=ExitCode.NOT_FOUND,
                remedy="See what there is: elasti get -A",
            )
        return found

    async def patch(self, name: str, patch: Patch) -> ElastiService:
        """Change one. Raises Failure or KubeError."""
        changing = self.resource.patch(name, patch, field_manager=CLI_FIELD_MANAGER)
        return await self._known(name, changing)

    async def _known(self, name: str, call: Awaitable[ElastiService]) -> ElastiService:
        others: list[str] = []
        try:
            with definition_needed():
                return await call
        except NotFound:
            with contextlib.suppress(KubeError):
                others = [es.metadata.name for es in await self.all()]
        raise Failure(no_such(name, self.namespace, others), code=ExitCode.NOT_FOUND)


def no_such(name: str, namespace: str, others: list[str]) -> str:
    """Return the message for a missing ElastiService, with similar names."""
    near = difflib.get_close_matches(name, others, n=3) or others[:_MOST_NAMES]
    there = (
        f"; it has {', '.join(near)}"
        if near
        else "; choose another with -n, or list all with elasti get -A"
    )
    return f"there is no ElastiService {name} in namespace {namespace}{there}"


@contextlib.contextmanager
def definition_needed() -> Iterator[None]:
    """Turn the 404 of a server without our definition into its own failure."""
    try:
        yield
    except NotFound as error:
        if is_not_installed(error):
            raise not_installed() from error
        raise


PERMANENT_ERRORS = (Forbidden, Unauthorized, NotFound)
"""Problems that do not pass by themselves."""


class ElastiServiceChange(NamedTuple):
    """An ElastiService in its present state, or its last one if it was deleted."""

    es: ElastiService
    deleted: bool


class ElastiServiceWatch:
    """Changes, in their order; made by `watch_elastiservices`."""

    def __init__(self) -> None:
        self._changes: asyncio.Queue[ElastiServiceChange | Exception] = asyncio.Queue()

    async def next(self) -> ElastiServiceChange:
        """Wait for the next change. Raises KubeError if the watch cannot continue."""
        change = await self._changes.get()
        if isinstance(change, Exception):
            raise change
        return change

    def on_event(self, note: Notification[ElastiService]) -> None:
        """Queue a notification of the informer."""
        obj = note.new if isinstance(note, Updated) else note.obj
        self._changes.put_nowait(ElastiServiceChange(obj, isinstance(note, Deleted)))

    def on_error(self, error: Exception) -> None:
        """End the wait for an error that does not pass by itself."""
        if isinstance(error.__cause__, PERMANENT_ERRORS):
            self._changes.put_nowait(error.__cause__)


@contextlib.asynccontextmanager
async def watch_elastiservices(
    client: Client, namespace: str, name: str = "", selector: str = ""
) -> AsyncIterator[ElastiServiceWatch]:
    """Follow the ElastiServices of a namespace, or of all; or only one by its name, some by their labels."""
    factory = SharedInformerFactory(client, namespace=namespace)
    only = f"metadata.name={name}" if name else ""
    informer = factory.informer(
        ELASTISERVICES, ElastiService, label_selector=selector, field_selector=only
    )
    followed = ElastiServiceWatch()
    informer.set_error_handler(followed.on_error)
    informer.add_handler(on_event=followed.on_event)
    async with factory.running():
        yield followed
