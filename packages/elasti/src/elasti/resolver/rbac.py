"""The least that the resolver may do, as data: what its manifests grant, and no `*` in it."""

from __future__ import annotations

from elasti.api.names import GROUP, PAGE_CONFIG_MAP, PLURAL
from elasti.api.rbac import PolicyRule

_FOLLOW = ("list", "watch")

NAMESPACED_RULES = (
    PolicyRule(GROUP, (PLURAL,), _FOLLOW, "what to listen on"),
    PolicyRule(GROUP, (PLURAL,), ("patch",), "the durable wake request, where no operator answers"),
    PolicyRule("", ("services",), _FOLLOW, "their ports"),
    PolicyRule(
        "discovery.k8s.io", ("endpointslices",), _FOLLOW, "pods, and its own place in rotations"
    ),
    PolicyRule("", ("pods",), ("get",), "the probes of a pod that starts"),
    # By its name only: what an ElastiService names is shown to every visitor of its Service.
    PolicyRule("", ("configmaps",), ("get",), "a waiting page of a user's own", (PAGE_CONFIG_MAP,)),
)
"""In every watched namespace, or in the whole cluster."""

OPERATOR_NAMESPACE_RULES = (
    PolicyRule(
        "discovery.k8s.io", ("endpointslices",), _FOLLOW, "every operator by its own address"
    ),
)
"""In the operator's namespace, where the resolver is confined to others."""

CLUSTER_RULES = (PolicyRule("authentication.k8s.io", ("tokenreviews",), ("create",), "who calls"),)
"""What has no namespace."""
