"""Requests to wake a Service, while connections are held for it and no pod serves.

Each Service has one request in flight. It is repeated with growing pauses, whatever the reply: "scaling" is a
promise, and only a pod that serves is proof. If the last serving pod goes while connections are held, the pause
ends at once.

A request goes to the operator over HTTP (`operators.py`). If no replica is reachable, it must not be lost: it
is then written to the ElastiService as an annotation, which the next leader reads.
"""

from __future__ import annotations

import asyncio
import dataclasses
import enum
import secrets
from collections.abc import Callable, Sequence
from typing import Protocol

from elasti.api.conditions import WakeCause
from elasti.api.names import ELASTISERVICES, WAKE_ANNOTATION
from elasti.api.wire import IncomingReply, WakeOutcome, WakePart
from elasti.logger import bind, get_logger
from elasti.resolver.projections import ServiceKey
from kubeloop.aio.backoff import Backoff
from kubeloop.aio.clock import Clock, SystemClock
from kubeloop.aio.tasks import finish
from kubeloop.client import Client as KubeClient
from kubeloop.client.errors import KubeError
from kubeloop.objects.patches import MergePatch
from kubeloop.objects.times import format_time

# After a reply the pods need time; after a failure no replica was reachable.
_AFTER_ANSWER = Backoff(duration=1.0, factor=2.0, jitter=0.2, cap=15.0)
_AFTER_FAILURE = Backoff(duration=0.1, factor=2.0, jitter=0.2, cap=5.0)
# A flapping pod must not cause a flood of requests.
_CLOSEST = 0.1
# The least time between two annotations of one ElastiService, in seconds.
DURABLE_EVERY = 10.0

_log = get_logger(__name__)


class OperatorUnreachable(Exception):
    """No operator answered, or none gave a valid reply."""


class WakeClient(Protocol):
    """Asks the operator to wake a Service."""

    async def wake(
        self, key: ServiceKey, *, count: int, client: str, wake_id: str
    ) -> IncomingReply:
        """Ask once for `count` connections, the first of which is `client`'s. Raises OperatorUnreachable.

        `wake_id` is in the logs of both programs.
        """


class DurableWakeRequest(Protocol):
    """Stores a wake request while no operator answers, or while the leader must act on it."""

    async def write(self, key: ServiceKey) -> None:
        """Store a request to wake a Service. Raises OperatorUnreachable."""


class PartState(enum.StrEnum):
    """How far a part of a set is that wakes together."""

    WAITING = "waiting"  #: for what it needs
    STARTING = "starting"
    READY = "ready"


def part_states(
    parts: Sequence[WakePart], has_ready_pod: Callable[[str], bool | None]
) -> list[PartState]:
    """Return how far each part is. `has_ready_pod` answers for a Service; None: it has no pod at all."""
    states: list[PartState] = []
    for part in parts:
        ready = has_ready_pod(part.service)
        # After a while a part starts without what it needs.
        starts = ready is not None or all(states[one] is PartState.READY for one in part.needs)
        waits = PartState.STARTING if starts else PartState.WAITING
        states.append(PartState.READY if ready else waits)
    return states


def late_parts(parts: Sequence[WakePart], states: Sequence[PartState]) -> list[str]:
    """Return what keeps the last part waiting: at the end of each chain, what is not ready."""
    late: list[str] = []
    blocking = {len(parts) - 1}
    # Each comes after what it needs.
    for place in reversed(range(len(parts))):
        below = {one for one in parts[place].needs if states[one] is not PartState.READY}
        if place in blocking and below:
            blocking |= below
        elif place in blocking and place != len(parts) - 1:
            late.append(parts[place].name)
    return late[::-1]


