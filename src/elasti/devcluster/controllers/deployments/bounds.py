"""How far a rollout may go from the wanted number of pods. Pure."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasti.devcluster.controllers.workloads import DeploymentSpec, ReplicaSet


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
    """Return how many of the wanted pods may be missing; at least one where there is no surge."""
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
    if room <= 0:
        return present
    return present + min(room, spec.replicas - present)


def total(sets: list[ReplicaSet]) -> int:
    """Return the sum of the sizes that ReplicaSets are asked for."""
    return sum(item.spec.replicas for item in sets)
