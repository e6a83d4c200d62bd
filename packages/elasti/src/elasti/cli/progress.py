"""Progress output: a line for each thing done, and the state of the rest.

On a terminal the last line moves; anywhere else there is a line for every change, and no more.
"""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

from rich.console import Console
from rich.markup import escape

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator


_STYLES = {"created": "green", "changed": "yellow", "removed": "red", "unchanged": "dim"}


class Progress:
    """Tells one person, on standard output by default."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)

    def say(self, words: str = "") -> None:
        """Say a sentence."""
        self._console.print(escape(words))

    def done(self, what: str, outcome: str) -> None:
        """Say what became of something."""
        style = _STYLES.get(outcome.rpartition(" ")[2], "")
        shown = escape(outcome)
        self._console.print(f"{escape(what)} {f'[{style}]{shown}[/]' if style else shown}")

    @contextlib.contextmanager
    def waiting(self) -> Iterator[WaitDisplay]:
        """Show, during the block, how far things are."""
        if not self._console.is_terminal:
            yield WaitDisplay(self)
            return
        with self._console.status("") as status:
            yield _LiveWaitDisplay(self, status.update)


class WaitDisplay:
    """Says every state once, a line at a time."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._said: dict[str, str] = {}

    def show(self, what: str, state: str) -> None:
        """Show how far something is."""
        if self._said.get(what) != state:
            self._said[what] = state
            self._progress.say(f"{what}: {state}" if what else state)


class _LiveWaitDisplay(WaitDisplay):
    """Shows the newest states in one moving line."""

    def __init__(self, progress: Progress, update: Callable[[str], None]) -> None:
        super().__init__(progress)
        self._update = update

    def show(self, what: str, state: str) -> None:
        self._said[what] = state
        self._update(escape("; ".join(f"{k}: {v}" if k else v for k, v in self._said.items())))
