"""Scale targets: which workload it is, and what is known of it."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from elasti.api.types import (
    CapacityStatus,
    ElastiService,
    ElastiServiceSpec,
    ElastiServiceStatus,
)
from elasti.api.usage import RequestingPod, pod_request

# KubeElasti takes these plurals for kinds.
_LEGACY_KINDS = {"deployments": "Deployment", "rollouts": "Rollout", "statefulsets": "StatefulSet"}

PODS_ENDING = "its pods are still terminating, and the strategy Recreate starts no new pods until they are gone"


@dataclasses.dataclass(frozen=True, slots=True)
class ScaleTarget:
    """The workload that sleeps and wakes."""

    namespace: str
    api_version: str
    kind: str
    name: str

    @classmethod
    def of(cls, namespace: str, api_version: str, kind: str, name: str) -> ScaleTarget:
        """Name a target as users write it; KubeElasti's plurals become kinds."""
        return cls(namespace, api_version, _LEGACY_KINDS.get(kind, kind), name)

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


@dataclasses.dataclass(frozen=True, slots=True)
class ScaleView:
    """A target's scale as it was read or written."""

    uid: str
    replicas: int
    version: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UpdateObjInfo:
    """The known state of a scale target.

    `probed`: whether its pods have readiness probes; None if unknown. `recreates`: no pod may run
    beside one that is ending.
    """

    spec_replicas: int
    uid: str
    version: str
    pod_labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    probed: bool | None = None
    #: The pod template; None if the kind does not keep one where Deployments do.
    pod: RequestingPod | None = None
    port_names: frozenset[str] = frozenset()
    recreates: bool = False
    host_network: bool = False
    has_claims: bool = False  #: its pods mount volume claims

    @property
    def pod_request(self) -> CapacityStatus | None:
        """The resource requests of one of its pods; None without requests or if unknown."""
        return pod_request(self.pod) if self.pod is not None else None

    @property
    def at_zero(self) -> bool:
        """Whether no pod is asked for."""
        return self.spec_replicas == 0

    @property
    def view(self) -> ScaleView:
        """The same as a scale that a park can be compared with."""
        return ScaleView(self.uid, self.spec_replicas, self.version)

    def with_scale(self, view: ScaleView) -> UpdateObjInfo:
        """Return the same target after its scale was read or written."""
        return dataclasses.replace(
            self, spec_replicas=view.replicas, uid=view.uid, version=view.version
        )


def workers_of(service: ElastiService) -> tuple[ScaleTarget, ...]:
    """Return what an ElastiService names beside its target."""
    namespace = service.metadata.namespace
    return tuple(
        ScaleTarget.of(namespace, ref.api_version, ref.kind, ref.name)
        for ref in service.spec.targets
    )


def target_of(service: ElastiService) -> ScaleTarget:
    """Return an ElastiService's target."""
    ref = service.spec.scale_target_ref
    return ScaleTarget.of(service.metadata.namespace, ref.api_version, ref.kind, ref.name)


def wake_replicas(spec: ElastiServiceSpec, status: ElastiServiceStatus) -> int:
    """Return what a target that sleeps is scaled up to."""
    # An autoscaler knows better than a number from before the sleep.
    previous = spec.wake.replicas == "Previous" and spec.autoscaler is None
    return max(spec.min_target_replicas, status.previous_replicas if previous else 0)
