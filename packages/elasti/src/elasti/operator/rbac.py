"""The least that the operator may do, as data: what its manifests grant, and no `*` in it.

Targets of other kinds than these come through an aggregated ClusterRole, labelled by
`names.AGGREGATE_LABEL`.
"""

from __future__ import annotations

from elasti.api.names import (
    GROUP,
    KUBELET_ACCOUNT,
    LEASE_NAME,
    PAGE_CONFIG_MAP,
    PLURAL,
    QUARANTINE_CONFIG_MAP,
)
from elasti.api.rbac import READ, PolicyRule
from elasti.operator.autoscalers import AUTOSCALERS

NAMESPACED_RULES = (
    # `update` is never sent: the admission policy lets accounts without it change two annotations only.
    PolicyRule(
        GROUP, (PLURAL,), ("list", "watch", "patch", "update"), "finalizer and durable requests"
    ),
    PolicyRule(GROUP, (f"{PLURAL}/status",), ("patch",), "status"),
    PolicyRule(
        "",
        ("services",),
        ("list", "watch", "create", "update", "patch", "delete"),
        "private Services; spec.sleep.drain",
    ),
    PolicyRule(
        "discovery.k8s.io",
        ("endpointslices",),
        (*READ, "create", "update", "delete"),
        "the resolver's place in a Service's rotation",
    ),
    PolicyRule("", ("pods",), ("get", "list"), "whether pods are there, or still ending"),
    # Custom slices are refused without it, where endpoint addresses are restricted.
    PolicyRule(
        "discovery.k8s.io", ("endpointslices/restricted",), ("create",), "OpenShift asks for it"
    ),
    PolicyRule("metrics.k8s.io", ("pods",), ("list",), "how much CPU pods use"),
    PolicyRule("apps", ("deployments", "statefulsets"), READ, "targets"),
    PolicyRule(
        "apps", ("deployments/scale", "statefulsets/scale"), ("get", "update"), "sleep and wake"
    ),
    PolicyRule("argoproj.io", ("rollouts",), READ, "targets"),
    PolicyRule("argoproj.io", ("rollouts/scale",), ("get", "update"), "sleep and wake"),
    *(rule for autoscaler in AUTOSCALERS for rule in autoscaler.rules),
    # A Role may grant it for the namespace that it is in.
    PolicyRule("", ("namespaces",), ("get",), "do not wait where a namespace goes"),
    PolicyRule("", ("events",), ("create", "patch"), "tell people"),
    PolicyRule(
        "", ("configmaps",), ("get",), "say that a waiting page is missing", (PAGE_CONFIG_MAP,)
    ),
)
"""In every watched namespace, or in the whole cluster."""

REVIEW_RULES = (PolicyRule("authentication.k8s.io", ("tokenreviews",), ("create",), "who calls"),)
"""To know callers by asking the API server; only a ClusterRole can grant it."""

CLUSTER_RULES = (
    *REVIEW_RULES,
    PolicyRule(
        "apiextensions.k8s.io",
        ("customresourcedefinitions",),
        ("get",),
        "notice a definition that is too old",
        (f"{PLURAL}.{GROUP}",),
    ),
)
"""What has no namespace."""

LEASE_RULES = (
    PolicyRule("coordination.k8s.io", ("leases",), ("create",), "leader election"),
    PolicyRule(
        "coordination.k8s.io", ("leases",), ("get", "update"), "leader election", (LEASE_NAME,)
    ),
)
"""In the operator's own namespace: to be one of several."""

PORT_RULES = (
    PolicyRule("", ("configmaps",), ("create",), "the resolver ports that rest"),
    PolicyRule(
        "",
        ("configmaps",),
        ("get", "patch"),
        "the resolver ports that rest",
        (QUARANTINE_CONFIG_MAP,),
    ),
)
"""In the operator's own namespace: so that no restart gives a port away too early."""

KUBELET_RULES = (PolicyRule("", ("nodes/stats",), ("get",), "the bytes of pods"),)
"""All that the account may do whose token kubelets see."""

KUBELET_TOKEN_RULES = (
    PolicyRule(
        "", ("serviceaccounts/token",), ("create",), "to read kubelets with", (KUBELET_ACCOUNT,)
    ),
)
"""In the operator's own namespace, where it reads kubelets."""

OWN_RULES = (*LEASE_RULES, *PORT_RULES)
"""All that it needs in its own namespace."""

RESOLVER_NAMESPACE_RULES = (
    PolicyRule(
        "discovery.k8s.io", ("endpointslices",), ("list", "watch"), "where the resolvers are"
    ),
)
"""In the resolver's namespace, where the operator is confined to others."""
