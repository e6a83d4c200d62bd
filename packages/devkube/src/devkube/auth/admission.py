"""The admission plugin of ServiceAccounts: what a new pod gets of its account.

A pod's account must exist, and its token is mounted as in Kubernetes: a projected volume
`kube-api-access-xxxxx` with a token bound to the pod, the cluster's CA from the ConfigMap
`kube-root-ca.crt`, and the namespace.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from devkube.apiserver import status
from devkube.apiserver.registry.admission import AdmissionOperation, AdmissionReview
from devkube.apiserver.storage import ObjectStore
from devkube.apiserver.validation.names import Stamps
from devkube.auth.service_accounts import ACCOUNTS, PODS
from kubeloop.objects.meta import JsonObject

MOUNT_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"
_PREFIX = "kube-api-access-"
_LIFETIME = 3607


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
