"""A doctor's findings: severity, subject and remedy. Pure."""

from __future__ import annotations

import dataclasses
import enum
import functools
from collections.abc import Sequence

from elasti.cli.exits import ExitCode
from elasti.cli.rendering import one_line
from kubeloop.objects.meta import JsonObject


class FindingLevel(enum.Enum):
    """How bad it is. `HINT` is worth knowing; `UNCHECKED` could not be read."""

    OK = "ok"
    HINT = "hint"
    WARNING = "warning"
    PROBLEM = "problem"
    UNCHECKED = "unchecked"


@dataclasses.dataclass(frozen=True, slots=True)
class DoctorFinding:
    """One thing that was examined."""

    level: FindingLevel
    topic: str
    message: str
    remedy: str = ""

    def to_json(self) -> JsonObject:
        """Return it for scripts."""
        return {**dataclasses.asdict(self), "level": self.level.value}


ok = functools.partial(DoctorFinding, FindingLevel.OK)
hint = functools.partial(DoctorFinding, FindingLevel.HINT)
warning = functools.partial(DoctorFinding, FindingLevel.WARNING)
problem = functools.partial(DoctorFinding, FindingLevel.PROBLEM)

_SIGNS = {
    FindingLevel.OK: "✓",
    FindingLevel.HINT: "i",
    FindingLevel.WARNING: "!",
    FindingLevel.PROBLEM: "✗",
    FindingLevel.UNCHECKED: "?",
}
_COLOURS = {FindingLevel.OK: "green", FindingLevel.WARNING: "yellow", FindingLevel.PROBLEM: "red"}
_INDENT = "    "


def exit_code(findings: Sequence[DoctorFinding]) -> ExitCode:
    """Return how the command ends: what could not be read is not called healthy."""
    levels = {finding.level for finding in findings}
    if FindingLevel.PROBLEM in levels:
        return ExitCode.FAILED
    return ExitCode.NOT_ALLOWED if FindingLevel.UNCHECKED in levels else ExitCode.OK


def lines(findings: Sequence[DoctorFinding]) -> list[tuple[str, str | None]]:
    """Return the lines to print, each with its colour."""
    printed: list[tuple[str, str | None]] = []
    for finding in findings:
        sign, colour = _SIGNS[finding.level], _COLOURS.get(finding.level)
        printed.append((f"{sign} {one_line(f'{finding.topic}: {finding.message}')}", colour))
        printed += [(f"{_INDENT}{text}", None) for text in finding.remedy.splitlines()]
    printed.append((f"\n{verdict(findings)}", None))
    return printed


def verdict(findings: Sequence[DoctorFinding]) -> str:
    """Return the sum of it in one sentence."""
    count = {level: sum(f.level is level for f in findings) for level in FindingLevel}
    unchecked = _counted(count[FindingLevel.UNCHECKED], "thing")
    rest = f", {unchecked} could not be checked" if count[FindingLevel.UNCHECKED] else ""
    warnings = _counted(count[FindingLevel.WARNING], "warning")
    if count[FindingLevel.PROBLEM]:
        return f"{_counted(count[FindingLevel.PROBLEM], 'problem')}, {warnings}{rest}."
    if rest:
        return f"No problem was found, but not everything could be read: {warnings}{rest}."
    return (
        "Elasti can work here."
        if not count[FindingLevel.WARNING]
        else f"Elasti works here; {warnings}."
    )


def to_json(findings: Sequence[DoctorFinding]) -> JsonObject:
    """Return everything for scripts."""
    return {
        "ok": exit_code(findings) is ExitCode.OK,
        "verdict": verdict(findings),
        "findings": [finding.to_json() for finding in findings],
    }


def _counted(number: int, word: str) -> str:
    return f"{number} {word}{'' if number == 1 else 's'}"
