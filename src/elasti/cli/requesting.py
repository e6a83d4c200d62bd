"""Asking the operator to wake a target or to put it to sleep, and waiting until it did.

The request is an annotation, as the resolver's own: durable, so that whoever leads acts on it, and
taken away by the operator when it is over. Nothing is scaled from here.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import enum
from typing import TYPE_CHECKING

from elasti.api.names import SLEEP_ANNOTATION, WAKE_ANNOTATION
from elasti.cli.exits import ExitCode, Failure
from elasti.cli.following import following
from elasti.cli.objects import ElastiServices
from elasti.cli.running import connected
from elasti.cli.views import why_of
from kubeloop.objects.patches import MergePatch
from kubeloop.objects.times import format_micro_time
from kubeloop.objects.versions import compare_versions

if TYPE_CHECKING:
    from collections.abc import Callable

    from elasti.api.types import ElastiService
    from elasti.cli.following import Following
    from elasti.cli.options import Access
    from kubeloop.client import Client


_AWAKE = ("Serve", "Releasing")


class Wish(enum.Enum):
    """What is asked for; the value is the annotation that asks."""

    WAKE = WAKE_ANNOTATION
    SLEEP = SLEEP_ANNOTATION

    @property
    def verb(self) -> str:
        """The word for it."""
        return self.name.lower()


@dataclasses.dataclass(frozen=True, slots=True)
class Step:
    """How far a request has come: still under way, or at an end that was wanted or not."""

    over: bool = False
    refused: str = ""


def step_of(wish: Wish, es: ElastiService) -> Step:
    """Judge a request by what the operator reports."""
    pending = wish.value in (es.metadata.annotations or {})
    state = es.status.state
    match wish:
        case Wish.WAKE if es.status.conditions and not state:
            return Step(over=True, refused=f"{why_of(es)}; the request stays until it can be met")
        case Wish.WAKE:
            return Step(over=not pending and state in _AWAKE)
        case Wish.SLEEP if state == "Proxy":
            return Step(over=True)
        case Wish.SLEEP:
            return Step() if pending else Step(over=True, refused=str(why_of(es)))


async def request(
    wish: Wish,
    names: tuple[str, ...],
    *,
    access: Access,
    namespace: str | None,
    wait: bool,
    timeout: float,
    say: Callable[..., None],
) -> None:
    """Ask for each, and wait for all of them where wanted. Raises Failure."""
    async with connected(access) as client:
        place = namespace or client.namespace
        objects = ElastiServices(client, place)
        asked = [await _ask(wish, objects, name) for name in dict.fromkeys(names)]
        if not wait:
            for es in asked:
                say(f"{es.metadata.name}: asked to {wish.verb}; elasti get shows what comes of it")
            return
        until = asyncio.get_running_loop().time() + timeout
        for es in asked:
            await Waiting(wish, es, say).until_over(client, until)


async def _ask(wish: Wish, objects: ElastiServices, name: str) -> ElastiService:
    annotations: dict[str, str | None] = {wish.value: format_micro_time(dt.datetime.now(dt.UTC))}
    if wish is Wish.WAKE:
        annotations[SLEEP_ANNOTATION] = None
    return await objects.patch(name, MergePatch({"metadata": {"annotations": annotations}}))


class Waiting:
    """Waits for one request to be over, and tells how it goes."""

    def __init__(self, wish: Wish, asked: ElastiService, say: Callable[..., None]) -> None:
        self._wish = wish
        self._seen = asked
        self._text = (asked.metadata.annotations or {}).get(wish.value, "")
        self._say = say
        self._state = ""
        self._began = asyncio.get_running_loop().time()

    async def until_over(self, client: Client, deadline: float) -> None:
        """Wait, at most until the loop's clock says so. Raises Failure."""
        meta = self._seen.metadata
        self._tell()
        try:
            async with (
                asyncio.timeout_at(deadline),
                following(client, meta.namespace, meta.name) as changes,
            ):
                step = await self._last_step(changes)
        except TimeoutError:
            raise self._late() from None
        if step.refused:
            raise Failure(ExitCode.FAILED, f"{meta.name} is not {self._done()}: {step.refused}")
        took = asyncio.get_running_loop().time() - self._began
        self._say(f"{meta.name} is {self._done()} ({took:.1f} s)")

    async def _last_step(self, changes: Following) -> Step:
        while not (step := step_of(self._wish, self._seen)).over:
            change = await changes.next()
            if change.deleted:
                return Step(over=True, refused="the ElastiService was deleted meanwhile")
            # What is listed first may be older than our own request.
            if _newer(change.es, self._seen):
                self._seen = change.es
                self._tell()
        return step

    def _tell(self) -> None:
        status = self._seen.status
        unknown = "not in order" if status.conditions else "not seen by the operator yet"
        state = status.state or unknown
        if state != self._state:
            self._state = state
            took = asyncio.get_running_loop().time() - self._began
            self._say(f"{took:6.1f} s  {self._seen.metadata.name}: {state}", err=True)

    def _late(self) -> Failure:
        name = self._seen.metadata.name
        if (self._seen.metadata.annotations or {}).get(self._wish.value) == self._text:
            return Failure(
                ExitCode.TIMED_OUT,
                f"{name}: the operator has not carried out the request to {self._wish.verb} yet"
                f" (state {self._state}); the request stays",
                remedy="See what is wrong: elasti doctor",
            )
        return Failure(
            ExitCode.TIMED_OUT,
            f"{name} is not {self._done()} yet (state {self._state}): {why_of(self._seen)}",
            remedy=f"See more: elasti describe {name}",
        )

    def _done(self) -> str:
        return "asleep" if self._wish is Wish.SLEEP else "awake"


def _newer(one: ElastiService, other: ElastiService) -> bool:
    return compare_versions(one.metadata.resource_version, other.metadata.resource_version) > 0
