"""The pods that all benchmarks of kubeloop use: generated, the same in every run.

Each looks like a pod of a Deployment on a real cluster: some 6 kB of JSON as in lists, of which
managedFields are a little less than half.
"""

from __future__ import annotations

import random
import uuid
from typing import Any

Json = dict[str, Any]

_CREATED = "2026-11-15T08:00:00Z"


def make_pod(index: int, version: int, *, padding: int = 0) -> Json:
    """Return pod number `index` at one resourceVersion, without apiVersion and kind."""
    rng = random.Random(index)
    app = f"app-{index % 97}"
    node = f"node-{index % 50:03}"
    return {
        "metadata": _metadata(index, version, app, rng),
        "spec": _spec(app, node, rng, padding),
        "status": _status(index, version, node, rng),
    }


def make_event(kind: str, index: int, version: int, *, padding: int = 0) -> Json:
    """Return a watch event of one pod, as an API server orders it."""
    pod = {"kind": "Pod", "apiVersion": "v1", **make_pod(index, version, padding=padding)}
    return {"type": kind, "object": pod}


def make_bookmark(version: int) -> Json:
    """Return a bookmark as API servers write it for pods."""
    metadata = {"resourceVersion": str(version), "creationTimestamp": None}
    pod = {"kind": "Pod", "apiVersion": "v1", "metadata": metadata}
    return {"type": "BOOKMARK", "object": {**pod, "spec": {"containers": None}, "status": {}}}


def make_list(items: list[Json], version: int, continue_token: str = "") -> Json:
    """Return a PodList."""
    metadata = {"resourceVersion": str(version)}
    if continue_token:
        metadata["continue"] = continue_token
    return {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items}


def _uid(rng: random.Random) -> str:
    return str(uuid.UUID(int=rng.getrandbits(128), version=4))


def _metadata(index: int, version: int, app: str, rng: random.Random) -> Json:
    replica_set = f"{app}-{rng.getrandbits(32):08x}"
    return {
        "name": f"{replica_set}-{index:05}",
        "generateName": f"{replica_set}-",
        "namespace": f"team-{index % 20}",
        "uid": _uid(rng),
        "resourceVersion": str(version),
        "generation": 1,
        "creationTimestamp": _CREATED,
        "labels": {
            "app.kubernetes.io/name": app,
            "app.kubernetes.io/instance": f"{app}-prod",
            "pod-template-hash": replica_set.rpartition("-")[2],
        },
        "annotations": {
            "kubectl.kubernetes.io/restartedAt": _CREATED,
            "prometheus.io/scrape": "true",
            "checksum/config": f"{rng.getrandbits(256):064x}",
        },
        "ownerReferences": [
            {
                "apiVersion": "apps/v1",
                "kind": "ReplicaSet",
                "name": replica_set,
                "uid": _uid(rng),
                "controller": True,
                "blockOwnerDeletion": True,
            }
        ],
        "managedFields": _managed_fields(index),
    }


def _managed_fields(index: int) -> list[Json]:
    spec = {
        "f:metadata": {
            "f:annotations": {".": {}, "f:checksum/config": {}, "f:prometheus.io/scrape": {}},
            "f:generateName": {},
            "f:labels": {".": {}, "f:app.kubernetes.io/name": {}, "f:pod-template-hash": {}},
            "f:ownerReferences": {".": {}, f'k:{{"uid":"{index:036}"}}': {}},
        },
        "f:spec": {
            "f:containers": {'k:{"name":"server"}': _managed_container()},
            "f:dnsPolicy": {},
            "f:enableServiceLinks": {},
            "f:restartPolicy": {},
            "f:schedulerName": {},
            "f:securityContext": {},
            "f:terminationGracePeriodSeconds": {},
        },
    }
    status = {
        "f:status": {
            "f:conditions": _managed_conditions(),
            "f:containerStatuses": {},
            "f:hostIP": {},
            "f:phase": {},
            "f:podIP": {},
            "f:startTime": {},
        }
    }
    return [
        _manager("kube-controller-manager", spec),
        _manager("kubelet", status) | {"subresource": "status"},
    ]


