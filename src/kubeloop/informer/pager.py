"""A complete list, in as many requests as it takes.

Which version to ask for, and whether in pages, follows client-go. The first list asks for version
"0": whatever the watch cache has. A later one asks for what was last seen, without a limit, so that
it comes from the watch cache and cannot go back in time. When the server does not have that version
(any more, or yet), a consistent read is the last resort, until one succeeds.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Generic, TypeVar

from kubeloop.client.errors import Gone, KubeError, is_version_too_large
from kubeloop.objects.options import ListOptions

if TYPE_CHECKING:
    from kubeloop.informer.options import ReflectorOptions
    from kubeloop.informer.snapshot import Snapshot
    from kubeloop.informer.source import ListWatch

T = TypeVar("T")

DEFAULT_PAGE = 500


def is_unavailable(error: KubeError) -> bool:
    """Whether the server says that it does not have the version asked for."""
    return isinstance(error, Gone) or is_version_too_large(error)


class Pager(Generic[T]):
    """Lists for one reflector and remembers how its server takes it."""

    def __init__(self, source: ListWatch[T], options: ReflectorOptions) -> None:
        self._source = source
        self._options = options
        self._server_pages = False
        self.version_unavailable = False

    def relist_version(self, last: str) -> str:
        """Return the version to list at, when `last` was seen last."""
        return "" if self.version_unavailable else last or "0"

    async def list_into(self, snapshot: Snapshot[T], last: str) -> str:
        """Fill the snapshot with everything there is; returns the list's version.

        Raises KubeError, and Rejected for an object that cannot be taken in.
        """
        wanted = self.relist_version(last)
        limit = self._limit(wanted)
        try:
            version, paged = await self._pages(snapshot, wanted, limit)
        except KubeError as error:
            if not is_unavailable(error):
                raise
            self.version_unavailable = True
            snapshot.clear()
            version, paged = await self._pages(snapshot, "", limit)
        if wanted == "0" and paged:
            # A server that cuts this list into pages has no watch cache to answer from.
            self._server_pages = True
        self.version_unavailable = False
        return version

    def _limit(self, version: str) -> int:
        if self._options.page_size:
            return self._options.page_size
        if self._server_pages or version in {"", "0"}:
            return DEFAULT_PAGE
        return 0

    async def _pages(self, snapshot: Snapshot[T], version: str, limit: int) -> tuple[str, bool]:
        first = ListOptions(
            label_selector=self._options.label_selector,
            field_selector=self._options.field_selector,
            resource_version=version,
            limit=limit,
        )
        page = await self._source.list(first)
        list_version, paged = page.resource_version, bool(page.continue_token)
        await snapshot.take(page.items)
        while token := page.continue_token:
            # A continuation that names a version is refused: the token has it.
            following = dataclasses.replace(first, resource_version="", continue_token=token)
            try:
                page = await self._source.list(following)
            except Gone:
                snapshot.clear()
                page = await self._source.list(dataclasses.replace(first, limit=0))
                list_version = page.resource_version
            await snapshot.take(page.items)
        return list_version, paged
