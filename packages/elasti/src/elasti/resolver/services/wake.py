"""Requests to wake a Service, for as long as connections are held for it and no pod answers.

One request is in flight for a Service at a time. It is repeated with growing pauses, whatever the answer
was: the operator's "scaling" is a promise, a pod that answers is the proof. When the last pod that answered
goes while connections are held, the pause ends at once.

A request goes to the operator over HTTP (`operators.py`). Where no replica can be reached it must not be lost:
it is then written onto the ElastiService as an annotation, where the next leader finds it.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Protocol

import structlog

from elasti.api.conditions import WakeCause
from elasti.api.names import WAKE_ANNOTATION
from elasti.api.wire import WakeOutcome
from elasti.resolver.projections import ELASTI_SERVICES, ServiceKey
from kubeloop.aio.backoff import Backoff
from kubeloop.aio.clock import Clock, SystemClock
from kubeloop.aio.tasks import finish
from kubeloop.client.errors import KubeError
from kubeloop.objects.patches import MergePatch
from kubeloop.objects.times import format_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from kubeloop.client import Client as KubeClient


# After an answer the pods need time; after a failure no replica was to be reached.
_AFTER_ANSWER = Backoff(duration=1.0, factor=2.0, jitter=0.2, cap=15.0)
_AFTER_FAILURE = Backoff(duration=0.1, factor=2.0, jitter=0.2, cap=5.0)
# A pod that comes and goes must not become a flood.
_CLOSEST = 0.1
# The annotation is written at most so often, in seconds, for one Service.
DURABLE_EVERY = 10.0

_log = structlog.get_logger(__name__)


class OperatorUnreachable(Exception):
    """No operator answered, or not as one does."""


class WakeClient(Protocol):
    """Asks the operator to wake a Service."""

    async def wake(self, key: ServiceKey, *, count: int, client: str) -> WakeOutcome:
        """Ask once, for so many connections, the first of them this client's. Raises OperatorUnreachable."""


class DurableWakeRequest(Protocol):
    """Keeps a wake request while no operator answers."""

    async def write(self, key: ServiceKey) -> None:
        """Write that a Service should wake. Raises OperatorUnreachable where it cannot."""


@dataclasses.dataclass(eq=False, repr=False)
class WakeLoop:
    """Wakes one Service.

    `waiting` returns how many connections wait for a pod while none answers, `client` who the first is.
    `asked` is called with the seconds that it took until an operator answered.
    """

    key: ServiceKey
    _: dataclasses.KW_ONLY
    operator: WakeClient
    durable: DurableWakeRequest
    waiting: Callable[[], int]
    client: Callable[[], str] = str
    asked: Callable[[float], None] | None = None

    def __post_init__(self) -> None:
        # When an operator last answered, for the connections that wait now.
        self.answered_at: float | None = None
        # When one last did, for whatever connections.
        self.last_answer: float | None = None
        # Since when no operator could act, or none was to be reached.
        self.unavailable_since: float | None = None
        self._again = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._durable_at: float | None = None

    def __repr__(self) -> str:
        return f"<WakeLoop {self.key}{' running' if self._task is not None else ''}>"

    def need(self) -> None:
        """Connections wait and no pod answers: start the loop, unless it runs."""
        if self._task is None and self.waiting():
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._run(), name=f"wake {self.key}")
            self._task.add_done_callback(self._ended)

    def wake_now(self) -> None:
        """A connection begins to wait, or the last pod has gone: skip the pause."""
        self._again.set()
        self.need()

    async def aclose(self) -> None:
        """Stop asking."""
        if self._task is not None:
            await finish([self._task])

    def _ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("wake loop failed", service=str(self.key), exc_info=error)

    async def _run(self) -> None:
        try:
            await self._ask_until_answered()
        finally:
            # In the same iteration of the loop as the last check of what waits: a connection that
            # comes after it must find that the loop has ended.
            self._task = None

    async def _ask_until_answered(self) -> None:
        answered, failed = _AFTER_ANSWER.start(), _AFTER_FAILURE.start()
        loop = asyncio.get_running_loop()
        first = loop.time()
        self.answered_at = self.unavailable_since = None
        while count := self.waiting():
            self._again.clear()
            began = asyncio.get_running_loop().time()
            try:
                is_answered = await self._ask(count)
            except Exception:  # noqa: BLE001 -- logged; held connections must not wait for a defect
                _log.exception("wake request failed; retrying", service=str(self.key))
                is_answered = False
            if is_answered:
                failed.reset()
                self.last_answer = loop.time()
                if self.answered_at is None and self.asked is not None:
                    self.asked(loop.time() - first)
                self.answered_at = self.answered_at or loop.time()
            await self._pause((answered if is_answered else failed).next_delay(), began)

    async def _ask(self, count: int) -> bool:
        """Ask once; returns whether an operator answered. One that cannot act now gets the annotation."""
        try:
            outcome = await self.operator.wake(self.key, count=count, client=self.client())
        except OperatorUnreachable as error:
            _log.warning("operator unreachable", service=str(self.key), error=str(error))
            self._note_unavailable()
            await self._make_durable()
            return False
        if outcome is WakeOutcome.UNAVAILABLE:
            self._note_unavailable()
        else:
            self.unavailable_since = None
        if outcome in (WakeOutcome.UNAVAILABLE, WakeOutcome.WAITS):
            await self._make_durable()
        return True

    def _note_unavailable(self) -> None:
        if self.unavailable_since is None:
            self.unavailable_since = asyncio.get_running_loop().time()

    async def _pause(self, pause: float, began: float) -> None:
        """Wait for the pause to end, or to be ended; never ask in quick succession."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(pause):
                await self._again.wait()
        except TimeoutError:
            return
        await asyncio.sleep(max(began + _CLOSEST - loop.time(), 0))

    async def _make_durable(self) -> None:
        now = asyncio.get_running_loop().time()
        if self._durable_at is not None and now - self._durable_at < DURABLE_EVERY:
            return
        try:
            await self.durable.write(self.key)
        except OperatorUnreachable as error:
            _log.warning("wake annotation failed", service=str(self.key), error=str(error))
        else:
            self._durable_at = now


class WakeAnnotation:
    """Writes the request onto the ElastiService; a `DurableWakeRequest`.

    `object_name` returns the name of the ElastiService of a Service, None where there is none.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        object_name: Callable[[ServiceKey], str | None],
        clock: Clock | None = None,
    ) -> None:
        self._objects = client.resource(ELASTI_SERVICES)
        self._object_name = object_name
        self._clock = clock or SystemClock()

    async def write(self, key: ServiceKey) -> None:
        """Set the annotation to the present time, as a request's. Raises OperatorUnreachable."""
        name = self._object_name(key)
        if name is None:
            return
        text = f"{format_time(self._clock.now())} {WakeCause.REQUEST}"
        content = {"metadata": {"annotations": {WAKE_ANNOTATION: text}}}
        try:
            await self._objects.patch(
                name, MergePatch(content), namespace=key.namespace, timeout=5.0
            )
        except KubeError as error:
            raise OperatorUnreachable(str(error)) from error
