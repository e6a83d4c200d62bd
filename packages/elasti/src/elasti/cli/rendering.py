"""Text for people and scripts, and the one way out to their terminal.

Names and messages come from a cluster, where others write them: a control character among them could
move the cursor, set the window's title or hide a line. None of them leaves as it is.
"""

from __future__ import annotations

import datetime as dt
import re
import shutil
import sys
from collections.abc import Iterable, Sequence
from typing import Any

import click

NOTHING = "-"
_GAP = "   "
_MINUTE, _HOUR, _DAY = 60, 3600, 86400


# C0 and C1 controls, what turns the direction of writing, and bytes that were no UTF-8 (surrogates);
# line feeds stay where lines are printed.
_CONTROLS = re.compile(
    "[\x00-\x09\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def printable(text: str) -> str:
    """Return text without control characters, each spelled as JSON does: a script still reads it."""
    return _CONTROLS.sub(lambda found: f"\\u{ord(found[0]):04x}", text)


def one_line(text: str) -> str:
    """Return text for a place where a line feed, too, would be mistaken for ours."""
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
    """Return one row; the last column is as long as it is."""
    *first, last = map(one_line, cells)
    padded = [cell.ljust(width) for cell, width in zip(first, wide, strict=False)]
    return _GAP.join([*padded, last]).rstrip()


def table(heads: Sequence[str], rows: Sequence[Sequence[str]], *, indent: str = "") -> str:
    """Return rows under their heads, in columns."""
    wide = widths([heads, *rows])
    return "".join(f"{indent}{line(cells, wide)}\n" for cells in (heads, *rows))


def cut(text: str, width: int) -> str:
    """Return text that fits, with a sign where something is missing."""
    return text if len(text) <= width else text[: max(width - 1, 0)].rstrip() + "…"


def fitted(text: str) -> str:
    """Return a line that fits the terminal; as it is where a file or a program reads it."""
    if not sys.stdout.isatty():
        return text
    return cut(text, shutil.get_terminal_size().columns)


def duration(seconds: float) -> str:
    """Return a time span as people say it: 42s, 5m, 3h, 12d; two parts where one is coarse."""
    whole = max(int(seconds), 0)
    if whole < 2 * _MINUTE:
        return f"{whole}s"
    if whole < 2 * _HOUR:
        return _two(whole, _MINUTE, "m", 1, "s", coarse=10 * _MINUTE)
    if whole < 2 * _DAY:
        return _two(whole, _HOUR, "h", _MINUTE, "m", coarse=10 * _HOUR)
    return f"{whole // _DAY}d"


def ago(moment: dt.datetime | None, now: dt.datetime) -> str:
    """Return how long ago something was, without the word; a dash for never."""
    return NOTHING if moment is None else duration((now - moment).total_seconds())


def _two(whole: int, unit: int, name: str, part: int, part_name: str, *, coarse: int) -> str:
    rest = (whole % unit) // part
    if whole >= coarse or not rest:
        return f"{whole // unit}{name}"
    return f"{whole // unit}{name}{rest}{part_name}"
