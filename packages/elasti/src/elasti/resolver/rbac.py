"""The resolver's minimal permissions, as data. Its manifests grant exactly these, without a `*`."""

from __future__ import annotations

from elasti.api.names import GROUP, PAGE_CONFIG_MAP, PLURAL
from elasti.api.rbac import PolicyRule

_FOLLOW = ("list", "watch")

NAMESPACED_RULES = (
    PolicyRule(GROUP, (PLURAL,), _FOLLOW, "find the ports to listen on"),
    PolicyRule(GROUP, (PLURAL,), ("patch",), "annotate a wake request if no operator answers"),
    PolicyRule("", ("services",), _FOLLOW, "read their ports"),
    PolicyRule(
        "discovery.k8s.io",
        ("endpointslices",),
        _FOLLOW,
        "find pods, and see whether it is in rotation",
    ),
    PolicyRule("", ("pods",), ("get",), "read the probes of a starting pod"),
    # By name only: every visitor sees the ConfigMap that an ElastiService names.
    PolicyRule("", ("configmaps",), ("get",), "read a custom waiting page", (PAGE_CONFIG_MAP,)),
)
"""Granted in every watched namespace, or in the whole cluster."""

OPERATOR_NAMESPACE_RULES = (
    PolicyRule("discovery.k8s.io", ("endpointslices",), _FOLLOW, "reach every operator replica"),
)
"""Granted in the operator's namespace if the resolver watches only others."""

CLUSTER_RULES = (
    PolicyRule("authentication.k8s.io", ("tokenreviews",), ("create",), "authenticate callers"),
)
"""Granted cluster-wide."""