@dataclasses.dataclass(eq=False, repr=False)
class WakeLoop:
    """Wakes one Service.

    `waiting` returns how many connections wait while no pod serves, and `client` names the first of them.
    `asked` is called with the seconds until an operator answered. A wake-up's id has `id_bytes`.
    """

    key: ServiceKey
    _: dataclasses.KW_ONLY
    operator: WakeClient
    durable: DurableWakeRequest
    waiting: Callable[[], int]
    client: Callable[[], str] = str
    asked: Callable[[float], None] | None = None
    id_bytes: int = 4

    def __post_init__(self) -> None:
        # When an operator first answered for the connections that wait now.
        self.answered_at: float | None = None
        # When one last answered, for any connection.
        self.last_answer: float | None = None
        # When the operators became unreachable, or unable to act.
        self.unavailable_since: float | None = None
        # What wakes together with it, by the last answer.
        self.parts: tuple[WakePart, ...] = ()
        self._again = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        self._durable_at: float | None = None
        self._is_new = True
        self._wake_id = ""
        # What the operator calls it: another resolver may have asked first.
        self.known_id = ""

    def __repr__(self) -> str:
        return f"<WakeLoop {self.key}{' running' if self._task is not None else ''}>"

    def need(self) -> None:
        """Start the loop if connections wait and it is not running."""
        if self._task is None and self.waiting():
            loop = asyncio.get_running_loop()
            self._task = loop.create_task(self._run(), name=f"wake {self.key}")
            self._task.add_done_callback(self._ended)

    def wake_now(self) -> None:
        """Skip the pause: a connection begins to wait, or the last pod has gone."""
        if self.waiting() <= 1:
            self._is_new = True  # no connection waits from before: another wake-up
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
            # In the same iteration as the last check of `waiting`: a connection that comes later must see
            # that the loop has ended.
            self._task = None

    async def _ask_until_answered(self) -> None:
        answered, failed = _AFTER_ANSWER.start(), _AFTER_FAILURE.start()
        loop = asyncio.get_running_loop()
        first, self._is_new = loop.time(), True
        while count := self.waiting():
            self._again.clear()
            began = loop.time()
            if self._is_new:
                first = began
                self._begin(count)
            try:
                is_answered = await self._ask(count)
            except Exception:  # noqa: BLE001 -- logged; held connections must not wait for a defect
                _log.exception("wake request failed; retrying")
                is_answered = False
            if is_answered:
                failed.reset()
                self.last_answer = loop.time()
                if self.answered_at is None and self.asked is not None:
                    self.asked(loop.time() - first)
                self.answered_at = self.answered_at or loop.time()
            await self._pause((answered if is_answered else failed).next_delay(), began)

    def _begin(self, count: int) -> None:
        self._is_new, self._wake_id = False, secrets.token_hex(self.id_bytes)
        self.known_id = self._wake_id
        self.answered_at = self.unavailable_since = None
        # The task is this Service's own, and so are its context variables.
        bind(service=str(self.key), wake_id=self._wake_id)
        _log.info("wake-up requested", client=self.client(), held=count)

    async def _ask(self, count: int) -> bool:
        """Ask once. Returns whether an operator answered. If it cannot act now, the annotation is written."""
        try:
            reply = await self.operator.wake(
                self.key, count=count, client=self.client(), wake_id=self._wake_id
            )
        except OperatorUnreachable as error:
            _log.warning("operator unreachable", error=str(error))
            self._note_unavailable()
            await self._make_durable()
            return False
        outcome = reply.outcome
        if outcome is WakeOutcome.UNAVAILABLE:
            self._note_unavailable()
        else:
            self.unavailable_since, self.parts = None, reply.parts
            self.known_id = reply.wake_id or self._wake_id
        if outcome in (WakeOutcome.UNAVAILABLE, WakeOutcome.WAITS):
            await self._make_durable()
        return True

    def _note_unavailable(self) -> None:
        if self.unavailable_since is None:
            self.unavailable_since = asyncio.get_running_loop().time()

    async def _pause(self, pause: float, began: float) -> None:
        """Wait for the pause to end or to be skipped; never ask in quick succession."""
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
            _log.warning("wake annotation failed", error=str(error))
        else:
            self._durable_at = now


class WakeAnnotation:
    """Writes the request onto the ElastiService; a `DurableWakeRequest`.

    `object_name` returns the name of a Service's ElastiService, or None.
    """

    def __init__(
        self,
        client: KubeClient,
        *,
        object_name: Callable[[ServiceKey], str | None],
        clock: Clock | None = None,
    ) -> None:
        self._objects = client.resource(ELASTISERVICES)
        self._object_name = object_name
        self._clock = clock or SystemClock()

    async def write(self, key: ServiceKey) -> None:
        """Set the annotation to the current time. Raises OperatorUnreachable."""
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
