"""The least that the resolver may do, as data: what its manifests grant, and no `*` in it."""

from __future__ import annotations

from elasti.api.names import GROUP, PLURAL
from elasti.api.rights import Rule

_FOLLOW = ("list", "watch")

NAMESPACED_RULES = (
    Rule(GROUP, (PLURAL,), _FOLLOW, "what to listen on"),
    Rule(GROUP, (PLURAL,), ("patch",), "the durable wake request, where no operator answers"),
    Rule("", ("services",), _FOLLOW, "their ports"),
    Rule("discovery.k8s.io", ("endpointslices",), _FOLLOW, "pods, and its own place in rotations"),
    Rule("", ("pods",), ("get",), "the probes of a pod that starts"),
)
"""In every watched namespace, or in the whole cluster."""

CLUSTER_RULES = (Rule("authentication.k8s.io", ("tokenreviews",), ("create",), "who calls"),)
"""What has no namespace."""
