"""Slim shapes of the workloads that are scaled: only the fields that decisions read."""

from __future__ import annotations

import msgspec

from kubeloop.objects.meta import LabeledMeta


class _Present(msgspec.Struct, gc=False):
    """Something that is there; what is in it does not matter."""


class _Container(msgspec.Struct, rename="camel", gc=False):
    readiness_probe: _Present | None = None


class _PodSpec(msgspec.Struct, rename="camel", gc=False):
    containers: tuple[_Container, ...] = ()


class _TemplateMeta(msgspec.Struct, gc=False):
    labels: dict[str, str] | None = None


class _Template(msgspec.Struct, gc=False):
    metadata: _TemplateMeta = msgspec.field(default_factory=_TemplateMeta)
    spec: _PodSpec = msgspec.field(default_factory=_PodSpec)


class _WorkloadSpec(msgspec.Struct, gc=False):
    replicas: int | None = None
    template: _Template | None = None


class Workload(msgspec.Struct, rename="camel", gc=False):
    """A Deployment, StatefulSet, ReplicaSet, Rollout: replicas where all of these have them."""

    metadata: LabeledMeta
    spec: _WorkloadSpec = msgspec.field(default_factory=_WorkloadSpec)

    @property
    def replicas(self) -> int:
        """What is asked for; one where it is not set, as Kubernetes defaults it."""
        return 1 if self.spec.replicas is None else self.spec.replicas

    @property
    def template_labels(self) -> dict[str, str]:
        """The labels that its pods get."""
        template = self.spec.template
        return (template.metadata.labels if template else None) or {}

    @property
    def has_readiness_probe(self) -> bool:
        """Whether any container says when it is ready."""
        containers = self.spec.template.spec.containers if self.spec.template else ()
        return any(container.readiness_probe is not None for container in containers)
