"""Admission plugins of authorisation: no escalation, and a pod's ServiceAccount.

A user cannot give away more than they have: otherwise the right to write a role would be the right to
everything. The verbs `escalate` (on roles) and `bind` (on the role that a binding names) lift the check,
and administrators are free.

A pod's account must exist, and its token is mounted as in Kubernetes: a projected volume
`kube-api-access-xxxxx` with a token bound to the pod, the cluster's CA from the ConfigMap
`kube-root-ca.crt`, and the namespace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from devkube.apiserver import status
from devkube.apiserver.calls import Attributes
from devkube.apiserver.registry.admission import AdmissionOperation
from devkube.auth import policy
from devkube.auth.policy import GROUP
from devkube.auth.service_accounts import ACCOUNTS, PODS

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from devkube.apiserver.registry.admission import AdmissionReview
    from devkube.apiserver.storage import ObjectStore
    from devkube.apiserver.validation.names import Stamps
    from devkube.auth.gate import RbacAuthorizer
    from devkube.auth.policy import RbacRule
    from kubeloop.objects.meta import JsonObject


_ROLES = ("roles", "clusterroles")
_BINDINGS = ("rolebindings", "clusterrolebindings")
# What the garbage collector may change without owning the permissions.
_COLLECTORS = ("finalizers", "ownerReferences")
MOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
_PREFIX = "kube-api-access-"
_LIFETIME = 3607


class EscalationCheck:
    """An admission plugin."""

    def __init__(self, rbac: RbacAuthorizer) -> None:
        self._rbac = rbac

    def admit(self, review: AdmissionReview) -> None:
        """Check roles and bindings; 403 where permissions would be made out of nothing."""
        if review.resource.group != GROUP or review.operation is AdmissionOperation.DELETE:
            return
        if review.user.is_admin or _only_collected(review):
            return
        if review.resource.plural in _ROLES:
            self._role(review)
        elif review.resource.plural in _BINDINGS:
            self._binding(review)

    def _role(self, review: AdmissionReview) -> None:
        if self._may(review, "escalate", review.resource.plural, _name(review.obj)):
            return
        if review.obj.get("aggregationRule") and self._missing(review, policy.EVERYTHING):
            raise _refusal(review, "must have cluster-admin privileges to use an aggregationRule")
        self._confirm(review, policy.read_rules(review.obj))

    def _binding(self, review: AdmissionReview) -> None:
        ref = review.obj.get("roleRef") or {}
        kind, name = ref.get("kind", ""), ref.get("name", "")
        plural = {"Role": "roles", "ClusterRole": "clusterroles"}.get(kind)
        if plural is None or self._may(review, "bind", plural, name):
            return
        policy = self._rbac.policy
        namespace = _namespace(review.obj)
        found = policy.role(namespace, name) if kind == "Role" else policy.cluster_role(name)
        if found is None:
            raise status.not_found(GROUP, plural, name)
        self._confirm(review, found)

    def _confirm(self, review: AdmissionReview, wanted: Sequence[RbacRule]) -> None:
        missing = self._missing(review, wanted)
        if not missing:
            return
        shown = "\n".join(sorted({policy.describe(rule) for rule in policy.compact(missing)}))
        user = review.user
        raise _refusal(
            review,
            f'user "{user.name}" (groups={policy.go_list(user.groups)}) is attempting to grant'
            f" RBAC permissions not currently held:\n{shown}",
        )

    def _missing(self, review: AdmissionReview, wanted: Sequence[RbacRule]) -> list[RbacRule]:
        owned = self._rbac.policy.rules_for(review.user, _namespace(review.obj))
        return policy.uncovered(owned, wanted)

    def _may(self, review: AdmissionReview, verb: str, resource: str, name: str) -> bool:
        attributes = Attributes(
            verb=verb,
            path="",
            group=GROUP,
            version="*",
            resource=resource,
            namespace=_namespace(review.obj),
            name=name,
        )
        return self._rbac.decide(review.user, attributes) is not None


def _only_collected(review: AdmissionReview) -> bool:
    if review.old is None:
        return False
    return _without_collected(review.obj) == _without_collected(review.old)


def _without_collected(obj: JsonObject) -> JsonObject:
    dropped = (*_COLLECTORS, "managedFields", "resourceVersion")
    metadata = {k: v for k, v in obj["metadata"].items() if k not in dropped}
    return {**obj, "metadata": metadata}


def _name(obj: JsonObject) -> str:
    return str(obj["metadata"].get("name", ""))


def _namespace(obj: JsonObject) -> str:
    return str(obj["metadata"].get("namespace", ""))


def _refusal(review: AdmissionReview, why: str) -> status.StatusError:
    resource = review.resource
    return status.forbidden_object(resource.group, resource.plural, _name(review.obj), why)


class ServiceAccountAdmission:
    """An admission plugin."""

    def __init__(self, *, store: ObjectStore, stamps: Stamps) -> None:
        self._store = store
        self._stamps = stamps

    def admit(self, review: AdmissionReview) -> None:
        """Complete a new pod."""
        if (
            review.operation is not AdmissionOperation.CREATE
            or review.resource.stored_in != PODS
            or review.subresource
        ):
            return
        spec = review.obj.get("spec")
        if not isinstance(spec, dict):
            return
        name = spec.get("serviceAccountName") or spec.get("serviceAccount") or "default"
        spec["serviceAccountName"] = name
        account = self._account(review, name)
        if _wants_token(spec, account):
            self._mount(spec)

    def _account(self, review: AdmissionReview, name: str) -> JsonObject:
        metadata = review.obj["metadata"]
        key = f"{metadata['namespace']}/{name}"
        record = self._store.collection(ACCOUNTS).get(key)
        if record is not None:
            return record.decode()
        if name == "default":
            # It is made with its namespace, a moment later; Kubernetes waits for it as well.
            return {}
        why = f'error looking up service account {key}: serviceaccount "{name}" not found'
        shown = metadata.get("name") or metadata.get("generateName", "")
        raise status.forbidden_object("", "pods", shown, why)

    def _mount(self, spec: JsonObject) -> None:
        lacking = [
            container
            for container in _containers(spec)
            if not any(
                mount.get("mountPath") == MOUNT_PATH
                for mount in container.get("volumeMounts") or ()
            )
        ]
        if not lacking:
            return
        volume = self._volume(spec)
        for container in lacking:
            mounts = container.get("volumeMounts") or []
            mount = {"name": volume, "readOnly": True, "mountPath": MOUNT_PATH}
            container["volumeMounts"] = [*mounts, mount]

    def _volume(self, spec: JsonObject) -> str:
        volumes = spec.get("volumes") or []
        for volume in volumes:
            if volume.get("name", "").startswith(_PREFIX):
                return str(volume["name"])
        name = self._stamps.name(_PREFIX)
        spec["volumes"] = [*volumes, {"name": name, "projected": _projection()}]
        return name


def _wants_token(spec: JsonObject, account: JsonObject) -> bool:
    own = spec.get("automountServiceAccountToken")
    if own is not None:
        return bool(own)
    return account.get("automountServiceAccountToken") is not False


def _containers(spec: JsonObject) -> Iterator[dict[str, Any]]:
    for field in ("initContainers", "containers"):
        for container in spec.get(field) or ():
            if isinstance(container, dict):
                yield container


def _projection() -> JsonObject:
    namespace = {"apiVersion": "v1", "fieldPath": "metadata.namespace"}
    return {
        "defaultMode": 0o644,
        "sources": [
            {"serviceAccountToken": {"expirationSeconds": _LIFETIME, "path": "token"}},
            {
                "configMap": {
                    "name": "kube-root-ca.crt",
                    "items": [{"key": "ca.crt", "path": "ca.crt"}],
                }
            },
            {"downwardAPI": {"items": [{"path": "namespace", "fieldRef": namespace}]}},
        ],
    }
