"""Which pods a ReplicaSet needs, and which to give up. Pure."""

from __future__ import annotations

import collections
import dataclasses
import math
from typing import TYPE_CHECKING, TypeAlias

from kubeloop.objects.times import parse_time

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Iterable, Sequence

    from elasti.devcluster.controllers.pods import Pod

# A single step never makes or deletes more than this.
BURST = 500
_PHASES = {"Pending": 0, "Unknown": 1, "Running": 2}
_COST = "controller.kubernetes.io/pod-deletion-cost"

_Rank: TypeAlias = tuple[bool, int, bool, int, int, int, int, int, str]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PodPlan:
    """How many pods to create, or which to delete; never both."""

    create: int = 0
    delete: tuple[Pod, ...] = ()


def plan_pods(
    wanted: int, active: Sequence[Pod], *, related: Iterable[Pod], now: dt.datetime
) -> PodPlan:
    """Compare the wanted number with the active pods.

    `related` are all pods of the same Deployment: of two equal pods the one on the fuller node goes.
    """
    surplus = len(active) - wanted
    if surplus <= 0:
        return PodPlan(create=min(-surplus, BURST))
    return PodPlan(delete=tuple(victims(active, related, now)[: min(surplus, BURST)]))


def victims(pods: Sequence[Pod], related: Iterable[Pod], now: dt.datetime) -> list[Pod]:
    """Return the pods in the order in which they can be spared.

    First those without a node, then pending before running, not ready before ready, by deletion
    cost, from the fullest node, ready for a shorter time, restarted oftener, younger. Times are
    compared by magnitude only, so that no generation of pods is always the one to go.
    """
    crowd = collections.Counter(pod.spec.node_name for pod in related if pod.is_active)

    def rank(pod: Pod) -> _Rank:
        since = pod.ready_since()
        created = pod.metadata.creation_timestamp
        return (
            bool(pod.spec.node_name),
            _PHASES.get(pod.status.phase, 0),
            pod.is_ready,
            _deletion_cost(pod),
            -crowd[pod.spec.node_name],
            _magnitude(since, now),
            -pod.restarts,
            _magnitude(parse_time(created) if created else None, now),
            pod.metadata.uid,
        )

    return sorted(pods, key=rank)


def _magnitude(moment: dt.datetime | None, now: dt.datetime) -> int:
    if moment is None:
        return -2
    seconds = (now - moment).total_seconds()
    return int(math.log2(seconds)) if seconds >= 1 else -1


def _deletion_cost(pod: Pod) -> int:
    text = (pod.metadata.annotations or {}).get(_COST, "0")
    try:
        return int(text)
    except ValueError:
        return 0
