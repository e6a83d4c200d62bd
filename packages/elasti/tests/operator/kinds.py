"""Definitions of kinds that others bring: KEDA's, Argo's, and anybody's, as small as they can be.

They are installed on the real control plane before its controllers start (see `tests.controlplane`), which
look for new kinds only every half minute.
"""

from __future__ import annotations

from typing import Any

from kubeloop.objects.meta import JsonObject


def _definition(group: str, kind: str, *, plural: str = "", **version: Any) -> JsonObject:
    plural = plural or f"{kind.lower()}s"
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    served = {"name": "v1alpha1", "served": True, "storage": True}
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{plural}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced",
            "names": {"kind": kind, "plural": plural, "singular": kind.lower()},
            "versions": [{**served, "schema": {"openAPIV3Schema": schema}, **version}],
        },
    }


def _scale(spec: str, status: str) -> JsonObject:
    return {"scale": {"specReplicasPath": spec, "statusReplicasPath": status}, "status": {}}


def scaled_object() -> JsonObject:
    """KEDA's."""
    return _definition("keda.sh", "ScaledObject", subresources={"status": {}})


def rollout() -> JsonObject:
    """Argo's."""
    scale = _scale(".spec.replicas", ".status.replicas")
    return _definition("argoproj.io", "Rollout", subresources=scale)


def farm() -> JsonObject:
    """A kind of somebody's that keeps its replicas where no other does."""
    scale = _scale(".spec.size", ".status.size")
    return _definition("example.com", "Farm", subresources=scale)


def cattle(*, scalable: bool) -> JsonObject:
    """Another, whose plural is not its name and an s; nobody installs it before it is needed."""
    scale = _scale(".spec.replicas", ".status.replicas")
    return _definition(
        "example.com", "Cow", plural="cattle", subresources=scale if scalable else {}
    )
