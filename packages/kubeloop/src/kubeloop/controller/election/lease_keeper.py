"""One lease, read and written: tries to get it, keeps it, frees it.

Each try reads as little as it can: the holder of the lease writes straight over what it last saw
(the resourceVersion makes that safe) and reads first only when that failed. What a candidate may
believe about itself is its `Tenure`: it is extended by successful writes alone, never by reading.

`ApiLease` is the lease at a real API server.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING, Protocol, TypeAlias

from kubeloop.client.errors import KubeError, NotFound
from kubeloop.controller.election.lease import (
    CreateLease,
    ElectionConfig,
    LeaseRecord,
    LeaseView,
    LeaveLease,
    UpdateLease,
    decide,
    release,
    renewal,
)

if TYPE_CHECKING:
    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client
    from kubeloop.controller.election.thread import LeaseFactory
    from kubeloop.objects.meta import JsonObject


Monotonic: TypeAlias = Callable[[], float]

_log = logging.getLogger(__name__)


_LEASES = "coordination.k8s.io/v1/leases"


class LeaseClient(Protocol):
    """One Lease at the API server, as JSON so that foreign fields survive. Raises KubeError."""

    async def get(self) -> JsonObject:
        """Read the lease; raises NotFound if absent."""

    async def create(self, lease: JsonObject) -> JsonObject:
        """Create it; raises Conflict if another replica was faster."""

    async def update(self, lease: JsonObject) -> JsonObject:
        """Replace it; raises Conflict if its resourceVersion is no longer the present one."""


class Tenure:
    """The end of the time in which we may believe that we lead. One writer; may be read from any thread.

    Once it has run out it stays so until `end` makes it ready for the next one: a caller that asked
    meanwhile heard that we do not lead, and a late answer must not make that untrue.
    """

    __slots__ = ("_now", "_until")

    def __init__(self, now: Monotonic) -> None:
        self._now = now
        self._until = 0.0

    @property
    def until(self) -> float:
        """The moment, by the clock it was made with, at which it ends unless extended."""
        return self._until

    @property
    def is_held(self) -> bool:
        """Whether it lasts now."""
        return self._now() < self._until

    def extend(self, until: float) -> None:
        """Begin it, or put off its end; does nothing if it has run out."""
        if not self._until or self.is_held:
            self._until = until

    def end(self) -> None:
        """End it now."""
        self._until = 0.0


@dataclasses.dataclass(eq=False, kw_only=True)
class LeaseKeeper:
    """One candidate's dealings with the lease. One task uses it at a time."""

    config: ElectionConfig
    lease: LeaseClient
    tenure: Tenure
    now: Monotonic
    clock: Clock
    """The lease as it was before this tenure: who led last, and how long."""

    def __post_init__(self) -> None:
        self.former = LeaseRecord()
        self.view = LeaseView(identity=self.config.identity)
        """The last view of the lease."""

    async def attempt(self, *, until: float) -> None:
        """Try once to get or to keep the lease; the tenure has the outcome.

        A failure is logged and left to the next try. Gives up before `until`, soon
        enough that one request which hangs leaves time for another.
        """
        left = min(until - self.now(), self.config.renew_deadline)
        try:
            async with asyncio.timeout(left / 2):
                await self._get_or_keep()
        except KubeError as error:
            _log.warning("lease %s could not be taken: %s", self.config.name, error)
        except TimeoutError:
            _log.warning("lease %s: the server did not answer in time", self.config.name)

    async def free(self) -> None:
        """Release the lease if it still is ours; if that fails it expires by itself."""
        self.tenure.end()
        try:
            async with asyncio.timeout(self.config.renew_deadline):
                self._observe(await self.lease.get(), self.now())
                action = release(self.view, wall=self.clock.now())
                if action is not None:
                    self._observe(await self.lease.update(action.lease), self.now())
        except (KubeError, TimeoutError) as error:
            _log.warning("lease %s could not be released: %r", self.config.name, error)

    async def _get_or_keep(self) -> None:
        if await self._renewed_unread():
            return
        try:
            seen: JsonObject | None = await self.lease.get()
        except NotFound:
            seen = None
        self._observe(seen, self.now())
        match decide(self.view, self.config, now=self.now(), wall=self.clock.now()):
            case LeaveLease():
                # Another replica holds it, so we do not: no reason to wait for our own deadline.
                self.tenure.end()
            case action:
                await self._write(action)

    async def _renewed_unread(self) -> bool:
        action = renewal(self.view, self.config, now=self.now(), wall=self.clock.now())
        if action is None:
            return False
        try:
            await self._write(action)
        except KubeError as error:
            _log.info("lease %s is read again before renewal: %s", self.config.name, error)
            return False
        return True

    async def _write(self, action: CreateLease | UpdateLease) -> None:
        sent, before = self.now(), self.view.record
        if isinstance(action, CreateLease):
            written = await self.lease.create(action.lease)
        else:
            written = await self.lease.update(action.lease)
        if not self.tenure.is_held:
            self.former = before
        # Counted from before the request left: others may have seen the record since then.
        self._observe(written, sent)
        self.tenure.extend(sent + self.config.renew_deadline)

    def _observe(self, lease: JsonObject | None, now: float) -> None:
        self.view = self.view.observe(lease, now)


class ApiLease:
    """One Lease through a client; the client stays the caller's."""

    def __init__(self, client: Client, config: ElectionConfig) -> None:
        self._leases = client.resource(_LEASES, namespace=config.namespace)
        self._name = config.name

    async def get(self) -> JsonObject:
        """Read the lease; raises NotFound if absent."""
        return await self._leases.get(self._name)

    async def create(self, lease: JsonObject) -> JsonObject:
        """Create it; raises Conflict if another replica was faster."""
        return await self._leases.create(lease)

    async def update(self, lease: JsonObject) -> JsonObject:
        """Replace it; raises Conflict if it changed meanwhile."""
        return await self._leases.replace(lease)


def own_connection(config: ElectionConfig, open_client: Callable[[], Client]) -> LeaseFactory:
    """Return a factory for `ElectionThread`: a client of its own for each election.

    `open_client` (`Client.from_env`, for one) is called on the election's thread, so that neither
    connections nor credentials are shared with the loop of the work.
    """

    @contextlib.asynccontextmanager
    async def connect() -> AsyncIterator[ApiLease]:
        async with open_client() as client:
            yield ApiLease(client, config)

    return connect
