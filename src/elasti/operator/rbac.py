"""The least that the operator may do, as data: what its manifests grant, and no `*` in it.

Targets of other kinds than these come through an aggregated ClusterRole, labelled by
`names.AGGREGATE_LABEL`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from elasti.api.names import GROUP, PLURAL

if TYPE_CHECKING:
    from kubeloop.objects.meta import JsonObject


class Rule(NamedTuple):
    """What may be done with which resources, and why."""

    group: str
    resources: tuple[str, ...]
    verbs: tuple[str, ...]
    why: str
    names: tuple[str, ...] = ()

    def to_json(self) -> JsonObject:
        """Return it as a PolicyRule."""
        rule: JsonObject = {
            "apiGroups": [self.group],
            "resources": list(self.resources),
            "verbs": list(self.verbs),
        }
        return rule | ({"resourceNames": list(self.names)} if self.names else {})


_WATCH = ("get", "list", "watch")

NAMESPACED_RULES = (
    Rule(GROUP, (PLURAL,), (*_WATCH, "patch"), "finalizer and durable wake requests"),
    Rule(GROUP, (f"{PLURAL}/status",), ("patch",), "status"),
    Rule("", ("services",), (*_WATCH, "create", "update", "delete"), "private Services"),
    Rule(
        "discovery.k8s.io",
        ("endpointslices",),
        (*_WATCH, "create", "update", "delete"),
        "the resolver's place in a Service's rotation",
    ),
    # Custom slices are refused without it, where endpoint addresses are restricted.
    Rule("discovery.k8s.io", ("endpointslices/restricted",), ("create",), "OpenShift asks for it"),
    Rule("apps", ("deployments", "statefulsets"), _WATCH, "targets"),
    Rule("apps", ("deployments/scale", "statefulsets/scale"), ("get", "update"), "sleep and wake"),
    Rule("argoproj.io", ("rollouts",), _WATCH, "targets"),
    Rule("argoproj.io", ("rollouts/scale",), ("get", "update"), "sleep and wake"),
    Rule("keda.sh", ("scaledobjects",), ("get", "patch"), "pause and resume"),
    Rule("autoscaling", ("horizontalpodautoscalers",), ("get",), "warn of minReplicas: 0"),
    Rule("", ("events",), ("create", "patch"), "tell people"),
)
"""In every watched namespace, or in the whole cluster."""

CLUSTER_RULES = (
    Rule("authentication.k8s.io", ("tokenreviews",), ("create",), "who calls"),
    Rule("", ("namespaces",), ("get",), "do not wait where a namespace goes"),
    Rule(
        "apiextensions.k8s.io",
        ("customresourcedefinitions",),
        ("get",),
        "notice a definition that is too old",
        (f"{PLURAL}.{GROUP}",),
    ),
)
"""What has no namespace."""

LEASE_RULES = (
    Rule("coordination.k8s.io", ("leases",), ("get", "create", "update"), "leader election"),
)
"""In the operator's own namespace."""

RESOLVER_NAMESPACE_RULES = (
    Rule("discovery.k8s.io", ("endpointslices",), _WATCH, "where the resolvers are"),
)
"""In the resolver's namespace, where the operator is confined to others."""
