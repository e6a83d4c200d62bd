"""Pods, nodes and workloads, their templates and statuses, as much of them as controllers need.

Templates stay dictionaries: they are copied and compared whole. A template that went through an API
server may have gained or lost empty fields; they do not count. The hash is stable but not Kubernetes' own
number: only the controller that wrote it down as a label reads it.

A Struct's defaults are the API's defaults or its zeros, and `omit_defaults` writes a status as Kubernetes
does, without zeros; of a status only what changed is written.
"""

from __future__ import annotations

import copy
import datetime as dt
import hashlib
from collections.abc import Iterable
from typing import Any, TypeVar

import msgspec

from kubeloop.objects.core import Pod, PodSpec
from kubeloop.objects.gvk import GroupVersionKind, GroupVersionResource
from kubeloop.objects.meta import JsonObject, ObjectMeta, OwnerReference
from kubeloop.objects.patches import create_merge_patch
from kubeloop.objects.times import parse_time

PODS = GroupVersionResource("", "v1", "pods")
NODES = GroupVersionResource("", "v1", "nodes")
LEASES = GroupVersionResource("coordination.k8s.io", "v1", "leases")
LEASE_NAMESPACE = "kube-node-lease"
DEPLOYMENTS = GroupVersionResource("apps", "v1", "deployments")
REPLICA_SETS = GroupVersionResource("apps", "v1", "replicasets")
STATEFUL_SETS = GroupVersionResource("apps", "v1", "statefulsets")
REVISIONS = GroupVersionResource("apps", "v1", "controllerrevisions")
DEPLOYMENT = GroupVersionKind("apps", "v1", "Deployment")
REPLICA_SET = GroupVersionKind("apps", "v1", "ReplicaSet")
STATEFUL_SET = GroupVersionKind("apps", "v1", "StatefulSet")
TEMPLATE_HASH = "pod-template-hash"
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_MAPS = frozenset({"labels", "annotations", "nodeSelector", "metadata"})
S = TypeVar("S", bound=msgspec.Struct)


class SlimPodSpec(PodSpec, rename="camel", frozen=True, gc=False):
    """The part of a pod's spec that controllers and the scheduler read."""

    scheduler_name: str = ""
    node_selector: dict[str, str] | None = None
    scheduling_gates: tuple[JsonObject, ...] | None = None


class SlimPod(Pod, rename="camel", frozen=True, gc=False):
    """A pod."""

    spec: SlimPodSpec = SlimPodSpec()

    @property
    def is_active(self) -> bool:
        """Whether it counts as a replica."""
        return not self.is_deleting and not self.is_terminal

    def available_in(self, min_ready_seconds: int, now: dt.datetime) -> float | None:
        """Return the seconds until it counts as available, 0 if it does; None if not ready."""
        ready = self.condition("Ready")
        if ready is None or not ready.is_true:
            return None
        if min_ready_seconds == 0:
            return 0.0
        if not ready.last_transition_time:
            return None
        due = parse_time(ready.last_transition_time) + dt.timedelta(seconds=min_ready_seconds)
        return max(0.0, (due - now).total_seconds())


def is_available(pod: SlimPod, min_ready_seconds: int, now: dt.datetime) -> bool:
    """Whether a pod has been ready for long enough."""
    return pod.available_in(min_ready_seconds, now) == 0.0


def next_availability(
    pods: Iterable[SlimPod], min_ready_seconds: int, now: dt.datetime
) -> float | None:
    """Return the seconds until the next of them becomes available; None if none will."""
    waits = [pod.available_in(min_ready_seconds, now) for pod in pods]
    return min((wait for wait in waits if wait), default=None)


class NodeSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """Whether a node accepts new pods."""

    unschedulable: bool = False


