"""What the demo tells: a line for everything that happens, and the sums at the end.

On a terminal a board with the present state stays below the lines; anywhere else there are the lines
alone.
"""

from __future__ import annotations

import asyncio
import contextlib
import statistics
from typing import TYPE_CHECKING

from rich.console import Console
from rich.live import Live
from rich.markup import escape
from rich.table import Table

from elasti.cli.demo.timeline import READY, drawn
from kubeloop.aio.tasks import BackgroundTasks
from kubeloop.aio.wait import until

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Sequence

    from rich.console import RenderableType

    from elasti.cli.demo.burst import Answer
    from elasti.cli.demo.timeline import Step

_STYLES = {"you": "bold cyan", "elasti": "bold green", "pods": "yellow", "slices": "magenta"}
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
        self._console.print(f"\n[bold]{escape(words)}[/bold]")

    def tell(self, who: str, words: str) -> None:
        """Say what somebody did, and when."""
        elapsed = asyncio.get_running_loop().time() - self._began
        style = _STYLES.get(who, "dim")
        self._console.print(
            f"{elapsed:7.2f} s  [{style}]{who:<7}[/] {escape(words)}", soft_wrap=True
        )

    def line(self, words: str) -> None:
        """Say something as it is."""
        self._console.print(escape(words), soft_wrap=True)

    def table(self, answers: Sequence[Answer]) -> None:
        """Show every request with its hold time."""
        table = Table("request", "answer", "held", "in all", box=None, padding=(0, 3, 0, 0))
        for answer in answers:
            held = f"{answer.held * 1000:.0f} ms" if answer.held else "-"
            words = escape(answer.words) if answer.ok else f"[red]{escape(answer.words)}[/]"
            table.add_row(answer.what, words, held, f"{answer.took * 1000:.0f} ms")
        self._console.print(table)

    def sums(self, answers: Sequence[Answer], steps: list[Step]) -> int:
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

    def _compare(self, steps: list[Step]) -> None:
        first = next((step.at for step in steps if "first held" in step.what), None)
        ready = next((step.at for step in steps if step.what == READY), None)
        if first is not None and ready is not None and ready > first:
            self.line(
                f"  The resolver found the app answering {ready - first:.2f} s before Kubernetes did."
            )
