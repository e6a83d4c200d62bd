"""The scheduler: binds pods without a node to one that fits."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.devcluster.controllers.hub import BY_NODE
from elasti.devcluster.controllers.nodes.fitting import place
from elasti.devcluster.controllers.nodes.objects import NODES, Node
from elasti.devcluster.controllers.parts import Part
from elasti.devcluster.controllers.pods import PODS
from kubeloop.client.errors import Conflict, NotFound
from kubeloop.controller.predicates import by_kind
from kubeloop.controller.reconcile import Request
from kubeloop.informer.notifications import Added, Updated
from kubeloop.objects.gvk import GroupVersionKind
from kubeloop.objects.patches import StrategicMergePatch
from kubeloop.objects.times import format_time

if TYPE_CHECKING:
    from collections.abc import Iterable

    from elasti.devcluster.controllers.hub import Hub
    from elasti.devcluster.controllers.pods import Pod
    from kubeloop.informer.notifications import Notification

NAME = "scheduler"
_DEFAULT = "default-scheduler"


class Scheduler:
    """Places one pod."""

    def __init__(self, hub: Hub) -> None:
        self._hub = hub
        self._pods = hub.resource(PODS)
        self._nodes = hub.informer(NODES, Node)
        self._voice = hub.recorder.voice(_DEFAULT, GroupVersionKind("", "v1", "Pod"))
        # Bound here, not yet in the cache: they count too, or a burst lands on one node.
        self._bound: dict[str, str] = {}

    async def __call__(self, request: Request) -> None:
        """Bind the pod, or say why it cannot be."""
        pod = self._hub.pods.lister.find(*request)
        if pod is None or not is_pending(pod) or pod.metadata.uid in self._bound:
            return
        placement = place(pod, self._nodes.store.list(), self._load())
        if placement.node:
            await self._bind(pod, placement.node)
        else:
            await self._give_up(pod, placement.message)

    def _load(self) -> dict[str, int]:
        store = self._hub.pods.store
        load = {
            node: sum(not pod.is_terminal for pod in store.by_index(BY_NODE, node))
            for node in store.index_values(BY_NODE)
            if node
        }
        for node in self._bound.values():
            load[node] = load.get(node, 0) + 1
        return load

    def seen(self, note: Notification[Pod]) -> None:
        """Forget a binding that the cache shows."""
        pod = note.new if isinstance(note, Updated) else note.obj
        if not is_pending(pod) or self._hub.pods.store.get(note.key) is None:
            self._bound.pop(pod.metadata.uid, None)

    async def _bind(self, pod: Pod, node: str) -> None:
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
        self._voice.normal(pod, "Scheduled", message)

    async def _give_up(self, pod: Pod, message: str) -> None:
        """Note it in the pod; it is tried again when nodes or pods change."""
        self._voice.warning(pod, "FailedScheduling", message)
        present = pod.condition("PodScheduled")
        if present is not None and (present.status, present.message) == ("False", message):
            return
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": message,
            "lastTransitionTime": format_time(self._hub.clock.now()),
        }
        patch = {"metadata": {"uid": pod.metadata.uid}, "status": {"conditions": [condition]}}
        try:
            await self._pods.subresource("status").patch(
                pod.metadata.name, StrategicMergePatch(patch), namespace=pod.metadata.namespace
            )
        except NotFound:
            return

    def pending(self) -> Iterable[Request]:
        """Return all pods that wait for a node."""
        waiting = self._hub.pods.store.by_index(BY_NODE, "")
        return [
            Request(pod.metadata.namespace, pod.metadata.name) for pod in waiting if is_pending(pod)
        ]


def is_pending(pod: Pod) -> bool:
    """Whether a pod waits for this scheduler."""
    return (
        not pod.spec.node_name
        and pod.is_active
        and not pod.spec.scheduling_gates
        and pod.spec.scheduler_name in ("", _DEFAULT)
    )


def make(hub: Hub) -> Part:
    """Return the controller."""
    scheduler = Scheduler(hub)
    part = Part.of(NAME, scheduler)
    part.controller.watch(hub.pods, predicates=[_waits])
    hub.pods.add_handler(on_event=scheduler.seen, name="scheduler/bound")
    # A node that changed may take what waited, and a pod that went leaves room.
    part.controller.watch(
        hub.informer(NODES, Node),
        mapping=lambda _note: scheduler.pending(),
        predicates=[by_kind(updated=_takes_more)],
    )
    part.controller.watch(
        hub.pods, mapping=lambda _note: scheduler.pending(), predicates=[_leaves_room]
    )
    return part


def _takes_more(note: Updated[Node]) -> bool:
    """Whether more than a heartbeat changed."""
    old, new = note.old, note.new
    return (
        old.spec != new.spec
        or old.is_ready != new.is_ready
        or old.metadata.labels != new.metadata.labels
        or old.status.allocatable != new.status.allocatable
    )


def _waits(note: Notification[Pod]) -> bool:
    """Whether a pod came to wait; what we wrote about it ourselves is no news."""
    match note:
        case Added(obj=pod):
            return is_pending(pod)
        case Updated(old=old, new=new):
            return is_pending(new) and old.spec != new.spec
        case _:
            return False


def _leaves_room(note: Notification[Pod]) -> bool:
    match note:
        case Updated(old=old, new=new):
            return new.is_terminal and not old.is_terminal
        case Added():
            return False
        case _:
            return True
