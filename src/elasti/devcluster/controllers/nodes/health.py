"""What a node's condition should be, and which taints follow from it. Pure."""

from __future__ import annotations

import datetime as dt
from typing import TYPE_CHECKING

from elasti.devcluster.controllers.nodes.objects import NodeCondition, Taint
from kubeloop.objects.times import format_time, parse_time

if TYPE_CHECKING:
    from elasti.devcluster.controllers.nodes.objects import Lease, Node

_NOT_READY = "node.kubernetes.io/not-ready"
_UNREACHABLE = "node.kubernetes.io/unreachable"
_CORDON = "node.kubernetes.io/unschedulable"
_OURS = (_NOT_READY, _UNREACHABLE, _CORDON)
_REASON, _MESSAGE = "NodeStatusUnknown", "Kubelet stopped posting node status."


def silent_in(lease: Lease | None, grace: float, now: dt.datetime) -> float | None:
    """Return the seconds until a node counts as lost, 0 where it is; None where it has no lease.

    A node that never had a lease has no kubelet: it is an object that somebody made, and stays as
    they made it.
    """
    if lease is None or not lease.spec.renew_time:
        return None
    due = parse_time(lease.spec.renew_time) + dt.timedelta(seconds=grace)
    return max(0.0, (due - now).total_seconds())


def lost_conditions(node: Node, now: dt.datetime) -> tuple[NodeCondition, ...] | None:
    """Return the conditions of a lost node: nothing is known any more; None where they are so."""
    present = node.status.conditions or ()
    if present and all(c.status == "Unknown" for c in present) and node.ready is not None:
        return None
    stamp = format_time(now)
    kinds = {c.type: c for c in present}
    kinds.setdefault("Ready", NodeCondition(type="Ready", status=""))
    return tuple(_unknown(condition, stamp) for condition in kinds.values())


def _unknown(condition: NodeCondition, stamp: str) -> NodeCondition:
    if condition.status == "Unknown":
        return condition
    return NodeCondition(
        type=condition.type,
        status="Unknown",
        reason=_REASON,
        message=_MESSAGE,
        last_heartbeat_time=condition.last_heartbeat_time,
        last_transition_time=stamp,
    )


def wanted_taints(node: Node, now: dt.datetime) -> tuple[Taint, ...] | None:
    """Return the taints that a node should have; None where it has them.

    Those of others stay. A node that is not ready, or not heard of, takes no new pods; nothing here
    evicts the pods that it has.
    """
    present = node.spec.taints or ()
    marks = {(t.key, t.effect): t for t in present}
    wanted = {(t.key, t.effect): t for t in present if t.key not in _OURS}
    stamp = format_time(now)
    for key, effect in _marks(node):
        wanted[key, effect] = marks.get((key, effect)) or Taint(
            key=key, effect=effect, time_added=stamp
        )
    return tuple(wanted.values()) if wanted.keys() != marks.keys() else None


def _marks(node: Node) -> list[tuple[str, str]]:
    marks = [(_CORDON, "NoSchedule")] if node.spec.unschedulable else []
    ready = node.ready
    if ready is not None and ready.status != "True":
        key = _UNREACHABLE if ready.status == "Unknown" else _NOT_READY
        marks += [(key, "NoSchedule"), (key, "NoExecute")]
    return marks