def _managed_container() -> Json:
    names = [f'k:{{"name":"SETTING_{number}"}}' for number in range(4)]
    port = 'k:{"containerPort":8080,"protocol":"TCP"}'
    return {
        ".": {},
        "f:image": {},
        "f:imagePullPolicy": {},
        "f:name": {},
        "f:env": {".": {}, **{name: _leaves("name", "value") for name in names}},
        "f:ports": {".": {}, port: _leaves("containerPort", "name", "protocol")},
        "f:readinessProbe": {
            **_leaves("failureThreshold", "periodSeconds", "successThreshold", "timeoutSeconds"),
            "f:httpGet": _leaves("path", "port", "scheme"),
        },
        "f:resources": {
            ".": {},
            "f:limits": _leaves("memory"),
            "f:requests": _leaves("cpu", "memory"),
        },
        "f:terminationMessagePath": {},
        "f:terminationMessagePolicy": {},
    }


def _managed_conditions() -> Json:
    fields = _leaves("lastProbeTime", "lastTransitionTime", "status", "type")
    types = ("ContainersReady", "Initialized", "Ready")
    return {f'k:{{"type":"{name}"}}': fields for name in types}


def _leaves(*names: str) -> Json:
    return {".": {}, **{f"f:{name}": {} for name in names}}


def _manager(name: str, fields: Json) -> Json:
    return {
        "manager": name,
        "operation": "Update",
        "apiVersion": "v1",
        "time": _CREATED,
        "fieldsType": "FieldsV1",
        "fieldsV1": fields,
    }


def _spec(app: str, node: str, rng: random.Random, padding: int) -> Json:
    containers = [_container("server", app, rng)]
    if padding:
        containers[0]["args"] = ["x" * padding]
    volume = {"name": "token", "projected": {"defaultMode": 420, "sources": [{"secret": {}}]}}
    return {
        "volumes": [volume],
        "containers": containers,
        "restartPolicy": "Always",
        "terminationGracePeriodSeconds": 30,
        "dnsPolicy": "ClusterFirst",
        "serviceAccountName": app,
        "nodeName": node,
        "securityContext": {},
        "schedulerName": "default-scheduler",
        "tolerations": [
            {
                "key": f"node.kubernetes.io/{taint}",
                "operator": "Exists",
                "effect": "NoExecute",
                "tolerationSeconds": 300,
            }
            for taint in ("not-ready", "unreachable")
        ],
        "priority": 0,
        "enableServiceLinks": True,
        "preemptionPolicy": "PreemptLowerPriority",
    }


def _container(name: str, app: str, rng: random.Random) -> Json:
    return {
        "name": name,
        "image": f"registry.example/{app}/{name}:{rng.randrange(100)}",
        "ports": [{"name": "http", "containerPort": 8080, "protocol": "TCP"}],
        "env": [{"name": f"SETTING_{n}", "value": f"{rng.getrandbits(64):x}"} for n in range(4)],
        "resources": {
            "limits": {"memory": "512Mi"},
            "requests": {"cpu": "100m", "memory": "256Mi"},
        },
        "volumeMounts": [
            {"name": "token", "readOnly": True, "mountPath": "/var/run/secrets/tokens"}
        ],
        "readinessProbe": {
            "httpGet": {"path": "/healthz", "port": 8080, "scheme": "HTTP"},
            "timeoutSeconds": 1,
            "periodSeconds": 10,
            "successThreshold": 1,
            "failureThreshold": 3,
        },
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }


def _status(index: int, version: int, node: str, rng: random.Random) -> Json:
    address = f"10.{index >> 16 & 255}.{index >> 8 & 255}.{index & 255}"
    return {
        "phase": "Running",
        "conditions": [
            {
                "type": name,
                "status": "True" if version % 7 else "False",
                "lastProbeTime": None,
                "lastTransitionTime": _CREATED,
            }
            for name in ("Initialized", "Ready", "ContainersReady", "PodScheduled")
        ],
        "hostIP": f"192.168.0.{index % 50}",
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": _CREATED,
        "containerStatuses": [
            {
                "name": "server",
                "state": {"running": {"startedAt": _CREATED}},
                "lastState": {},
                "ready": bool(version % 7),
                "restartCount": version % 3,
                "image": "registry.example/server",
                "imageID": f"registry.example/server@sha256:{rng.getrandbits(256):064x}",
                "containerID": f"containerd://{rng.getrandbits(256):064x}",
                "started": True,
            }
        ],
        "qosClass": "Burstable",
    }
