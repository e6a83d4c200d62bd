"""What `elasti wake` and `elasti sleep` do: ask the operator, and wait until it is done.

The request is an annotation, as the resolver's own: durable, so that the leader of the moment acts on it,
and removed by the operator when it is carried out. Nothing is scaled from here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import enum
from typing import TYPE_CHECKING

from elasti.api.names import SLEEP_ANNOTATION, WAKE_ANNOTATION
from elasti.cli.elastiservices import ElastiServices, watch_elastiservices
from elasti.cli.exits import ExitCode, Failure
from elasti.cli.running import connected
from elasti.cli.view import why_of
from kubeloop.objects.meta import compare_versions
from kubeloop.objects.patches import MergePatch
from kubeloop.objects.times import format_micro_time

if TYPE_CHECKING:
    from collections.abc import Callable

    from elasti.api.types import ElastiService
    from elasti.cli.elastiservices import ElastiServiceWatch
    from elasti.cli.options import AccessOptions
    from kubeloop.client import Client


_AWAKE = ("Serve", "Releasing")


class RequestKind(enum.Enum):
    """What is asked for; the value is the annotation that asks."""

    WAKE = WAKE_ANNOTATION
    SLEEP = SLEEP_ANNOTATION

    @property
    def verb(self) -> str:
        """The word for it."""
        return self.name.lower()


@dataclasses.dataclass(frozen=True, slots=True)
class RequestProgress:
    """How far a request has come: still under way, or at an end that was wanted or not."""

    over: bool = False
    refused: str = ""


def progress_of(kind: RequestKind, es: ElastiService) -> RequestProgress:
    """Judge a request by what the operator reports."""
    pending = kind.value in (es.metadata.annotations or {})
    state = es.status.state
    match kind:
        case RequestKind.WAKE if es.status.conditions and not state:
            return RequestProgress(
                over=True, refused=f"{why_of(es)}; the request stays until it can be met"
            )
        case RequestKind.WAKE:
            return RequestProgress(over=not pending and state in _AWAKE)
        case RequestKind.SLEEP if state == "Proxy":
            return RequestProgress(over=True)
        case RequestKind.SLEEP:
            return (
                RequestProgress()
                if pending
                else RequestProgress(over=True, refused=str(why_of(es)))
            )


async def request(
    kind: RequestKind,
    names: tuple[str, ...],
    *,
    access: AccessOptions,
    namespace: str | None,
    wait: bool,
    timeout: float,
    say: Callable[..., None],
) -> None:
    """Ask for each, and wait for all of them where wanted. Raises Failure."""
    async with connected(access) as client:
        place = namespace or client.namespace
        objects = ElastiServices(client, place)
        asked = [await _ask(kind, objects, name) for name in dict.fromkeys(names)]
        if not wait:
            for es in asked:
                say(f"{es.metadata.name}: asked to {kind.verb}; elasti get shows what comes of it")
            return
        until = asyncio.get_running_loop().time() + timeout
        for es in asked:
            await RequestWait(kind, es, say).until_over(client, until)


async def _ask(kind: RequestKind, objects: ElastiServices, name: str) -> ElastiService:
    annotations: dict[str, str | None] = {kind.value: format_micro_time(dt.datetime.now(dt.UTC))}
    if kind is RequestKind.WAKE:
        annotations[SLEEP_ANNOTATION] = None
    return await objects.patch(name, MergePatch({"metadata": {"annotations": annotations}}))


class RequestWait:
    """Waits for one request to be over, and tells how it goes."""

    def __init__(self, kind: RequestKind, asked: ElastiService, say: Callable[..., None]) -> None:
        self._kind = kind
        self._seen = asked
        self._text = (asked.metadata.annotations or {}).get(kind.value, "")
        self._say = say
        self._state = ""
        self._began = asyncio.get_running_loop().time()

    async def until_over(self, client: Client, deadline: float) -> None:
        """Wait, at most until the loop's clock says so. Raises Failure."""
        meta = self._seen.metadata
        self._report()
        try:
            async with (
                asyncio.timeout_at(deadline),
                watch_elastiservices(client, meta.namespace, meta.name) as changes,
            ):
                step = await self._last_step(changes)
        except TimeoutError:
            raise self._timed_out() from None
        if step.refused:
            raise Failure(ExitCode.FAILED, f"{meta.name} is not {self._done()}: {step.refused}")
        took = asyncio.get_running_loop().time() - self._began
        self._say(f"{meta.name} is {self._done()} ({took:.1f} s)")

    async def _last_step(self, changes: ElastiServiceWatch) -> RequestProgress:
        while not (step := progress_of(self._kind, self._seen)).over:
            change = await changes.next()
            if change.deleted:
                return RequestProgress(over=True, refused="the ElastiService was deleted meanwhile")
            # What is listed first may be older than our own request.
            if _newer(change.es, self._seen):
                self._seen = change.es
                self._report()
        return step

    def _report(self) -> None:
        status = self._seen.status
        unknown = "not in order" if status.conditions else "not seen by the operator yet"
        state = status.state or unknown
        if state != self._state:
            self._state = state
            took = asyncio.get_running_loop().time() - self._began
            self._say(f"{took:6.1f} s  {self._seen.metadata.name}: {state}", err=True)

    def _timed_out(self) -> Failure:
        name = self._seen.metadata.name
        if (self._seen.metadata.annotations or {}).get(self._kind.value) == self._text:
            return Failure(
                ExitCode.TIMED_OUT,
                f"{name}: the operator has not carried out the request to {self._kind.verb} yet"
                f" (state {self._state}); the request stays",
                remedy="See what is wrong: elasti doctor",
            )
        return Failure(
            ExitCode.TIMED_OUT,
            f"{name} is not {self._done()} yet (state {self._state}): {why_of(self._seen)}",
            remedy=f"See more: elasti describe {name}",
        )

    def _done(self) -> str:
        return "asleep" if self._kind is RequestKind.SLEEP else "awake"


def _newer(one: ElastiService, other: ElastiService) -> bool:
    return compare_versions(one.metadata.resource_version, other.metadata.resource_version) > 0
