"""The demo's output: a line for every event, a live board on a terminal, and the sums at the end.

On a terminal a board with the present state stays below the lines; anywhere else there are the lines
alone. The timeline at the end shows where the time of a wake-up went, between the first request and the
last response.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from typing import TYPE_CHECKING, Any, NamedTuple

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from elasti.api.names import API_VERSION, PLURAL, resolver_slice_name
from elasti.api.view import STATES, state_word
from elasti.cli.demo.manifests import NAMESPACE
from elasti.cli.progress import markup_free
from elasti.cli.rendering import one_line
from kubeloop.aio.tasks import BackgroundTasks
from kubeloop.aio.wait import until
from kubeloop.informer import Added, Deleted, Notification, SharedInformerFactory, Updated

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence

    from elasti.cli.demo.load import RequestResult
    from kubeloop.client import Client
    from kubeloop.objects.meta import JsonObject

_WIDTH = 40
# What happens to a target, in the order of a wake-up, and how it is reported.
_POD_MOMENTS = (
    ("pod pending", "it is scaled up: its pod exists"),
    ("pod running", "its process runs"),
)
READY = "Kubernetes calls the pod ready"


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
        for name, what in _POD_MOMENTS
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


_SOURCE_STYLES = {"you": "bold cyan", "elasti": "bold green", "pods": "yellow", "slices": "magenta"}
_REFRESH_EVERY = 0.125


class Story:
    """Prints for a terminal, and plainly for anything else."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._began = asyncio.get_running_loop().time()

    @contextlib.asynccontextmanager
    async def showing(self, board: Callable[[], RenderableType]) -> AsyncIterator[None]:
        """Keep a board below the lines during the block, where there is a terminal."""
        if not self._console.is_terminal:
            yield
            return
        # Refreshed from here and not by its own thread: what it shows changes in this one.
        live = Live(console=self._console, get_renderable=board, auto_refresh=False, transient=True)
        with live:
            async with BackgroundTasks() as tasks:
                tasks.start(until(live.refresh, _REFRESH_EVERY), name="board")
                yield

    def heading(self, words: str) -> None:
        """Begin a part."""
        self._console.print(f"\n[bold]{markup_free(words)}[/bold]")

    def report(self, who: str, words: str) -> None:
        """Report what happened, and when."""
        elapsed = asyncio.get_running_loop().time() - self._began
        style = _SOURCE_STYLES.get(who, "dim")
        self._console.print(
            f"{elapsed:7.2f} s  [{style}]{who:<7}[/] {markup_free(words)}", soft_wrap=True
        )

    def line(self, words: str) -> None:
        """Say something as it is."""
        self._console.print(markup_free(words), soft_wrap=True)

    def table(self, answers: Sequence[RequestResult]) -> None:
        """Show every request with its hold time."""
        table = Table("request", "answer", "held", "in all", box=None, padding=(0, 3, 0, 0))
        for answer in answers:
            held = f"{answer.held * 1000:.0f} ms" if answer.held else "-"
            words = (
                markup_free(answer.words) if answer.ok else f"[red]{markup_free(answer.words)}[/]"
            )
            table.add_row(markup_free(answer.what), words, held, f"{answer.took * 1000:.0f} ms")
        self._console.print(table)

    def sums(self, answers: Sequence[RequestResult], steps: list[WakeMoment]) -> int:
        """Say what was lost and where the time went; return the number of lost requests."""
        lost = sum(not answer.ok for answer in answers)
        held = [answer.held for answer in answers if answer.held]
        self.heading("In all")
        self._console.print(f"  {len(answers)} requests, [bold]{lost} lost[/bold]")
        if held:
            self.line(
                f"  {len(held)} were held: median {statistics.median(held):.2f} s,"
                f" longest {max(held):.2f} s"
            )
        self.heading("Where the time of web's wake-up went")
        for words in drawn(steps):
            self.line(f"  {words}")
        self._compare(steps)
        return lost

    def _compare(self, steps: list[WakeMoment]) -> None:
        first = next((step.at for step in steps if "first held" in step.what), None)
        ready = next((step.at for step in steps if step.what == READY), None)
        if first is not None and ready is not None and ready > first:
            self.line(
                f"  The resolver found the app answering {ready - first:.2f} s before Kubernetes did."
            )


_STATE_STYLES = {"awake": "green", "asleep": "blue", "waking": "bold yellow"}


class AppState(NamedTuple):
    """One app as it is now."""

    name: str
    state: str
    pods: Sequence[str]
    """A word for each: pending, running, ready, leaving."""
    via_resolver: bool


def board(apps: Sequence[AppState], *, sent: int, answered: int) -> RenderableType:
    """Return what to show."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("app", "state", "pods", "its traffic goes to"):
        table.add_column(heading, header_style="dim")
    for app in apps:
        state = Text(one_line(app.state) or "...", style=_STATE_STYLES.get(app.state, "yellow"))
        table.add_row(Text(one_line(app.name)), state, ", ".join(app.pods) or "none", _route(app))
    return Panel(Group(table, Text(_requests(sent, answered))), width=78, border_style="dim")


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
    """What is known of the sample apps, and when each last came to a state.

    Its informers' handlers report to the story; it waits for what they see.
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
            (f"{API_VERSION}/{PLURAL}", self._service),
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
            lambda: self._all_are("Proxy") and not any(self._pods.values()), "asleep", seconds
        )

    async def until_awake(self, seconds: float) -> None:
        """Wait until every app's traffic goes to its pods. Raises TimeoutError."""
        await self._until(lambda: self._all_are("Serve"), "awake", seconds)

    def _all_are(self, state: str) -> bool:
        return {*self._states.values()} == {state}

    async def _until(self, condition: Callable[[], bool], word: str, seconds: float) -> None:
        try:
            async with asyncio.timeout(seconds), self._changed:
                await self._changed.wait_for(condition)
        except TimeoutError:
            states = ", ".join(
                f"{name} is {state_word(state) or 'in no state'}"
                for name, state in self._states.items()
            )
            raise TimeoutError(f"not all are {word} after {seconds:.0f} s: {states}") from None

    async def _service(self, note: Notification[JsonObject]) -> None:
        obj = _newest(note)
        name, state = obj["metadata"]["name"], str(obj.get("status", {}).get("state", ""))
        if state and state != self._states[name]:
            self._states[name] = state
            self._note(name, state)
            self._story.report("elasti", f"{name} is {STATES.get(state, state)}")
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
                    "slices", f"{app}: the resolver is out of it, only pods are left"
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
        return "leaving"
    conditions = pod.get("status", {}).get("conditions") or []
    if any(item["type"] == "Ready" and item["status"] == "True" for item in conditions):
        return "ready"
    return str(pod.get("status", {}).get("phase", "Pending")).lower()
