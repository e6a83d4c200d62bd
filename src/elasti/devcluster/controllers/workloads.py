"""Deployments, ReplicaSets and StatefulSets, as much of them as their controllers read.

Templates stay dictionaries: they are copied and compared whole. A Struct's defaults are the API's
defaults or its zeros, and `omit_defaults` writes a status as Kubernetes does, without zeros.
"""

from __future__ import annotations

import msgspec

from kubeloop.objects.gvk import GroupVersionKind, GroupVersionResource
from kubeloop.objects.meta import JsonObject, ObjectMeta

DEPLOYMENTS = GroupVersionResource("apps", "v1", "deployments")
REPLICA_SETS = GroupVersionResource("apps", "v1", "replicasets")
STATEFUL_SETS = GroupVersionResource("apps", "v1", "statefulsets")
REVISIONS = GroupVersionResource("apps", "v1", "controllerrevisions")
DEPLOYMENT = GroupVersionKind("apps", "v1", "Deployment")
REPLICA_SET = GroupVersionKind("apps", "v1", "ReplicaSet")
STATEFUL_SET = GroupVersionKind("apps", "v1", "StatefulSet")


class WorkloadCondition(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """A condition of a workload; `last_update_time` is of Deployments only."""

    type: str
    status: str
    reason: str = ""
    message: str = ""
    last_update_time: str | None = None
    last_transition_time: str | None = None


class ReplicaSetSpec(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """How many pods, of which template."""

    replicas: int = 1
    min_ready_seconds: int = 0
    selector: JsonObject | None = None
    template: JsonObject = {}


class ReplicaSetStatus(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """How many pods there are."""

    replicas: int = 0
    fully_labeled_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    terminating_replicas: int | None = None
    observed_generation: int = 0
    conditions: tuple[WorkloadCondition, ...] | None = None


class ReplicaSet(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A ReplicaSet."""

    metadata: ObjectMeta
    spec: ReplicaSetSpec = ReplicaSetSpec()
    status: ReplicaSetStatus = ReplicaSetStatus()


class RollingUpdate(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """How far a rolling update may go from the wanted number; numbers or percentages."""

    max_surge: int | str = "25%"
    max_unavailable: int | str = "25%"


class DeploymentStrategy(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """How new pods take the place of old ones."""

    type: str = "RollingUpdate"
    rolling_update: RollingUpdate | None = None


class DeploymentSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What a Deployment wants."""

    replicas: int = 1
    selector: JsonObject | None = None
    template: JsonObject = {}
    strategy: DeploymentStrategy = DeploymentStrategy()
    min_ready_seconds: int = 0
    revision_history_limit: int | None = None
    progress_deadline_seconds: int | None = None
    paused: bool = False


class DeploymentStatus(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """How far a Deployment is."""

    observed_generation: int = 0
    replicas: int = 0
    updated_replicas: int = 0
    ready_replicas: int = 0
    available_replicas: int = 0
    unavailable_replicas: int = 0
    terminating_replicas: int | None = None
    collision_count: int | None = None
    conditions: tuple[WorkloadCondition, ...] | None = None


class Deployment(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A Deployment."""

    metadata: ObjectMeta
    spec: DeploymentSpec = DeploymentSpec()
    status: DeploymentStatus = DeploymentStatus()


class StatefulUpdate(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """Which ordinals a rolling update reaches, and how many at once."""

    partition: int = 0
    max_unavailable: int | str | None = None


class StatefulStrategy(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """How new pods take the place of old ones."""

    type: str = "RollingUpdate"
    rolling_update: StatefulUpdate | None = None


class Ordinals(msgspec.Struct, frozen=True, gc=False):
    """The number of the first pod."""

    start: int = 0


class StatefulSetSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What a StatefulSet wants."""

    replicas: int = 1
    selector: JsonObject | None = None
    template: JsonObject = {}
    service_name: str = ""
    pod_management_policy: str = "OrderedReady"
    update_strategy: StatefulStrategy = StatefulStrategy()
    revision_history_limit: int | None = 10
    min_ready_seconds: int = 0
    ordinals: Ordinals | None = None
    volume_claim_templates: tuple[JsonObject, ...] | None = None


class StatefulSetStatus(msgspec.Struct, rename="camel", omit_defaults=True, frozen=True, gc=False):
    """How far a StatefulSet is."""

    observed_generation: int = 0
    replicas: int = 0
    ready_replicas: int = 0
    current_replicas: int = 0
    updated_replicas: int = 0
    available_replicas: int = 0
    current_revision: str = ""
    update_revision: str = ""
    collision_count: int | None = None
    conditions: tuple[WorkloadCondition, ...] | None = None


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
