"""Which node a pod may run on. Pure.

A small part of a scheduler: readiness, cordons, node selectors, taints, and the number of pods that
a node takes. Affinity, spreading, priorities and resource requests are not looked at: a dev cluster
has one node, or a few equal ones. Of several that fit, the one with the fewest pods is chosen.
"""

from __future__ import annotations

import collections
import dataclasses
from typing import TYPE_CHECKING

from kubeloop.objects.quantities import Quantity

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from elasti.devcluster.controllers.nodes.objects import Node, Taint
    from elasti.devcluster.controllers.pods import Pod, Toleration

_KEEPS_AWAY = ("NoSchedule", "NoExecute")
_CORDON = "node.kubernetes.io/unschedulable"


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """The chosen node; without one, why none fits."""

    node: str = ""
    message: str = ""


def place(pod: Pod, nodes: Sequence[Node], load: Mapping[str, int]) -> Placement:
    """Choose a node; `load` counts the pods that each has."""
    reasons = {node.metadata.name: why_not(pod, node, load) for node in nodes}
    fitting = [name for name, reason in reasons.items() if not reason]
    if fitting:
        return Placement(node=min(fitting, key=lambda name: (load.get(name, 0), name)))
    return Placement(message=_explain(list(reasons.values())))


def why_not(pod: Pod, node: Node, load: Mapping[str, int]) -> str:
    """Return why a pod cannot run on a node; empty where it can."""
    tolerations = pod.spec.tolerations or ()
    if node.spec.unschedulable and not _tolerates_cordon(tolerations):
        return "node(s) were unschedulable"
    for taint in node.spec.taints or ():
        if taint.effect in _KEEPS_AWAY and not any(_tolerates(t, taint) for t in tolerations):
            return f"node(s) had untolerated taint(s) {{{taint.key}: {taint.value}}}"
    if not node.is_ready:
        return "node(s) were not ready"
    labels = node.metadata.labels or {}
    if any(labels.get(k) != v for k, v in (pod.spec.node_selector or {}).items()):
        return "node(s) didn't match Pod's node affinity/selector"
    room = (node.status.allocatable or {}).get("pods")
    if room is not None and load.get(node.metadata.name, 0) >= int(Quantity.parse(room)):
        return "Too many pods"
    return ""


def _tolerates(toleration: Toleration, taint: Taint) -> bool:
    if toleration.effect and toleration.effect != taint.effect:
        return False
    if toleration.key and toleration.key != taint.key:
        return False
    return toleration.operator == "Exists" or (
        bool(toleration.key) and toleration.value == taint.value
    )


def _tolerates_cordon(tolerations: Sequence[Toleration]) -> bool:
    return any(
        t.operator == "Exists" and t.key in ("", _CORDON) and t.effect in ("", "NoSchedule")
        for t in tolerations
    )


def _explain(reasons: list[str]) -> str:
    if not reasons:
        return "no nodes available to schedule pods"
    counts = collections.Counter(reasons)
    parts = ", ".join(sorted(f"{number} {reason}" for reason, number in counts.items()))
    return f"0/{len(reasons)} nodes are available: {parts}."
