"""What the demo tells: a line for everything that happens, and the sums at the end."""

from __future__ import annotations

import asyncio
import statistics
from typing import TYPE_CHECKING

from rich.console import Console
from rich.table import Table

if TYPE_CHECKING:
    from elasti.cli.demo.burst import Answer

_STYLES = {"you": "bold cyan", "elasti": "bold green", "pods": "yellow", "slices": "magenta"}


class Story:
    """Prints for a terminal, and plainly for anything else."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False)
        self._began = asyncio.get_running_loop().time()

    def heading(self, words: str) -> None:
        """Begin a part."""
        self._console.print(f"\n[bold]{words}[/bold]")

    def tell(self, who: str, words: str) -> None:
        """Say what somebody did, and when."""
        elapsed = asyncio.get_running_loop().time() - self._began
        style = _STYLES.get(who, "")
        self._console.print(
            f"{elapsed:7.2f} s  [{style or 'dim'}]{who:<7}[/] {words}", soft_wrap=True
        )

    def table(self, answers: list[Answer]) -> None:
        """Show every request with its hold time."""
        table = Table("request", "answer", "held", "in all", box=None, padding=(0, 3, 0, 0))
        for answer in answers:
            held = f"{answer.held * 1000:.0f} ms" if answer.held else "-"
            table.add_row(answer.what, answer.words, held, f"{answer.took * 1000:.0f} ms")
        self._console.print(table)

    def sums(self, answers: list[Answer], wake: dict[str, float]) -> int:
        """Say what was lost and where the time went; return the number of lost requests."""
        lost = sum(not answer.ok for answer in answers)
        held = [answer.held for answer in answers if answer.held]
        self.heading("In all")
        self._console.print(f"  {len(answers)} requests, [bold]{lost} lost[/bold]")
        if held:
            self._console.print(
                f"  {len(held)} were held: median {statistics.median(held):.2f} s,"
                f" longest {max(held):.2f} s"
            )
        for step, seconds in wake.items():
            self._console.print(f"  {step:<34} {seconds:6.2f} s")
        return lost
