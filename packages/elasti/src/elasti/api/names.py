"""Names of the objects that we make, the same as KubeElasti's, so that its objects are found.

The hash is of the Service's whole name; the visible part is cut so that the result fits the limit
of its kind (63 characters for a Service, 253 for an EndpointSlice).
"""

from __future__ import annotations

import hashlib

GROUP = "elasti.truefoundry.com"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "ElastiService"
PLURAL = "elastiservices"
ELASTISERVICES = f"{API_VERSION}/{PLURAL}"
"""The resource as clients and informers name it."""

OPERATOR = "elasti-operator"
RESOLVER = "elasti-resolver"
DASHBOARD = "elasti-dashboard"
"""The programs: their Deployments and accounts, the audiences of their tokens, who writes fields."""
FIELD_MANAGER = OPERATOR
CLI_FIELD_MANAGER = "elasti-cli"
NAMESPACE = "elasti"
"""Where an installation is unless another namespace is named."""
KUBELET_ACCOUNT = "elasti-kubelet-stats"
"""The ServiceAccount whose token kubelets see, and its ClusterRole."""
OPERATOR_SERVICE = "elasti-operator-controller-service"
RESOLVER_SERVICE = "elasti-resolver-service"

FINALIZER = f"{GROUP}/finalizer"
LEASE_NAME = "acf50383.truefoundry.io"
QUARANTINE_CONFIG_MAP = "elasti-resting-ports"
"""The ConfigMap in the operator's namespace that outlives it."""
PAGE_CONFIG_MAP = "elasti-page"
"""The ConfigMap that the programs may read in every watched namespace: a waiting page of a user's own."""
MANAGED_BY = "elasti"
PRIVATE_LABEL = f"{GROUP}/private"
WAKE_ANNOTATION = f"{GROUP}/wake-requested-at"
SLEEP_ANNOTATION = f"{GROUP}/sleep-requested-at"
KEEP_AWAKE_ANNOTATION = f"{GROUP}/keep-awake-until"
"""On an ElastiService: a time until which its target is awake, whatever its triggers say."""
DRAIN_KEY = f"{GROUP}/draining"
"""A key in the selector of a public Service that no pod has: it takes the pods out of rotation."""
PAUSED_BY_US_ANNOTATION = f"{GROUP}/paused-keda"
PAUSED_OBJECTS_ANNOTATION = f"{GROUP}/paused-scaledobjects"
"""On an ElastiService: the ScaledObjects that were paused for it, with commas between them."""
AGGREGATE_LABEL = f"{GROUP}/aggregate-to-operator"

_HASH_LENGTH = 10
_SERVICE_LIMIT = 63
_SLICE_LIMIT = 253


def private_service_name(service: str) -> str:
    """Return the name of the private Service beside a public one."""
    return _bounded(service, "pvt", _SERVICE_LIMIT)


def resolver_slice_name(service: str) -> str:
    """Return the name of the EndpointSlice that points a public Service at the resolver."""
    return _bounded(service, "endpointslice-to-resolver", _SLICE_LIMIT)


def _bounded(service: str, purpose: str, limit: int) -> str:
    digest = hashlib.sha256(service.encode()).hexdigest()[:_HASH_LENGTH]
    room = limit - len(f"elasti--{purpose}-{digest}")
    return f"elasti-{service[:room].rstrip('-')}-{purpose}-{digest}"
