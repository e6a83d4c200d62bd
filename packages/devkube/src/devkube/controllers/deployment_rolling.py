"""The sizes of ReplicaSets during a rolling update, and when a Deployment is resized. Pure.

All functions return new sizes by ReplicaSet name, only for those whose size changes, so that a step
is data. They are called again after each step has taken effect. `max_surge` and `max_unavailable` say how
far a rollout may go from the wanted number of pods.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping

    from devkube.controllers.workloads import Deployment, DeploymentSpec, ReplicaSet


DESIRED = "deployment.kubernetes.io/desired-replicas"
MAXIMUM = "deployment.kubernetes.io/max-replicas"
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


def was_resized(deployment: Deployment, sets: list[ReplicaSet]) -> bool:
    """Whether the wanted number changed since the ReplicaSets were last written."""
    wanted = deployment.spec.replicas
    noted = (_number(item, DESIRED) for item in active(sets))
    return any(number is not None and number != wanted for number in noted)


def resize(deployment: Deployment, new: ReplicaSet | None, old: list[ReplicaSet]) -> Sizes:
    """Return sizes for a changed number of pods, without moving a rollout on.

    With one active ReplicaSet it gets everything. During a rollout all active ones keep their share,
    so that a resize does not hurry a rollout that may be broken; what rounding leaves goes to the
    largest.
    """
    wanted = deployment.spec.replicas
    everything = [*old, new] if new is not None else list(old)
    running = active(everything)
    if len(running) <= 1:
        only = _only(running, new, old)
        changes = only is not None and only.spec.replicas != wanted
        return {only.metadata.name: wanted} if only is not None and changes else {}
    if new is not None and _is_saturated(deployment, new):
        return all_to_zero(old)
    return _proportional(deployment, running) if is_rolling(deployment.spec) else {}


def _only(
    running: list[ReplicaSet], new: ReplicaSet | None, old: list[ReplicaSet]
) -> ReplicaSet | None:
    """Return the ReplicaSet that gets everything: the active, else the new, else the newest."""
    if running:
        return running[0]
    if new is not None:
        return new
    return oldest_first(old)[-1] if old else None


def _is_saturated(deployment: Deployment, new: ReplicaSet) -> bool:
    wanted = deployment.spec.replicas
    return (
        new.spec.replicas == wanted
        and _number(new, DESIRED) == wanted
        and new.status.available_replicas == wanted
    )


def _proportional(deployment: Deployment, running: list[ReplicaSet]) -> Sizes:
    wanted = deployment.spec.replicas
    allowed = wanted + max_surge(deployment.spec) if wanted > 0 else 0
    to_add = allowed - total(running)
    # The larger first; of equals the newer when growing, the older when shrinking.
    by_age = oldest_first(running)
    ordered = sorted(by_age[::-1] if to_add > 0 else by_age, key=lambda s: -s.spec.replicas)
    sizes: dict[str, int] = {}
    added = 0
    for item in ordered:
        share = _share(deployment, item, to_add - added) if to_add else 0
        sizes[item.metadata.name] = item.spec.replicas + share
        added += share
    if to_add:
        largest = ordered[0].metadata.name
        sizes[largest] = max(0, sizes[largest] + to_add - added)
    return sizes


def _share(deployment: Deployment, item: ReplicaSet, left: int) -> int:
    if left == 0:
        return 0
    fraction = _fraction(deployment, item)
    return min(fraction, left) if left > 0 else max(fraction, left)


def _fraction(deployment: Deployment, item: ReplicaSet) -> int:
    size, wanted = item.spec.replicas, deployment.spec.replicas
    if wanted == 0:
        return -size
    before = _number(item, MAXIMUM) or deployment.status.replicas
    if before == 0:
        return 0
    exact = size * (wanted + max_surge(deployment.spec)) / before
    return math.floor(exact + 0.5) - size


def _number(item: ReplicaSet, annotation: str) -> int | None:
    text = (item.metadata.annotations or {}).get(annotation, "")
    return int(text) if text.isdecimal() else None
