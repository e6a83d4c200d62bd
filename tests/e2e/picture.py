"""The timeline of one cycle as SVG: requests above, what the cluster did below, one axis of time. Pure.

Every request is a mark at the moment it was sent, as high as its answer took: held, forwarded by the
resolver, straight to the pod, or lost. Below, a lane for each thing that changed.
"""

from __future__ import annotations

import html
import math
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import NamedTuple

from tests.e2e.observer import Event
from tests.e2e.prober.plan import Fault, Record

_WIDTH, _LEFT, _RIGHT = 1100, 130, 20
_TOP, _PLOT, _LANE, _GAP = 56, 180, 26, 8
_MOST_LINES = 6
_FONT = 'font-family="system-ui, sans-serif" font-size="12" fill="#1f2937"'
_BEFORE, _AFTER = 1.0, 1.0
_COLOURS = {
    "held": "#d97706",
    "forwarded by the resolver": "#7c3aed",
    "straight to the pod": "#0f766e",
    "lost": "#dc2626",
}
_STATES = {
    "Serve": "#99d5cf",
    "Engaging": "#c4b5fd",
    "Parking": "#a78bfa",
    "Proxy": "#cbd5e1",
    "Waking": "#fcd9a5",
    "Releasing": "#fde68a",
}
_PODS = {"pending": "#e5e7eb", "running": "#fcd9a5", "ready": "#99d5cf", "leaving": "#fca5a5"}


class Span(NamedTuple):
    """Something that held for a time."""

    began: float
    ended: float
    label: str
    colour: str


class Lane(NamedTuple):
    """One row: its name, and what held in it."""

    name: str
    spans: Sequence[Span]


class Axis(NamedTuple):
    """Time from left to right."""

    began: float
    ended: float

    def x(self, at: float) -> float:
        """Return where a moment is."""
        part = (min(max(at, self.began), self.ended) - self.began) / (self.ended - self.began)
        return _LEFT + part * (_WIDTH - _LEFT - _RIGHT)


def write(path: Path, records: Sequence[Record], events: Sequence[Event]) -> None:
    """Draw a timeline into a file."""
    path.write_text(draw(records, events))


def draw(records: Sequence[Record], events: Sequence[Event]) -> str:
    """Return the picture: from just before the first request to just after the last event."""
    axis = _axis(records, events)
    lanes = list(_lanes(events, axis.ended))
    height = _TOP + _PLOT + _GAP + len(lanes) * (_LANE + _GAP) + 40
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {height}" {_FONT}>',
        f'<rect width="{_WIDTH}" height="{height}" fill="#ffffff"/>',
        *_legend(records),
        *_requests(records, axis),
        *(part for row, lane in enumerate(lanes) for part in _drawn_lane(lane, row, axis)),
        *_ticks(axis, height - 24),
        "</svg>",
    ]
    return "\n".join(parts) + "\n"


def _axis(records: Sequence[Record], events: Sequence[Event]) -> Axis:
    sent = [record.sent for record in records]
    began = min(sent) - _BEFORE
    heard = [event.at for event in events if event.at > began]
    return Axis(began, max(*(record.answered for record in records), *heard) + _AFTER)


# Requests


def _kind(record: Record) -> str:
    if record.fault is not Fault.NONE:
        return "lost"
    if record.held is not None:
        return "held"
    return "forwarded by the resolver" if record.via_resolver else "straight to the pod"


def _legend(records: Sequence[Record]) -> Iterator[str]:
    x = _LEFT
    yield f'<text x="{_LEFT}" y="18" font-size="14" font-weight="600">Requests, by when they were sent and how long their answer took</text>'
    for kind, colour in _COLOURS.items():
        count = sum(_kind(record) == kind for record in records)
        label = f"{kind}: {count}"
        yield f'<circle cx="{x + 5}" cy="36" r="4" fill="{colour}"/>'
        yield f'<text x="{x + 14}" y="40">{html.escape(label)}</text>'
        x += 40 + 7 * len(label)


def _requests(records: Sequence[Record], axis: Axis) -> Iterator[str]:
    longest = max(record.answered - record.sent for record in records)
    step = next(size for size in (0.1, 0.5, 1, 5, 10, 60) if longest / size <= _MOST_LINES)
    lines = max(math.ceil(longest / step), 1)
    top, bottom = lines * step, _TOP + _PLOT
    for number in range(lines + 1):
        y, seconds = bottom - _PLOT * number / lines, step * number
        yield f'<line x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y}" y2="{y}" stroke="#e5e7eb"/>'
        yield f'<text x="{_LEFT - 8}" y="{y + 4}" text-anchor="end">{seconds:g} s</text>'
    for record in records:
        y = bottom - _PLOT * (record.answered - record.sent) / top
        colour = _COLOURS[_kind(record)]
        yield f'<circle cx="{axis.x(record.sent):.1f}" cy="{y:.1f}" r="1.6" fill="{colour}" fill-opacity="0.6"/>'


# Lanes


def _lanes(events: Sequence[Event], end: float) -> Iterator[Lane]:
    yield Lane("state", _spans(_of(events, "state"), end, _STATES))
    yield Lane("resolver's slice", _spans(_of(events, "slice"), end, {"published": "#c4b5fd"}))
    yield Lane("replicas", _spans(_of(events, "replicas"), end, {"0": "#f3f4f6", "1": "#99d5cf"}))
    for pod in dict.fromkeys(event.subject for event in events if event.kind == "pod"):
        own = [event for event in _of(events, "pod") if event.subject == pod]
        yield Lane(f"pod …{pod[-5:]}", _spans(own, end, _PODS))


def _of(events: Sequence[Event], kind: str) -> list[Event]:
    return [event for event in events if event.kind == kind]


def _spans(events: Sequence[Event], end: float, colours: dict[str, str]) -> list[Span]:
    ends = (*(event.at for event in events[1:]), end)
    return [
        Span(event.at, until, event.what, colours[event.what])
        for event, until in zip(events, ends, strict=False)
        if event.what in colours
    ]


def _drawn_lane(lane: Lane, row: int, axis: Axis) -> Iterator[str]:
    y = _TOP + _PLOT + _GAP * 2 + row * (_LANE + _GAP)
    yield f'<text x="{_LEFT - 8}" y="{y + 17}" text-anchor="end">{html.escape(lane.name)}</text>'
    for span in lane.spans:
        x, width = axis.x(span.began), axis.x(span.ended) - axis.x(span.began)
        if width <= 0:
            continue
        title = f"{span.label}: {span.ended - span.began:.2f} s"
        yield (
            f'<rect x="{x:.1f}" y="{y}" width="{width:.1f}" height="{_LANE}" rx="3"'
            f' fill="{span.colour}"><title>{html.escape(title)}</title></rect>'
        )
        if width > 7 * len(span.label) + 6:
            yield f'<text x="{x + 5:.1f}" y="{y + 17}">{html.escape(span.label)}</text>'


def _ticks(axis: Axis, y: float) -> Iterator[str]:
    step = next(s for s in (1, 2, 5, 10, 30, 60, 300) if (axis.ended - axis.began) / s <= 20)
    zero = axis.began + _BEFORE
    for number in range(int((axis.ended - zero) / step) + 1):
        x = axis.x(zero + number * step)
        yield f'<line x1="{x:.1f}" x2="{x:.1f}" y1="{_TOP}" y2="{y - 14}" stroke="#e5e7eb" stroke-dasharray="2 4"/>'
        yield f'<text x="{x:.1f}" y="{y}" text-anchor="middle">{number * step} s</text>'
