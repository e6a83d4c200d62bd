"""The sizes of ReplicaSets during a rolling update. Pure.

All functions return new sizes by ReplicaSet name, only for those whose size changes, so that a step
is data. They are called again after each step has taken effect. `max_surge` and `max_unavailable` say how
far a rollout may go from the wanted number of pods. A Deployment that is scaled during a rollout gets what it
lacks of the new ReplicaSet; Kubernetes would divide it among all of them.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TypeAlias

from devkube.controllers.objects import Deployment, DeploymentSpec, ReplicaSet

Sizes: TypeAlias = "Mapping[str, int]"


def scaled(value: int | str, total: int, *, round_up: bool) -> int:
    """Return a number, or a percentage of `total`; ValueError for anything else."""
    if isinstance(value, int):
        return value
    if not value.endswith("%") or not value[:-1].isdecimal():
        raise ValueError(f"{value!r} is neither a whole number nor a percentage such as '25%'")
    exact = int(value[:-1]) * total / 100
    return math.ceil(exact) if round_up else math.floor(exact)


def is_rolling(spec: DeploymentSpec) -> bool:
    """Whether old and new pods may exist at the same time."""
    return spec.strategy.type == "RollingUpdate" and spec.strategy.rolling_update is not None


def max_surge(spec: DeploymentSpec) -> int:
    """Return how many pods there may be beyond the wanted number."""
    rolling = spec.strategy.rolling_update
    if rolling is None or not is_rolling(spec):
        return 0
    return scaled(rolling.max_surge, spec.replicas, round_up=True)


def max_unavailable(spec: DeploymentSpec) -> int:
    """Return how many of the wanted pods may be missing; at least one if there is no surge."""
    rolling = spec.strategy.rolling_update
    if rolling is None or not is_rolling(spec) or spec.replicas == 0:
        return 0
    allowed = scaled(rolling.max_unavailable, spec.replicas, round_up=False)
    if allowed == 0 and max_surge(spec) == 0:
        allowed = 1
    return min(allowed, spec.replicas)


def new_size(spec: DeploymentSpec, present: int, everything: int) -> int:
    """Return how large the new ReplicaSet may be now.

    `present` is its size, `everything` the sum of all ReplicaSets' sizes, its own included.
    """
    if not is_rolling(spec):
        return spec.replicas
    room = spec.replicas + max_surge(spec) - everything
    return present if room <= 0 else present + min(room, spec.replicas - present)


def total(sets: list[ReplicaSet]) -> int:
    """Return the sum of the sizes that ReplicaSets are asked for."""
    return sum(item.spec.replicas for item in sets)


def active(sets: list[ReplicaSet]) -> list[ReplicaSet]:
    """Return the ReplicaSets that are asked for pods."""
    return [item for item in sets if item.spec.replicas > 0]


def oldest_first(sets: list[ReplicaSet]) -> list[ReplicaSet]:
    """Sort by age."""
    return sorted(sets, key=lambda s: (s.metadata.creation_timestamp or "", s.metadata.name))


def grow(deployment: Deployment, new: ReplicaSet, old: list[ReplicaSet]) -> Sizes:
    """Return the next size of the new ReplicaSet: larger if there is room, smaller if too large."""
    present = new.spec.replicas
    if present > deployment.spec.replicas:
        return {new.metadata.name: deployment.spec.replicas}
    size = new_size(deployment.spec, present, total([*old, new]))
    return {new.metadata.name: size} if size != present else {}


def shrink(deployment: Deployment, new: ReplicaSet, old: list[ReplicaSet]) -> Sizes:
    """Return the next sizes of the old ReplicaSets.

    Never below what must stay available; pods of the new ReplicaSet that are not available yet
    count as missing. Pods of old ones that are not available go first, since they serve no traffic.
    """
    minimum = deployment.spec.replicas - max_unavailable(deployment.spec)
    missing = new.spec.replicas - new.status.available_replicas
    spare = total([*old, new]) - minimum - missing
    if spare <= 0 or total(old) == 0:
        return {}
    sizes = _without_unavailable(old, spare)
    available = sum(item.status.available_replicas for item in [*old, new])
    sizes = _reduced(old, sizes, available - minimum)
    return {
        item.metadata.name: sizes[item.metadata.name]
        for item in old
        if sizes[item.metadata.name] != item.spec.replicas
    }


def _without_unavailable(old: list[ReplicaSet], spare: int) -> dict[str, int]:
    sizes = {item.metadata.name: item.spec.replicas for item in old}
    for item in oldest_first(active(old)):
        step = min(spare, max(0, item.spec.replicas - item.status.available_replicas))
        sizes[item.metadata.name] -= step
        spare -= step
    return sizes


def _reduced(old: list[ReplicaSet], sizes: dict[str, int], spare: int) -> dict[str, int]:
    for item in oldest_first(active(old)):
        step = max(0, min(sizes[item.metadata.name], spare))
        sizes[item.metadata.name] -= step
        spare -= step
    return sizes


def all_to_zero(old: list[ReplicaSet]) -> Sizes:
    """Return sizes without any pod."""
    return {item.metadata.name: 0 for item in active(old)}


def paused_size(deployment: Deployment, new: ReplicaSet | None, old: list[ReplicaSet]) -> Sizes:
    """Return the size of the one ReplicaSet that a paused Deployment has pods of; it can be scaled."""
    everything = [*old, new] if new is not None else old
    only = active(everything) or everything[-1:]
    wanted = deployment.spec.replicas
    if len(only) != 1 or only[0].spec.replicas == wanted:
        return {}
    return {only[0].metadata.name: wanted}