class WorkloadCondition(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """A condition of a node or a workload; `last_update_time` is of Deployments only."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_update_time: str | None = None
    last_transition_time: str | None = None


class NodeStatus(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """The status that a node reports."""

    conditions: tuple[WorkloadCondition, ...] | None = None
    allocatable: dict[str, str | int] | None = None


class SlimNode(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A node."""

    metadata: ObjectMeta
    spec: NodeSpec = NodeSpec()
    status: NodeStatus = NodeStatus()

    @property
    def ready(self) -> WorkloadCondition | None:
        """The Ready condition."""
        return next((c for c in self.status.conditions or () if c.type == "Ready"), None)

    @property
    def is_ready(self) -> bool:
        """Whether it says that it can run pods."""
        return self.ready is not None and self.ready.status == "True"


class NodeLeaseSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """When a node was last heard of."""

    renew_time: str | None = None


class NodeLease(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A node's lease."""

    metadata: ObjectMeta
    spec: NodeLeaseSpec = NodeLeaseSpec()


class WorkloadSpec(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """How many pods, of which template."""

    replicas: int = 1
    min_ready_seconds: int = 0
    selector: JsonObject | None = None
    template: JsonObject = {}


class WorkloadStatus(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """How many pods there are."""

    observed_generation: int = 0
    replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    conditions: tuple[WorkloadCondition, ...] | None = None


class ReplicaSetStatus(WorkloadStatus, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """How many pods there are, and how many have the labels of the template."""

    fully_labeled_replicas: int = 0


class ReplicaSet(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A ReplicaSet."""

    metadata: ObjectMeta
    spec: WorkloadSpec = WorkloadSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()


class RollingUpdate(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """How far a rolling update may go from the wanted number; numbers or percentages."""

    max_surge: int | str = "25%"
    max_unavailable: int | str = "25%"


class DeploymentStrategy(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """How new pods take the place of old ones."""

    type: str = "RollingUpdate"
    rolling_update: RollingUpdate | None = None


class DeploymentSpec(WorkloadSpec, rename="camel", frozen=True, gc=False):
    """The spec of a Deployment."""

    strategy: DeploymentStrategy = DeploymentStrategy()
    revision_history_limit: int | None = None
    progress_deadline_seconds: int | None = None
    paused: bool = False


class DeploymentStatus(WorkloadStatus, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """How far a Deployment is."""

    updated_replicas: int = 0
    unavailable_replicas: int = 0


class Deployment(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A Deployment."""

    metadata: ObjectMeta
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class StatefulUpdate(msgspec.Struct, frozen=True, gc=False):
    """Which ordinals a rolling update reaches."""

    partition: int = 0


class StatefulStrategy(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """How new pods take the place of old ones."""

    type: str = "RollingUpdate"
    rolling_update: StatefulUpdate | None = None


class StatefulSetSpec(WorkloadSpec, rename="camel", frozen=True, gc=False):
    """The spec of a StatefulSet."""

    service_name: str = ""
    pod_management_policy: str = "OrderedReady"
    update_strategy: StatefulStrategy = StatefulStrategy()
    revision_history_limit: int | None = 10
    volume_claim_templates: tuple[JsonObject, ...] | None = None


class StatefulSetStatus(WorkloadStatus, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """How far a StatefulSet is."""

    current_replicas: int = 0
    updated_replicas: int = 0
    current_revision: str = ""
    update_revision: str = ""
    collision_count: int | None = None


class StatefulSet(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A StatefulSet."""

    metadata: ObjectMeta
    spec: StatefulSetSpec = StatefulSetSpec()
    status: StatefulSetStatus = StatefulSetStatus()


class ControllerRevision(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """One remembered template of a StatefulSet; `data` is the patch that brings it back."""

    metadata: ObjectMeta
    revision: int = 0
    data: JsonObject = {}


def normal_form(value: Any, name: str = "") -> Any:
    """Return a value without the fields that say nothing: nulls, empty lists, empty maps of text."""
    if isinstance(value, dict):
        parts = {key: normal_form(item, key) for key, item in value.items()}
        return {key: item for key, item in parts.items() if not _is_nothing(key, item)}
    if isinstance(value, list | tuple):
        return [normal_form(item, name) for item in value]
    return value


def _is_nothing(name: str, value: Any) -> bool:
    return value is None or value == [] or (value == {} and name in _MAPS)


def same_template(left: JsonObject, right: JsonObject) -> bool:
    """Whether two templates make the same pods, apart from the hash label."""
    plain = [with_label(template, TEMPLATE_HASH, "") for template in (left, right)]
    return bool(normal_form(plain[0]) == normal_form(plain[1]))


def hash_of(document: JsonObject) -> str:
    """Return a short hash that may be part of a name: letters and digits that make no words."""
    data = msgspec.json.encode(normal_form(document), order="sorted")
    number = int.from_bytes(hashlib.blake2b(data, digest_size=4).digest(), "big")
    return "".join(_ALPHABET[ord(char) % len(_ALPHABET)] for char in str(number))


def with_label(template: JsonObject, name: str, value: str) -> JsonObject:
    """Return a copy of the template with one more label."""
    result = copy.deepcopy(template)
    result.setdefault("metadata", {}).setdefault("labels", {})[name] = value
    return result


def pod_from(template: JsonObject, owner: OwnerReference, *, prefix: str = "") -> JsonObject:
    """Return a pod to create: the template's labels, annotations, finalizers and spec."""
    source = template.get("metadata") or {}
    kept = ("labels", "annotations", "finalizers")
    metadata: JsonObject = {name: source[name] for name in kept if source.get(name)}
    metadata["ownerReferences"] = [msgspec.to_builtins(owner)]
    if prefix:
        metadata["generateName"] = prefix
    spec = copy.deepcopy(template.get("spec") or {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": copy.deepcopy(metadata), "spec": spec}


def status_patch(old: S, new: S, *, always: tuple[str, ...] = ()) -> JsonObject:
    """Return the merge patch from one status to another; empty if they are equal.

    `always` are fields that the API shows even when they are zero.
    """
    before, after = msgspec.to_builtins(old), msgspec.to_builtins(new)
    patch = create_merge_patch(before, after)
    if patch or not before:
        patch.update({name: after.get(name, 0) for name in always})
    return patch
