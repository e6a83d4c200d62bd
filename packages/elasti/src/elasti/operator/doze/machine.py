"""The doze of a target as a table, and the writes that each state asks for. Pure.

The originals are in status before the first request changes, and so is the direction: whatever a crash
leaves, each request is its original or its dozed value, and the next leader goes on in the direction
that status has. A request that is neither is another writer's, and is left alone.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple, TypeAlias

from elasti.api.states import DozeState
from elasti.api.types import DozeStatus
from elasti.operator.doze.requests import Originals, is_settled, resize
from elasti.operator.model.doze import DozePod
from kubeloop.objects.meta import JsonObject


class Wish(enum.Enum):
    """What is decided. KEEP: nothing new is known, so the state stays."""

    DOZE = "doze"
    KEEP = "keep"
    WAKE = "wake"


class DozeReason(enum.StrEnum):
    """Why a doze goes from one state to the next."""

    IDLE = "Idle"
    IN_USE = "InUse"
    REFUSED = "Refused"
    SHRUNK = "Shrunk"
    GROWN = "Grown"
    NO_ROOM = "NoRoom"
    NO_PODS = "NoPods"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What the table sees at one moment."""

    wish: Wish
    shrinkable: bool = False  #: a pod is old enough, and requests more than it would while dozing
    shrunk: bool = False  #: no such pod is left
    refused: bool = False  #: the server refused to shrink one
    grown: bool = False  #: every pod has its originals, confirmed by its kubelet
    overdue: bool = False  #: it had ten seconds for that
    spare: bool = False  #: one more pod was asked for
    gone: bool = False  #: there are no pods


class Rule(NamedTuple):
    """Leave for `to` when the condition holds."""

    when: Callable[[Seen], bool]
    to: DozeState
    why: DozeReason


_WAKE = Rule(lambda seen: seen.wish is Wish.WAKE, DozeState.GROWING, DozeReason.IN_USE)
_GONE = Rule(lambda seen: seen.gone, DozeState.FULL, DozeReason.NO_PODS)
_AGAIN = Rule(lambda seen: seen.wish is Wish.DOZE, DozeState.SHRINKING, DozeReason.IDLE)
_GROWN = Rule(lambda seen: seen.grown and not seen.spare, DozeState.FULL, DozeReason.GROWN)

# The order within a state matters: what gives requests back comes before what takes them.
RULES: Mapping[DozeState, tuple[Rule, ...]] = {
    DozeState.FULL: (
        Rule(
            lambda seen: seen.wish is Wish.DOZE and seen.shrinkable,
            DozeState.SHRINKING,
            DozeReason.IDLE,
        ),
    ),
    DozeState.SHRINKING: (
        _GONE,
        _WAKE,
        Rule(lambda seen: seen.refused, DozeState.GROWING, DozeReason.REFUSED),
        Rule(lambda seen: seen.shrunk and not seen.spare, DozeState.DOZING, DozeReason.SHRUNK),
    ),
    DozeState.DOZING: (_GONE, _WAKE),
    DozeState.GROWING: (
        _GONE,
        _GROWN,
        _AGAIN,
        Rule(lambda seen: seen.overdue and not seen.grown, DozeState.STUCK, DozeReason.NO_ROOM),
    ),
    DozeState.STUCK: (_GONE, _GROWN, _AGAIN),
}


def step(state: DozeState, seen: Seen) -> tuple[DozeState, DozeReason | None]:
    """Return the next state and why; the state itself and None if no rule fits."""
    for rule in RULES[state]:
        if rule.when(seen):
            return rule.to, rule.why
    return state, None


def derive(status: DozeStatus | None) -> DozeState:
    """Find the state from status alone, after a restart; what is unknown grows back."""
    if status is None:
        return DozeState.FULL
    known = {state.value: state for state in DozeState}
    return known.get(status.state, DozeState.GROWING)


class Resize(NamedTuple):
    """Change a pod's requests, if it is still the version that was read."""

    pod: DozePod
    operations: tuple[JsonObject, ...]


class AddSpare(NamedTuple):
    """Ask for one pod more than there are."""


class DropSpare(NamedTuple):
    """Ask for as many pods as before."""


class Evict(NamedTuple):
    """Let a stuck pod go: another one is ready in its place."""

    pod: DozePod


Write: TypeAlias = Resize | AddSpare | DropSpare | Evict


def plan(
    state: DozeState,
    status: DozeStatus,
    pods: Sequence[DozePod],
    *,
    ripe: Callable[[DozePod], bool],
    movable: bool,
) -> tuple[Write, ...]:
    """Return the writes of a state. `ripe`: the pod may shrink; `movable`: one more may be asked for."""
    originals, writes = Originals(status.containers), list[Write]()
    dozes = state in (DozeState.SHRINKING, DozeState.DOZING)
    for pod in pods:
        operations = resize(pod, originals, dozed=dozes)
        if operations and (not dozes or ripe(pod)):
            writes.append(Resize(pod, operations))
    stuck = [pod for pod in pods if not dozes and is_deferred(pod)]
    if state is not DozeState.STUCK or not stuck:
        return (*writes, DropSpare()) if status.replicas else tuple(writes)
    if movable:
        writes.append(AddSpare())
    full = [pod for pod in pods if pod.is_ready and is_settled(pod, originals)]
    serving = [pod for pod in stuck if pod.is_ready]
    if status.replicas and len(full) + len(serving) > status.replicas:
        writes.append(Evict(min(stuck, key=lambda pod: pod.metadata.name)))
    return tuple(writes)


def is_deferred(pod: DozePod) -> bool:
    """Whether its node has no room for what it requests now, or (Infeasible) never has: another may."""
    found = pod.condition("PodResizePending")
    return found is not None and found.is_true
