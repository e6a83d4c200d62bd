"""A long list, read page by page.

    async for pod in client.resource("v1/pods").items(page_size=500): ...

The pages are one snapshot: all have the version of the first (`resource_version`). A
server keeps it for some minutes; a reader slower than that meets `Gone`, and may either start again
or, with `allow_inconsistent`, go on from the same place in the present state: nothing comes twice,
but what changed before that place is not seen.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Generic, TypeVar

from kubeloop.client.errors import Gone

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Awaitable, Callable

    from kubeloop.objects.list_watch import ListOptions, Page

T = TypeVar("T")


class Pager(Generic[T]):
    """An asynchronous iterable over the objects of a list. Every iteration starts from the beginning."""

    def __init__(
        self,
        fetch: Callable[[ListOptions], Awaitable[Page[T]]],
        options: ListOptions,
        *,
        allow_inconsistent: bool = False,
    ) -> None:
        self._fetch = fetch
        self._options = options
        self._allow_inconsistent = allow_inconsistent
        self._version = ""
        self._remaining: int | None = None

    @property
    def resource_version(self) -> str:
        """The version of the snapshot, known from the first page on; empty before."""
        return self._version

    @property
    def remaining(self) -> int | None:
        """The server's estimate of what follows the last page read; None if it gives none."""
        return self._remaining

    async def __aiter__(self) -> AsyncIterator[T]:
        async for page in self.pages():
            for item in page.items:
                yield item

    async def pages(self) -> AsyncIterator[Page[T]]:
        """Iterate over whole pages."""
        options: ListOptions | None = self._options
        first = True
        while options is not None:
            page = await self._page(options)
            if first:
                self._version, first = page.resource_version, False
            self._remaining = page.remaining
            options = self._next(page.continue_token)
            yield page

    async def to_list(self) -> list[T]:
        """Read everything."""
        return [item async for item in self]

    async def _page(self, options: ListOptions) -> Page[T]:
        try:
            return await self._fetch(options)
        except Gone as error:
            token = error.status.metadata.continue_token if error.status.metadata else ""
            following = self._next(token) if options.continue_token else None
            if not self._allow_inconsistent or following is None:
                raise
        return await self._fetch(following)

    def _next(self, token: str) -> ListOptions | None:
        """Return the request for the page after; a server refuses a version beside a token."""
        if not token:
            return None
        return dataclasses.replace(
            self._options, continue_token=token, resource_version="", resource_version_match=""
        )
