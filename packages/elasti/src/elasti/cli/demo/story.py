"""The demo's output: a line for every event, a live board on a terminal, and a summary.

The board with the present state stays below the lines; without a terminal there are only the lines. The timeline at
the end shows where the time of a wake-up went, from the first request to the last response.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from elasti.api.names import ELASTISERVICES, resolver_slice_name
from elasti.api.states import STATES, State, state_word
from elasti.cli.demo.manifests import NAMESPACE
from elasti.cli.rendering import LiveOutput, line, one_line, widths
from kubeloop.aio.tasks import BackgroundTasks
from kubeloop.aio.wait import until
from kubeloop.informer import Added, Deleted, Notification, SharedInformerFactory, Updated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence

    from elasti.cli.demo.load import RequestResult
    from kubeloop.client import Client
    from kubeloop.objects.meta import JsonObject

_WIDTH = 40
# The events of a target, in the order of a wake-up, and how each is reported.
_POD_MOMENTS = {"pod pending": "its pod is created", "pod running": "its process runs"}
READY = "Kubernetes reports the pod ready"


class WakeMoment(NamedTuple):
    """One moment, in seconds after the first request."""

    at: float
    what: str


def timeline(
    moments: Mapping[str, float], answers: Iterable[RequestResult], *, began: float
) -> list[WakeMoment]:
    """Return the steps of a wake-up that began with the first request, in order."""
    steps = [WakeMoment(0.0, "the first request arrives at the sleeping Service")]
    steps += [
        WakeMoment(moments[name] - began, what)
        for name, what in _POD_MOMENTS.items()
        if moments.get(name, 0.0) >= began
    ]
    took = sorted(answer.took for answer in answers if answer.ok)
    if took:
        steps.append(WakeMoment(took[0], "the first held request is answered"))
        steps.append(WakeMoment(took[-1], "the last held request is answered"))
    if moments.get("pod ready", 0.0) >= began:
        steps.append(WakeMoment(moments["pod ready"] - began, READY))
    return sorted(steps)


def drawn(steps: list[WakeMoment]) -> Iterator[str]:
    """Yield a line for each step, with a bar that shows how long the one before it took."""
    longest = max((step.at for step in steps), default=0.0) or 1.0
    before = 0.0
    for step in steps:
        start, end = (round(_WIDTH * at / longest) for at in (before, step.at))
        bar = " " * start + "━" * max(end - start, 0)
        yield f"{step.at:6.2f} s  {bar:<{_WIDTH}}  {step.what}"
        before = step.at


_SOURCE_COLOURS = {"you": "cyan", "elasti": "green", "pods": "yellow", "slices": "magenta"}
_REFRESH_EVERY = 0.125


class Story:
    """Prints the story, in colour on a terminal."""

    def __init__(self, output: LiveOutput | None = None) -> None:
        self._output = output or LiveOutput()
        self._began = asyncio.get_running_loop().time()

    @contextlib.asynccontextmanager
    async def showing(self, board: Callable[[], Sequence[str]]) -> AsyncIterator[None]:
        """Keep a board below the lines during the block, if there is a terminal."""
        try:
            async with BackgroundTasks() as tasks:
                refresh = until(lambda: self._output.show(board()), _REFRESH_EVERY)
                tasks.start(refresh, name="board")
                yield
        finally:
            self._output.show(())

    def heading(self, words: str) -> None:
        """Begin a part."""
        self._output.print("\n" + click.style(one_line(words), bold=True))

    def report(self, who: str, words: str) -> None:
        """Report what happened, and when."""
        elapsed = asyncio.get_running_loop().time() - self._began
        colour = _SOURCE_COLOURS.get(who)
        source = click.style(f"{who:<7}", fg=colour, dim=None if colour else True)
        self._output.print(f"{elapsed:7.2f} s  {source} {one_line(words)}")

    def line(self, words: str) -> None:
        """Print a line."""
        self._output.print(one_line(words))

    def table(self, answers: Sequence[RequestResult]) -> None:
        """Show every request with its hold time."""
        heads = ("request", "answer", "held", "total")
        rows = [
            (
                answer.what,
                answer.words,
                f"{answer.held * 1000:.0f} ms" if answer.held else "-",
                f"{answer.took * 1000:.0f} ms",
            )
            for answer in answers
        ]
        wide = widths([heads, *rows])
        self._output.print(click.style(line(heads, wide), bold=True))
        for answer, row in zip(answers, rows, strict=True):
            self._output.print(click.style(line(row, wide), fg=None if answer.ok else "red"))

    def sums(self, answers: Sequence[RequestResult], steps: list[WakeMoment]) -> int:
        """Print what was lost and where the time went; return the number of lost requests."""
        lost = sum(not answer.ok for answer in answers)
        held = [answer.held for answer in answers if answer.held]
        self.heading("Summary")
        self._output.print(f"  {len(answers)} requests, {click.style(f'{lost} lost', bold=True)}")
        if held:
            median, longest = statistics.median(held), max(held)
            self.line(f"  {len(held)} held: median {median:.2f} s, longest {longest:.2f} s")
        self.heading("Where the time of web's wake-up went")
        for words in drawn(steps):
            self.line(f"  {words}")
        self._compare(steps)
        return lost

    def _compare(self, steps: list[WakeMoment]) -> None:
        first = next((step.at for step in steps if "first held" in step.what), None)
        ready = next((step.at for step in steps if step.what == READY), None)
        if first is not None and ready is not None and ready > first:
            sooner = f"{ready - first:.2f} s before Kubernetes did"
            self.line(f"  The resolver found the app answering {sooner}.")


_STATE_COLOURS = {"awake": "green", "asleep": "blue"}
_BOARD_HEADS = ("app", "state", "pods", "traffic goes to")


class AppState(NamedTuple):
    """The present state of one app."""

    name: str
    state: str
    pods: Sequence[str]
    """A word for each: pending, running, ready, terminating."""
    via_resolver: bool


def board(apps: Sequence[AppState], *, sent: int, answered: int) -> list[str]:
    """Return the lines to show."""
    rows = [
        (app.name, app.state or "...", ", ".join(app.pods) or "none", _route(app)) for app in apps
    ]
    wide = widths([_BOARD_HEADS, *rows])
    return [
        click.style("─" * 78, dim=True),
        click.style(line(_BOARD_HEADS, wide), dim=True),
        *(click.style(line(row, wide), fg=_STATE_COLOURS.get(row[1], "yellow")) for row in rows),
        _requests(sent, answered),
    ]


def _route(app: AppState) -> str:
    ready = "ready" in app.pods
    match app.via_resolver, ready:
        case True, True:
            return "pods and resolver"
        case True, False:
            return "resolver"
        case _:
            return "pods" if ready else "no pod yet"


def _requests(sent: int, answered: int) -> str:
    waiting = sent - answered
    held = f", {waiting} held" if waiting else ""
    return f"requests: {sent} sent, {answered} answered{held}" if sent else "requests: none yet"


class DemoWatch:
    """The states of the sample apps, and when each last changed.

    Its informers' handlers report to the story; callers wait for what they see.
    """

    def __init__(self, client: Client, story: Story, apps: tuple[str, ...]) -> None:
        self._factory = SharedInformerFactory(client, namespace=NAMESPACE)
        self._story = story
        self._changed = asyncio.Condition()
        self._states = dict.fromkeys(apps, "")
        self._pods: dict[str, dict[str, str]] = {app: {} for app in apps}
        self._via_resolver: set[str] = set()
        self._moments: dict[str, dict[str, float]] = {app: {} for app in apps}
        for resource, report in (
            (ELASTISERVICES, self._service),
            ("v1/pods", self._pod),
            ("discovery.k8s.io/v1/endpointslices", self._slice),
        ):
            self._factory.informer(resource, dict).add_handler(on_event=report)

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Follow during the block."""
        async with self._factory.running():
            await self._factory.wait_for_sync(timeout=30)
            yield

    def apps(self) -> list[AppState]:
        """Return how the apps are now."""
        return [
            AppState(
                name,
                state_word(state),
                sorted(self._pods[name].values()),
                name in self._via_resolver,
            )
            for name, state in self._states.items()
        ]

    def moments(self, app: str) -> dict[str, float]:
        """Return when an app last came to each state, and its pods to each of theirs (loop time)."""
        return self._moments[app]

    async def until_asleep(self, seconds: float) -> None:
        """Wait until every app sleeps and its last pod is gone. Raises TimeoutError."""
        await self._until(
            lambda: self._all_are(State.PROXY) and not any(self._pods.values()), "asleep", seconds
        )

    async def until_awake(self, seconds: float) -> None:
        """Wait until every app's traffic goes to its pods. Raises TimeoutError."""
        await self._until(lambda: self._all_are(State.SERVE), "awake", seconds)

    def _all_are(self, state: str) -> bool:
        return {*self._states.values()} == {state}

    async def _until(self, condition: Callable[[], bool], word: str, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(condition)
        except TimeoutError:
            states = ", ".join(
                f"{name} is {state_word(state) or 'in no state yet'}"
                for name, state in self._states.items()
            )
            raise TimeoutError(f"not all are {word} after {seconds:.0f} s: {states}") from None

    async def _service(self, note: Notification[JsonObject]) -> None:
        obj = _newest(note)
        name, state = obj["metadata"]["name"], str(obj.get("status", {}).get("state", ""))
        if state and state != self._states[name]:
            self._states[name] = state
            # A workload that has just been created looks like one that wakes.
            is_new = state == State.WAKING and State.PROXY not in self._moments[name]
            self._note(name, state)
            starts = "starting: its first pod is not ready yet"
            words = starts if is_new else STATES.get(state, state)
            self._story.report("elasti", f"{name} is {words}")
        await self._notify_waiters()

    async def _pod(self, note: Notification[JsonObject]) -> None:
        obj = _newest(note)
        app, name = obj["metadata"]["labels"]["app"], obj["metadata"]["name"]
        was = self._pods[app].get(name, "")
        word = "gone" if isinstance(note, Deleted) else _pod_word(obj)
        if isinstance(note, Deleted):
            self._pods[app].pop(name, None)
        else:
            self._pods[app][name] = word
        if word != was:
            self._note(app, f"pod {word}")
            self._story.report("pods", f"{name}: {word}")
        await self._notify_waiters()

    async def _slice(self, note: Notification[JsonObject]) -> None:
        name = _newest(note)["metadata"]["name"]
        for app in self._states:
            if name != resolver_slice_name(app):
                continue
            if isinstance(note, Added):
                self._via_resolver.add(app)
                self._story.report("slices", f"{app}: the resolver is in the Service's rotation")
            elif isinstance(note, Deleted):
                self._via_resolver.discard(app)
                self._story.report(
                    "slices", f"{app}: the resolver left the rotation; only pods are in it"
                )

    def _note(self, name: str, what: str) -> None:
        self._moments[name][what] = asyncio.get_running_loop().time()

    async def _notify_waiters(self) -> None:
        async with self._changed:
            self._changed.notify_all()


def _newest(note: Notification[JsonObject]) -> JsonObject:
    return note.new if isinstance(note, Updated) else note.obj


def _pod_word(pod: dict[str, Any]) -> str:
    if pod["metadata"].get("deletionTimestamp"):
        return "terminating"
    conditions = pod.get("status", {}).get("conditions") or []
    if any(item["type"] == "Ready" and item["status"] == "True" for item in conditions):
        return "ready"
    return str(pod.get("status", {}).get("phase", "Pending")).lower()
