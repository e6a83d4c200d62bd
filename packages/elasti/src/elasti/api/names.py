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
TEMPLATE_KIND = "ElastiTemplate"
TEMPLATES_PLURAL = "elastitemplates"
TEMPLATES = f"{API_VERSION}/{TEMPLATES_PLURAL}"

OPERATOR = "elasti-operator"
RESOLVER = "elasti-resolver"
DASHBOARD = "elasti-dashboard"
"""The programs: their Deployments and accounts, the audiences of their tokens, who writes fields."""
FIELD_MANAGER = OPERATOR
CLI_FIELD_MANAGER = "elasti-cli"
ENROLMENT_FIELD_MANAGER = "elasti-enrolment"
NAMESPACE = "elasti"
"""Where an installation is unless another namespace is named."""
KUBELET_ACCOUNT = "elasti-kubelet-stats"
"""The ServiceAccount whose token kubelets see, and its ClusterRole."""
OPERATOR_SERVICE = "elasti-operator-controller-service"
RESOLVER_SERVICE = "elasti-resolver-service"

TLS_SECRET = "elasti-tls"  # noqa: S105 -- its name
"""The Secret in the operator's namespace with the certificates of both programs, unless a user gives one."""
TLS_NAME = "elasti.internal"
"""What these certificates are for: the programs call each other by addresses that change."""

FINALIZER = f"{GROUP}/finalizer"
LEASE_NAME = "acf50383.truefoundry.io"
PORT_RANGE = "ELASTI_PORT_RANGE"
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
DOZE_GUARD = "9999-12-31T12:34:56Z"
"""The value of that annotation on an object that may doze: operators before 0.3 leave its target alone.

This operator does not take it for a time.
"""
DRAIN_KEY = f"{GROUP}/draining"
"""A key in the selector of a public Service that no pod has: it takes the pods out of rotation."""
PAUSED = "autoscaling.keda.sh/paused"
PAUSED_REPLICAS = "autoscaling.keda.sh/paused-replicas"
"""KEDA's annotations on a ScaledObject; beside the first stands our own."""
UNPAUSED = (None, "0", "f", "F", "FALSE", "false", "False")
"""What the first may be without pausing; KEDA takes everything else for true."""
PAUSED_BY_US_ANNOTATION = f"{GROUP}/paused-keda"
PAUSED_OBJECTS_ANNOTATION = f"{GROUP}/paused-scaledobjects"
"""On an ElastiService: the ScaledObjects that were paused for it, with commas between them."""
DEFAULT_TRIGGERS_ANNOTATION = f"{GROUP}/default-triggers"
"""On the operator's Deployment: the default triggers that were chosen, also those that it has no rights for now."""
AGGREGATE_LABEL = f"{GROUP}/aggregate-to-operator"
SLEEP_LABEL = f"{GROUP}/sleep"
"""On a Service or a Namespace: observe, enforce or never."""
TEMPLATE_ANNOTATION = f"{GROUP}/template"
"""On a Service or a Namespace: the ElastiTemplate of its ElastiServices."""
ENROLLED_LABEL = f"{GROUP}/enrolled"
"""On an ElastiService that enrolment made, always "true"."""
ENROLLED_FROM_ANNOTATION = f"{GROUP}/enrolled-from"
"""On such an ElastiService: its template, and a hash of what was applied."""

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
