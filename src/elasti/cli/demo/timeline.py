"""Where the time of a wake-up went: the moments between the first request and everybody's answer. Pure."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from elasti.cli.demo.burst import Answer

_WIDTH = 40
# What happens to a target, in the order of a wake-up, and how it is told.
_STEPS = (
    ("pod pending", "it is scaled up: its pod exists"),
    ("pod running", "its process runs"),
)
READY = "Kubernetes calls the pod ready"


class Step(NamedTuple):
    """One moment, in seconds after the first request."""

    at: float
    what: str


def timeline(
    moments: Mapping[str, float], answers: Iterable[Answer], *, began: float
) -> list[Step]:
    """Return the steps of a wake-up that began with the first request, in order."""
    steps = [Step(0.0, "the first request arrives at the sleeping Service")]
    steps += [
        Step(moments[name] - began, what)
        for name, what in _STEPS
        if moments.get(name, 0.0) >= began
    ]
    took = sorted(answer.took for answer in answers if answer.ok)
    if took:
        steps.append(Step(took[0], "the first held request is answered"))
        steps.append(Step(took[-1], "the last held request is answered"))
    if moments.get("pod ready", 0.0) >= began:
        steps.append(Step(moments["pod ready"] - began, READY))
    return sorted(steps)


def drawn(steps: list[Step]) -> Iterator[str]:
    """Yield a line for each step, with a bar that shows how long the one before it took."""
    longest = max((step.at for step in steps), default=0.0) or 1.0
    before = 0.0
    for step in steps:
        start, end = (round(_WIDTH * at / longest) for at in (before, step.at))
        bar = " " * start + "━" * max(end - start, 0)
        yield f"{step.at:6.2f} s  {bar:<{_WIDTH}}  {step.what}"
        before = step.at
