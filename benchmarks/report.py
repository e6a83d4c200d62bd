"""Figures, the goals they are held to, and how they are shown."""

from __future__ import annotations

import statistics
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import msgspec

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path


@dataclass(frozen=True, slots=True)
class Goal:
    """A bound on a figure, or on its ratio to the reference."""

    at: Literal[">=", "<="]
    bound: float
    of: Literal["value", "ratio"] = "value"

    def __str__(self) -> str:
        return f"{self.at} {_number(self.bound)}{'x' if self.of == 'ratio' else ''}"

    def is_met(self, value: float, ratio: float | None) -> bool:
        """Whether the figure meets the goal; not where there is no reference to compare with."""
        figure = value if self.of == "value" else ratio
        if figure is None:
            return False
        return figure >= self.bound if self.at == ">=" else figure <= self.bound


def at_least(bound: float) -> Goal:
    """A floor."""
    return Goal(">=", bound)


def at_most(bound: float) -> Goal:
    """A ceiling."""
    return Goal("<=", bound)


def times_at_least(bound: float) -> Goal:
    """A floor for the ratio to the reference."""
    return Goal(">=", bound, "ratio")


def times_at_most(bound: float) -> Goal:
    """A ceiling for the ratio to the reference."""
    return Goal("<=", bound, "ratio")


@dataclass(frozen=True, slots=True)
class Figure:
    """One measured value: the median of its samples."""

    name: str
    samples: Sequence[float]
    unit: str
    reference: float | None = None
    goal: Goal | None = None
    note: str = ""

    @property
    def value(self) -> float:
        """The median."""
        return statistics.median(self.samples)

    @property
    def ratio(self) -> float | None:
        """The value by the reference."""
        return self.value / self.reference if self.reference else None

    @property
    def ok(self) -> bool | None:
        """Whether the goal is met; None without one. One whose reference is missing is not met."""
        return self.goal.is_met(self.value, self.ratio) if self.goal else None

    def record(self) -> dict[str, object]:
        """Return the figure as build/bench.json holds it."""
        return {
            "name": self.name,
            "value": _round(self.value),
            "unit": self.unit,
            "reference": _round(self.reference),
            "ratio": _round(self.ratio),
            "goal": str(self.goal) if self.goal else None,
            "ok": self.ok,
        }

    def cells(self) -> tuple[str, ...]:
        """Return the figure as the table shows it."""
        spread = ""
        if len(self.samples) > 1:
            spread = f" [{_number(min(self.samples))}-{_number(max(self.samples))}]"
        verdict = {True: "ok", False: "MISSED", None: ""}[self.ok]
        return (
            self.name,
            f"{_number(self.value)}{spread} {self.unit}",
            _number(self.reference),
            "" if self.ratio is None else f"{_number(self.ratio)}x",
            str(self.goal or ""),
            verdict,
            self.note,
        )


@dataclass(slots=True)
class Report:
    """The figures of a run."""

    figures: list[Figure] = field(default_factory=list)

    def table(self) -> str:
        """Return all figures as aligned text."""
        head = ("what", "value", "reference", "ratio", "goal", "", "")
        rows = [head, *(figure.cells() for figure in self.figures)]
        widths = [max(len(row[column]) for row in rows) for column in range(len(head))]
        lines = ["  ".join(c.ljust(w) for c, w in zip(row, widths, strict=True)) for row in rows]
        return "\n".join(line.rstrip() for line in lines)

    def write(self, path: Path) -> None:
        """Write the figures as JSON, over those of the same names from earlier runs."""
        records = {str(record["name"]): record for record in _earlier(path)}
        records |= {figure.name: figure.record() for figure in self.figures}
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(msgspec.json.format(msgspec.json.encode(list(records.values()))) + b"\n")


def _earlier(path: Path) -> list[dict[str, object]]:
    if not path.exists():
        return []
    return msgspec.json.decode(path.read_bytes(), type=list[dict[str, object]])


def _round(value: float | None) -> float | None:
    return None if value is None else float(f"{value:.4g}")


def _number(value: float | None) -> str:
    if value is None:
        return ""
    return f"{value:,.0f}" if abs(value) >= 1000 else f"{value:.3g}"
