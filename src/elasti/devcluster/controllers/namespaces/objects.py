"""Namespaces, as much of them as their controllers read."""

from __future__ import annotations

import msgspec

from kubeloop.objects.conditions import Condition
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.meta import ObjectMeta

NAMESPACES = GroupVersionResource("", "v1", "namespaces")
CONFIG_MAPS = GroupVersionResource("", "v1", "configmaps")
SERVICE_ACCOUNTS = GroupVersionResource("", "v1", "serviceaccounts")
KUBERNETES = "kubernetes"


class NamespaceSpec(msgspec.Struct, frozen=True, gc=False):
    """Who has to agree to its end."""

    finalizers: tuple[str, ...] | None = None


class NamespaceStatus(msgspec.Struct, omit_defaults=True, frozen=True, gc=False):
    """Whether it is in use, and what holds up its end."""

    phase: str = ""
    conditions: tuple[Condition, ...] | None = None


class Namespace(msgspec.Struct, frozen=True, gc=False):
    """A namespace."""

    metadata: ObjectMeta
    spec: NamespaceSpec = NamespaceSpec()
    status: NamespaceStatus = NamespaceStatus()

    @property
    def is_ending(self) -> bool:
        """Whether it is being deleted."""
        return self.metadata.deletion_timestamp is not None


class ConfigMap(msgspec.Struct, frozen=True, gc=False):
    """A ConfigMap."""

    metadata: ObjectMeta
    data: dict[str, str] | None = None
