"""The least that the operator may do, as data: what its manifests grant, and no `*` in it.

Targets of other kinds than these come through an aggregated ClusterRole, labelled by
`names.AGGREGATE_LABEL`.
"""

from __future__ import annotations

from elasti.api.names import (
    GROUP,
    LEASE_NAME,
    PAGE_CONFIG_MAP,
    PLURAL,
    QUARANTINE_CONFIG_MAP,
    TEMPLATES_PLURAL,
    TLS_SECRET,
)
from elasti.api.rbac import READ, PolicyRule
from elasti.api.triggers.registry import trigger_types
from elasti.api.types import AUTOSCALER_KINDS
from elasti.operator.autoscalers import AUTOSCALERS
from kubeloop.objects.gvk import GroupVersionResource

# Zero is applied, so that the replicas have an owner while a target sleeps; a wake-up is an update.
SCALE = ("get", "update", "patch")

NAMESPACED_RULES = (
    # `update` is never sent: the admission policy lets accounts without it change two annotations only.
    PolicyRule(GROUP, (PLURAL,), (*READ, "patch", "update"), "finalizer and durable requests"),
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
    PolicyRule("", ("pods",), ("get", "list"), "whether pods exist or are terminating"),
    # Custom slices are refused without it if endpoint addresses are restricted.
    PolicyRule(
        "discovery.k8s.io", ("endpointslices/restricted",), ("create",), "OpenShift requires it"
    ),
    *(rule for trigger in trigger_types().values() for rule in trigger.rules),
    PolicyRule("apps", ("deployments", "statefulsets"), READ, "targets"),
    PolicyRule("apps", ("deployments/scale", "statefulsets/scale"), SCALE, "sleep and wake"),
    PolicyRule("argoproj.io", ("rollouts",), READ, "targets"),
    PolicyRule("argoproj.io", ("rollouts/scale",), SCALE, "sleep and wake"),
    *(rule for autoscaler in AUTOSCALERS for rule in autoscaler.rules),
    PolicyRule("policy", ("poddisruptionbudgets",), ("list",), "spec.policy Observe: the verdict"),
    # A Role may grant it for the namespace that it is in.
    PolicyRule("", ("namespaces",), ("get",), "skip waiting when the namespace is terminating"),
    PolicyRule("", ("events",), ("create", "patch"), "record Events"),
    PolicyRule("", ("configmaps",), ("get",), "report a missing waiting page", (PAGE_CONFIG_MAP,)),
)
"""In every watched namespace, or in the whole cluster."""

DOZE_RULES = (
    PolicyRule(
        "", ("pods/resize",), ("patch",), "spec.sleep.mode Doze: shrink and restore requests"
    ),
    PolicyRule(
        "", ("pods/eviction",), ("create",), "evict a pod whose node has no room to restore them"
    ),
    PolicyRule("", ("limitranges",), ("list",), "the minimum that a dozing container may request"),
    PolicyRule(
        "autoscaling",
        ("horizontalpodautoscalers",),
        ("list",),
        "refuse one that scales by utilization",
    ),
    PolicyRule(
        "autoscaling.k8s.io",
        ("verticalpodautoscalers",),
        ("list",),
        "refuse one that changes requests",
    ),
)
"""In the same places, if the installation enables Doze."""

PATH_RULES = (
    PolicyRule("elbv2.k8s.aws", ("targetgroupbindings",), ("list",), "find load balancers of AWS"),
)
"""In the same places, unless the installation leaves them out."""

ENROLMENT_RULES = (
    PolicyRule("", ("namespaces",), ("list", "watch"), "labels of namespaces"),
    PolicyRule(GROUP, (TEMPLATES_PLURAL,), ("list", "watch"), "templates"),
    PolicyRule(
        GROUP, (PLURAL,), ("get", "create", "delete"), "ElastiServices of labelled Services"
    ),
    *(
        PolicyRule(gvr.group, (gvr.resource,), ("list",), "name the autoscaler of a workload")
        for gvr in (GroupVersionResource.parse(kind.resource) for kind in AUTOSCALER_KINDS.values())
    ),
)
"""In the whole cluster, if the installation enables enrolment."""

REVIEW_RULES = (PolicyRule("authentication.k8s.io", ("tokenreviews",), ("create",), "who calls"),)
"""To authenticate callers by asking the API server; only a ClusterRole can grant it."""

CLUSTER_RULES = (
    *REVIEW_RULES,
    PolicyRule("", ("namespaces",), ("list", "watch"), "find those in Istio ambient"),
    PolicyRule(
        "apiextensions.k8s.io",
        ("customresourcedefinitions",),
        ("get",),
        "detect an outdated definition",
        (f"{PLURAL}.{GROUP}",),
    ),
)
"""Cluster-scoped resources."""

LEASE_RULES = (
    PolicyRule("coordination.k8s.io", ("leases",), ("create",), "leader election"),
    PolicyRule(
        "coordination.k8s.io", ("leases",), ("get", "update"), "leader election", (LEASE_NAME,)
    ),
)
"""In the operator's own namespace: leader election."""

PORT_RULES = (
    PolicyRule("", ("configmaps",), ("create",), "quarantined resolver ports"),
    PolicyRule(
        "",
        ("configmaps",),
        ("get", "patch"),
        "quarantined resolver ports",
        (QUARANTINE_CONFIG_MAP,),
    ),
)
"""In the operator's own namespace: so that no restart assigns a freed port too early."""

# Not `create`, which no name can bind: the installer creates the Secret.
TLS_RULES = (
    PolicyRule("", ("secrets",), ("get", "update"), "certificates of both programs", (TLS_SECRET,)),
)
"""In the operator's own namespace, if it makes the certificates."""

OWN_RULES = (*LEASE_RULES, *PORT_RULES)
"""All that it needs in its own namespace."""

RESOLVER_NAMESPACE_RULES = (
    PolicyRule(
        "discovery.k8s.io", ("endpointslices",), ("list", "watch"), "the addresses of resolvers"
    ),
)
"""In the resolver's namespace, if the operator is confined to other namespaces."""
