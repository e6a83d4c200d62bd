"""Progress output: a line for each thing done, and the state of the rest.

On a terminal the last line moves; anywhere else there is a line for every change, and no more.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

from rich.console import Console
from rich.markup import escape

from elasti.cli.rendering import one_line


def markup_free(text: str) -> str:
    """Return text for rich's console: no control character, and no markup but ours."""
    return escape(one_line(text))


_STYLES = {"created": "green", "changed": "yellow", "removed": "red", "unchanged": "dim"}


class Progress:
    """Reports to one person, on standard output by default."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)

    def say(self, words: str = "") -> None:
        """Print a sentence."""
        self._console.print(markup_free(words))

    def done(self, what: str, outcome: str) -> None:
        """Print what became of something."""
        style = _STYLES.get(outcome.rpartition(" ")[2], "")
        shown = markup_free(outcome)
        self._console.print(f"{markup_free(what)} {f'[{style}]{shown}[/]' if style else shown}")

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
        states = (f"{k}: {v}" if k else v for k, v in self._said.items())
        self._update(markup_free("; ".join(states)))
