"""Record `elasti demo` and write docs/images/demo.svg: an animated picture of a real run, without a script in it.

    .venv/bin/python hack/record_demo.py            # runs the demo, about a minute
    .venv/bin/python hack/record_demo.py --from F   # draws what an earlier run left in build/demo.json again

The program runs on a pseudo-terminal, so its board is there, too. Every state of the screen is a frame, shown at its
time; pauses longer than two seconds are shortened, and the clock in each line stays the real one.
"""

from __future__ import annotations

import argparse
import html
import json
import os
import pty
import re
import sys
import time
from pathlib import Path
from typing import NamedTuple, TypeAlias

ROOT = Path(__file__).resolve().parents[1]
COLUMNS, ROWS = 98, 20
CELL, LINE, MARGIN = 8.0, 18, 16
LONGEST_PAUSE, SHORTEST_FRAME, LAST = 1.6, 0.25, 6.0
SEQUENCE = re.compile(r"\x1b\[([0-9;?]*)([A-Za-z])")
PARTS = re.compile(r"(\x1b\[[0-9;?]*[A-Za-z]|\n)")
COLOURS = {"1": "b", "2": "d", "31": "r", "32": "g", "33": "y", "34": "u", "35": "m", "36": "c"}
STYLE = """text{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:#d7dce5;white-space:pre}
.b{font-weight:700;fill:#fff}.d{fill:#8d97a8}.r{fill:#ff8f86}.g{fill:#6ddb9a}.y{fill:#f3c26b}.u{fill:#9db2ff}\
.m{fill:#e0a3f0}.c{fill:#74d3e6}"""


Line: TypeAlias = tuple[tuple[str, str], ...]
"""Pieces of a line: class and text."""


class Frame(NamedTuple):
    """What the screen shows from a time on."""

    at: float
    lines: list[Line]


def record(command: list[str]) -> list[tuple[float, str]]:
    """Run a program on a terminal; return what it wrote, with the times."""
    child, terminal = pty.fork()
    if child == 0:
        os.environ |= {"TERM": "xterm-256color", "COLUMNS": str(COLUMNS), "LINES": "200"}
        os.execvp(command[0], command)
    began, written = time.monotonic(), []
    while True:
        try:
            data = os.read(terminal, 1 << 16)
        except OSError:
            break
        if not data:
            break
        written.append((time.monotonic() - began, data.decode(errors="replace")))
    if os.waitpid(child, 0)[1]:
        raise SystemExit("the demo failed; nothing is drawn")
    return written


def frames(written: list[tuple[float, str]]) -> list[Frame]:
    """Play what was written on a screen, and return its states."""
    lines: list[Line] = [()]
    style, found, rest = "", list[Frame](), ""
    for at, data in written:
        text = rest + data.replace("\r", "")
        # A read may end within a sequence.
        cut = text.rfind("\x1b")
        rest = "" if cut < 0 or SEQUENCE.match(text, cut) else text[cut:]
        for part in PARTS.split(text.removesuffix(rest)):
            sequence = SEQUENCE.fullmatch(part)
            if part == "\n":
                lines.append(())
            elif sequence is None:
                lines[-1] += ((style, part),) if part else ()
            elif sequence[2] == "m":
                codes = sequence[1].split(";")
                style = next((COLOURS[code] for code in codes if code in COLOURS), "")
            elif sequence[2] == "F":
                # The board is erased as a whole: up to its first line, and everything below.
                del lines[-1 - int(sequence[1]) :]
                lines.append(())
        if not found or lines != found[-1].lines:
            found.append(Frame(at, lines.copy()))
    return found


def paced(played: list[Frame]) -> list[Frame]:
    """Shorten pauses, and join frames that are too short to be seen."""
    kept: list[Frame] = []
    clock, before = 0.0, played[0].at
    for frame in played:
        clock += min(frame.at - before, LONGEST_PAUSE)
        before = frame.at
        if kept and clock - kept[-1].at < SHORTEST_FRAME:
            kept[-1] = Frame(kept[-1].at, frame.lines)
        else:
            kept.append(Frame(clock, frame.lines))
    return kept


def drawn(shown: list[Frame]) -> str:
    """Return the picture. Every line of the screen is drawn once, however many frames show it."""
    whole = shown[-1].at + LAST
    width, height = COLUMNS * CELL + 2 * MARGIN, ROWS * LINE + 2 * MARGIN + 18
    texts: dict[Line, str] = {}
    groups, rules = [], []
    for number, frame in enumerate(shown):
        lines = frame.lines[:-1] if not frame.lines[-1] else frame.lines
        uses = []
        for row, line in enumerate(lines[-ROWS:]):
            if line:
                name = texts.setdefault(line, f"l{len(texts)}")
                uses.append(f'<use href="#{name}" y="{row * LINE}"/>')
        begin = frame.at / whole * 100
        end = shown[number + 1].at / whole * 100 if number + 1 < len(shown) else 100
        is_last = number + 1 == len(shown)
        groups.append(
            f'<g class="f{" last" if is_last else ""}" id="f{number}">{"".join(uses)}</g>'
        )
        # Steps keep a value until the next keyframe.
        hidden = "" if number == 0 else "0%{opacity:0}"
        after = "" if is_last else f"{end:.2f}%,100%{{opacity:0}}"
        rules.append(
            f"@keyframes k{number}{{{hidden}{begin:.2f}%{{opacity:1}}{after}}}"
            f"#f{number}{{animation-name:k{number}}}"
        )
    spans = "".join(f'<text id="{name}">{_spans(line)}</text>' for line, name in texts.items())
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" width="{width:.0f}"'
        f' height="{height}" role="img" aria-label="A terminal that runs elasti demo: two apps fall asleep,'
        f' twenty requests wake them, and none is lost"><style>{STYLE}.f{{opacity:0;'
        f"animation:{whole:.1f}s step-end 1 forwards}}.last{{opacity:1}}"
        f"@media(prefers-reduced-motion:reduce){{.f{{animation:none}}}}{''.join(rules)}</style>"
        f'<rect width="100%" height="100%" rx="10" fill="#171b23"/>'
        f'<circle cx="20" cy="16" r="5" fill="#5b3fd6"/><text x="34" y="20" class="d">elasti demo</text>'
        f"<defs>{spans}</defs>"
        f'<g transform="translate({MARGIN} {MARGIN + 34})">{"".join(groups)}</g></svg>\n'
    )


def _spans(line: Line) -> str:
    pieces, left = [], COLUMNS
    for style, text in line:
        escaped = html.escape(text[: max(left, 0)], quote=False)
        left -= len(text)
        pieces.append(f'<tspan class="{style}">{escaped}</tspan>' if style else escaped)
    return "".join(pieces)


def main() -> None:
    """Record, or take what was recorded, and write the picture."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--from", dest="source", type=Path, help="an earlier recording")
    source = parser.parse_args().source
    if source is None:
        written = record([sys.executable, "-m", "elasti", "demo"])
        kept = ROOT / "build" / "demo.json"
        kept.parent.mkdir(exist_ok=True)
        kept.write_text(json.dumps(written))
    else:
        written = [(at, text) for at, text in json.loads(source.read_text())]
    picture = drawn(paced(frames(written)))
    (ROOT / "docs" / "images" / "demo.svg").write_text(picture)
    print(f"docs/images/demo.svg: {len(picture.encode()) / 1000:.0f} kB")


if __name__ == "__main__":
    main()
