"""The scheduler: binds pods without a node to one that fits.

A small part of Kubernetes' scheduler: readiness, cordons, node selectors, and the number of pods that a
node takes. Taints, affinity, spreading, priorities and resource requests do not count: a dev cluster has one
node, or a few equal ones. Of several that fit, the one with the fewest pods is chosen.
"""

from __future__ import annotations

import collections
import dataclasses
from collections.abc import Iterable, Mapping, Sequence

from devkube.controllers.context import BY_NODE, ControllerSpec, SharedInformers
from devkube.controllers.objects import NODES, PODS, SlimNode, SlimPod
from devkube.controllers.pod_control import patch_living
from kubeloop.client.errors import Conflict, NotFound
from kubeloop.controller.predicates import by_kind
from kubeloop.controller.reconcile import Request
from kubeloop.informer.handlers import Added, Notification, Updated
from kubeloop.objects.gvk import GroupVersionKind
from kubeloop.objects.quantities import Quantity
from kubeloop.objects.times import format_time

NAME = "scheduler"
_POD = GroupVersionKind("", "v1", "Pod")
_DEFAULT = "default-scheduler"


@dataclasses.dataclass(frozen=True, slots=True)
class Placement:
    """The chosen node; without one, why none fits."""

    node: str = ""
    message: str = ""


def place(pod: SlimPod, nodes: Sequence[SlimNode], load: Mapping[str, int]) -> Placement:
    """Choose a node; `load` counts the pods that each has."""
    reasons = {node.metadata.name: why_not(pod, node, load) for node in nodes}
    fitting = [name for name, reason in reasons.items() if not reason]
    if fitting:
        return Placement(node=min(fitting, key=lambda name: (load.get(name, 0), name)))
    return Placement(message=_explain(list(reasons.values())))


def why_not(pod: SlimPod, node: SlimNode, load: Mapping[str, int]) -> str:
    """Return why a pod cannot run on a node; empty if it can."""
    if node.spec.unschedulable:
        return "node(s) were unschedulable"
    if not node.is_ready:
        return "node(s) were not ready"
    labels = node.metadata.labels or {}
    if any(labels.get(k) != v for k, v in (pod.spec.node_selector or {}).items()):
        return "node(s) didn't match Pod's node affinity/selector"
    room = (node.status.allocatable or {}).get("pods")
    if room is not None and load.get(node.metadata.name, 0) >= int(Quantity.parse(room)):
        return "Too many pods"
    return ""


def _explain(reasons: list[str]) -> str:
    if not reasons:
        return "no nodes available to schedule pods"
    counts = collections.Counter(reasons)
    parts = ", ".join(sorted(f"{number} {reason}" for reason, number in counts.items()))
    return f"0/{len(reasons)} nodes are available: {parts}."


class Scheduler:
    """Places one pod."""

    def __init__(self, shared: SharedInformers) -> None:
        self._shared = shared
        self._pods = shared.resource(PODS)
        self._nodes = shared.informer(NODES, SlimNode)
        self._events = shared.recorder(_DEFAULT)
        # Bound here, not yet in the cache: they count too, or a burst lands on one node.
        self._bound: dict[str, str] = {}

    async def __call__(self, request: Request) -> None:
        """Bind the pod, or say why it cannot be."""
        pod = self._shared.pods.lister.find(*request)
        if pod is None or not is_pending(pod) or pod.metadata.uid in self._bound:
            return
        placement = place(pod, self._nodes.store.list(), self._load())
        if placement.node:
            await self._bind(pod, placement.node)
        else:
            await self._give_up(pod, placement.message)

    def _load(self) -> dict[str, int]:
        store = self._shared.pods.store
        load = {
            node: sum(not pod.is_terminal for pod in store.by_index(BY_NODE, node))
            for node in store.index_values(BY_NODE)
            if node
        }
        for node in self._bound.values():
            load[node] = load.get(node, 0) + 1
        return load

    def seen(self, note: Notification[SlimPod]) -> None:
        """Forget a binding that the cache shows."""
        pod = note.new if isinstance(note, Updated) else note.obj
        if not is_pending(pod) or self._shared.pods.store.get(note.key) is None:
            self._bound.pop(pod.metadata.uid, None)

    async def _bind(self, pod: SlimPod, node: str) -> None:
        meta = pod.metadata
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid},
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        self._bound[meta.uid] = node
        try:
            await self._pods.subresource("binding").create(
                meta.name, binding, namespace=meta.namespace
            )
        except BaseException as error:
            self._bound.pop(meta.uid, None)
            if isinstance(error, NotFound | Conflict):
                return
            raise
        message = f"Successfully assigned {meta.namespace}/{meta.name} to {node}"
        self._events.normal(pod, "Scheduled", message, gvk=_POD)

    async def _give_up(self, pod: SlimPod, message: str) -> None:
        """Note it in the pod; it is tried again when nodes or pods change."""
        self._events.warning(pod, "FailedScheduling", message, gvk=_POD)
        present = pod.condition("PodScheduled")
        if present is not None and (present.status, present.message) == ("False", message):
            return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastTransitionTime": format_time(self._shared.clock.now()),
        }
        part = self._pods.subresource("status")
        await patch_living(part, pod, {"status": {"conditions": [condition]}})

    def pending(self) -> Iterable[Request]:
        """Return all pods that wait for a node."""
        waiting = self._shared.pods.store.by_index(BY_NODE, "")
        return [
            Request(pod.metadata.namespace, pod.metadata.name) for pod in waiting if is_pending(pod)
        ]


def is_pending(pod: SlimPod) -> bool:
    """Whether a pod waits for this scheduler."""
    return (
        not pod.spec.node_name
        and pod.is_active
        and not pod.spec.scheduling_gates
        and pod.spec.scheduler_name in ("", _DEFAULT)
    )


def make(shared: SharedInformers) -> ControllerSpec:
    """Return the controller."""
    scheduler = Scheduler(shared)
    part = ControllerSpec.of(NAME, scheduler)
    part.controller.watch(shared.pods, predicates=[_waits])
    shared.pods.add_handler(on_event=scheduler.seen, name="scheduler/bound")
    # A node that changed may take what waited, and a pod that went leaves room.
    part.controller.watch(
        shared.informer(NODES, SlimNode),
        mapping=lambda _note: scheduler.pending(),
        predicates=[by_kind(updated=_takes_more)],
    )
    part.controller.watch(
        shared.pods, mapping=lambda _note: scheduler.pending(), predicates=[_leaves_room]
    )
    return part


def _takes_more(note: Updated[SlimNode]) -> bool:
    """Whether more than a heartbeat changed."""
    old, new = note.old, note.new
    return (
        old.spec != new.spec
        or old.is_ready != new.is_ready
        or old.metadata.labels != new.metadata.labels
        or old.status.allocatable != new.status.allocatable
    )


def _waits(note: Notification[SlimPod]) -> bool:
    """Whether a pod began to wait; our own writes about it do not count."""
    match note:
        case Added(obj=pod):
            return is_pending(pod)
        case Updated(old=old, new=new):
            return is_pending(new) and old.spec != new.spec
        case _:
            return False


def _leaves_room(note: Notification[SlimPod]) -> bool:
    match note:
        case Updated(old=old, new=new):
            return new.is_terminal and not old.is_terminal
        case Added():
            return False
        case _:
            return True
