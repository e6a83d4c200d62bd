"""When to look again, whatever happens. Pure.

Time enters a hand-over only here: the settles, unanswered probes, a resolver that is lost.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.operator.modes import HOLDS, State
from elasti.operator.plan import owed_to_keda

if TYPE_CHECKING:
    from elasti.operator.memory import Memory
    from elasti.operator.observation import Facts
    from elasti.operator.settings import Settings

_SOON = 0.01
_PROBE_PAUSE = 0.1
_LONGEST_PROBE_PAUSE = 5.0
_PARTNER_PAUSE = 1.0
_SLICE_PAUSE = 1.0
_KEDA_PAUSE = 0.5
_LONGEST_KEDA_PAUSE = 60.0
_KIND_PAUSE = 0.5
_LONGEST_KIND_PAUSE = 60.0


def next_look(
    facts: Facts, memory: Memory, settings: Settings, *, now: float, lost_for: float
) -> float | None:
    """Return after how many seconds to look again; None for never."""
    pauses: list[float] = []
    match memory.state:
        case State.ENGAGING if memory.engaged_at is not None:
            left = memory.engaged_at + settings.engage_settle - now
            pauses.append(left if left > 0 else _PARTNER_PAUSE)
        case State.WAKING | State.RELEASING if memory.ready_since:
            first = min(memory.ready_since.values())
            pauses.append(max(first + settings.release_settle - now, 0.05))
        case State.WAKING if facts.ready_soon:
            # The public Service's slices are not watched, and may be written after the private ones.
            pauses.append(_SLICE_PAUSE)
        case State.PROXY if not facts.resolvers and memory.loss_slot is not None:
            pauses.append(memory.loss_slot - now)
        case State.PROXY if not facts.resolvers and lost_for < settings.resolver_loss_grace:
            pauses.append(settings.resolver_loss_grace - lost_for)
    if memory.state is not None and HOLDS[memory.state].slice and memory.probe_failures:
        pauses.append(_grown(_PROBE_PAUSE, memory.probe_failures, _LONGEST_PROBE_PAUSE))
    if memory.kind_failures:
        # No watch tells when a kind is installed, or allowed.
        pauses.append(_grown(_KIND_PAUSE, memory.kind_failures, _LONGEST_KIND_PAUSE))
    if memory.keda_failures and owed_to_keda(memory.state, facts, memory):
        pauses.append(memory.keda_again - now)
    return max(min(pauses), _SOON) if pauses else None


def keda_pause(failures: int) -> float:
    """Return how long to wait before KEDA is asked again to go on, after so many failures."""
    return _grown(_KEDA_PAUSE, failures, _LONGEST_KEDA_PAUSE)


def _grown(first: float, failures: int, longest: float) -> float:
    return min(first * 2.0 ** min(failures - 1, 10), longest)
