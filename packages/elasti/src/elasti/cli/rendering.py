"""Text for people and scripts, and the one way out to their terminal.

Names and messages come from a cluster, where others write them. A control character in them could move the cursor,
set the window's title or hide a line, so each is escaped.

Progress is a line for each thing done, and the state of the rest. On a terminal the newest states
stay below the lines and change in place; anywhere else every change is a line.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import os
import re
import shutil
import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, TextIO

import click

from elasti.api.conditions import Obstacle

NOTHING = "-"
_GAP = "   "
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


# C0 and C1 controls, marks that change the direction of text, and bytes that are not UTF-8 (surrogates).
# Line feeds stay: `one_line` escapes them.
_CONTROLS = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Return text without control characters, each spelled as JSON does: a script still reads it."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    """Return text on one line: a line feed, too, could be mistaken for ours."""
    return printable(text).replace("\n", "\\n")


def echo(text: str = "", *, err: bool = False, nl: bool = True, colour: str | None = None) -> None:
    """Print for a person or a script: every command's output goes this way, or by `Progress`."""
    shown = printable(text)
    click.echo(click.style(shown, fg=colour) if colour else shown, err=err, nl=nl)


def render(obj: Any, output: str) -> str:
    """Return an object as `yaml` or `json`, ending with a line feed."""
    import msgspec
    import yaml

    if output == "json":
        return msgspec.json.format(msgspec.json.encode(obj)).decode() + "\n"
    return yaml.safe_dump(obj, sort_keys=False, allow_unicode=True)


def render_line(obj: Any, output: str) -> str:
    """Return one of many objects: a line of `json`, or a document of `yaml`."""
    import msgspec

    if output == "json":
        return msgspec.json.encode(obj).decode() + "\n"
    return "---\n" + render(obj, output)


def widths(rows: Iterable[Sequence[str]]) -> list[int]:
    """Return how wide each column must be."""
    return [max(len(one_line(cell)) for cell in column) for column in zip(*rows, strict=True)]


def line(cells: Sequence[str], wide: Sequence[int]) -> str:
    """Return one row; the last column is not padded."""
    *first, last = map(one_line, cells)
    padded = [cell.ljust(width) for cell, width in zip(first, wide, strict=False)]
    return _GAP.join([*padded, last]).rstrip()


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, indent: str = "") -> str:
    """Return rows under their heads, in columns."""
    wide = widths([heads, *rows])
    return "".join(f"{indent}{line(cells, wide)}\n" for cells in (heads, *rows))


def cut(text: str, width: int) -> str:
    """Return text that fits, with an ellipsis if it was cut."""
    return text if len(text) <= width else text[: max(width - 1, 0)].rstrip() + "…"


def fitted(text: str) -> str:
    """Return a line that fits the terminal; unchanged if the output is not a terminal."""
    return text if not sys.stdout.isatty() else cut(text, shutil.get_terminal_size().columns)


def duration(seconds: float) -> str:
    """Return a time span for people: 42s, 5m, 3h, 12d; with two parts if one is too coarse."""
    whole = max(int(seconds), 0)
    if whole < 2 * _MINUTE:
        return f"{whole}s"
    if whole < 2 * _HOUR:
        return _two(whole, _MINUTE, "m", 1, "s", coarse=10 * _MINUTE)
    if whole < 2 * _DAY:
        return _two(whole, _HOUR, "h", _MINUTE, "m", coarse=10 * _HOUR)
    return f"{whole // _DAY}d"


def counted(number: int, noun: str) -> str:
    """Return a number with its noun, in the plural unless it is one."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def ago(moment: dt.datetime | None, now: dt.datetime) -> str:
    """Return how long ago something was, without "ago"; a dash for never."""
    return NOTHING if moment is None else duration((now - moment).total_seconds())


def _two(whole: int, unit: int, name: str, part: int, part_name: str, *, coarse: int) -> str:
    rest = (whole % unit) // part
    if whole >= coarse or not rest:
        return f"{whole // unit}{name}"
    return f"{whole // unit}{name}{rest}{part_name}"


def with_time_left(why: Obstacle, now: dt.datetime) -> str:
    """Return the reason with the time left until it ends, if that is known, and the message."""
    left = 0.0 if why.until is None else why.until - now.timestamp()
    return str(Obstacle(f"{why.reason} ({duration(left)} left)", why.message) if left > 0 else why)


# Progress

_STYLES = {"created": "green", "changed": "yellow", "removed": "red"}
_CLEAR_BELOW, _CUT_LINES, _WRAP_LINES = "\x1b[J", "\x1b[?7l", "\x1b[?7h"


class LiveOutput:
    """Prints lines, standard output by default; on a terminal it keeps a few moving lines below them."""

    def __init__(self, file: TextIO | None = None) -> None:
        self._file = file or sys.stdout
        self.is_terminal = self._file.isatty() and os.environ.get("TERM") != "dumb"
        self._moving: Sequence[str] = ()

    def print(self, text: str = "") -> None:
        """Print a line, which may be styled."""
        self._write(f"{text}\n", self._moving)

    def show(self, lines: Sequence[str]) -> None:
        """Replace the moving lines. The terminal cuts them off at its edge, so each stays one line."""
        if self.is_terminal:
            self._write("", lines)

    def _write(self, text: str, moving: Sequence[str]) -> None:
        erased = f"\x1b[{len(self._moving)}F{_CLEAR_BELOW}" if self._moving else ""
        below = "".join([_CUT_LINES, *(f"{line}\n" for line in moving), _WRAP_LINES])
        self._moving = moving
        click.echo(f"{erased}{text}{below if moving else ''}", file=self._file, nl=False)


class Progress:
    """Reports to a person, or not at all if it is quiet."""

    def __init__(self, output: LiveOutput | None = None, *, quiet: bool = False) -> None:
        self._output = output or LiveOutput()
        self._quiet = quiet

    def say(self, words: str = "") -> None:
        """Print a sentence."""
        self._print(one_line(words))

    def done(self, what: str, outcome: str) -> None:
        """Print the outcome of something."""
        last = outcome.rpartition(" ")[2]
        styled = click.style(
            one_line(outcome), fg=_STYLES.get(last), dim=last == "unchanged" or None
        )
        self._print(f"{one_line(what)} {styled}")

    def _print(self, text: str) -> None:
        if not self._quiet:
            self._output.print(text)

    @contextlib.contextmanager
    def waiting(self) -> Iterator[WaitDisplay]:
        """Show the state of several things during the block."""
        if self._quiet or not self._output.is_terminal:
            yield WaitDisplay(self)
            return
        try:
            yield _LiveWaitDisplay(self, self._output)
        finally:
            self._output.show(())


class WaitDisplay:
    """Prints every new state as a line."""

    def __init__(self, progress: Progress) -> None:
        self._progress = progress
        self._said: dict[str, str] = {}

    def show(self, what: str, state: str) -> None:
        """Show the state of something."""
        if self._said.get(what) != state:
            self._said[what] = state
            self._progress.say(f"{what}: {state}" if what else state)


class _LiveWaitDisplay(WaitDisplay):
    """Shows the newest states below the lines, each in a line that moves."""

    def __init__(self, progress: Progress, output: LiveOutput) -> None:
        super().__init__(progress)
        self._output = output

    def show(self, what: str, state: str) -> None:
        self._said[what] = state
        self._output.show([one_line(f"{k}: {v}" if k else v) for k, v in self._said.items()])
