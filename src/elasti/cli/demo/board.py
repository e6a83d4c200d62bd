"""What the moving part of the demo's screen shows: each app now, and how the requests are doing."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import RenderableType

_STYLES = {
    "Serve": "green",
    "Engaging": "yellow",
    "Parking": "yellow",
    "Proxy": "blue",
    "Waking": "bold yellow",
    "Releasing": "yellow",
}
MEANINGS = {
    "Serve": "traffic goes straight to its pods",
    "Engaging": "idle; the resolver joins the pods for a last look",
    "Parking": "nobody came: its replicas are set to 0",
    "Proxy": "asleep; the resolver takes its traffic",
    "Waking": "no pod is ready yet; the resolver holds whoever comes",
    "Releasing": "pods are ready; the resolver leaves",
}


class App(NamedTuple):
    """One app as it is now."""

    name: str
    state: str
    pods: Sequence[str]
    """A word for each: pending, running, ready, leaving."""
    via_resolver: bool


def board(apps: Sequence[App], *, sent: int, answered: int) -> RenderableType:
    """Return what to show."""
    table = Table(box=None, padding=(0, 2, 0, 0))
    for heading in ("app", "state", "pods", "its traffic goes to"):
        table.add_column(heading, header_style="dim")
    for app in apps:
        state = Text(app.state or "...", style=_STYLES.get(app.state, "dim"))
        table.add_row(app.name, state, ", ".join(app.pods) or "none", _route(app))
    return Panel(Group(table, Text(_requests(sent, answered))), width=78, border_style="dim")


def _route(app: App) -> str:
    ready = "ready" in app.pods
    match app.via_resolver, ready:
        case True, True:
            return "pods and resolver"
        case True, False:
            return "resolver"
        case _:
            return "pods" if ready else "nobody yet"


def _requests(sent: int, answered: int) -> str:
    waiting = sent - answered
    held = f", {waiting} held" if waiting else ""
    return f"requests: {sent} sent, {answered} answered{held}" if sent else "requests: none yet"
