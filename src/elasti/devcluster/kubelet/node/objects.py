"""The Node object and its Lease. Pure but for what the machine says of itself."""

from __future__ import annotations

import os
import platform
from pathlib import Path
from typing import TYPE_CHECKING

from kubeloop.objects.times import format_micro_time, format_time

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

    from elasti.devcluster.kubelet.settings import KubeletSettings
    from kubeloop.objects.meta import JsonObject

LEASE_NAMESPACE = "kube-node-lease"
_ARCHITECTURES = {"x86_64": "amd64", "aarch64": "arm64"}
_PRESSURES = (
    ("MemoryPressure", "KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    ("DiskPressure", "KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    ("PIDPressure", "KubeletHasSufficientPID", "kubelet has sufficient PID available"),
)


def machine_capacity(settings: KubeletSettings) -> dict[str, str]:
    """Return what the machine has, as far as the settings do not say otherwise."""
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    found = {
        "cpu": str(os.cpu_count() or 1),
        "memory": f"{memory // 1024}Ki",
        "ephemeral-storage": "100Gi",
        "pods": str(settings.max_pods),
    }
    return found | dict(settings.capacity)


def node_object(name: str, settings: KubeletSettings) -> JsonObject:
    """Return the node as it is first created, without a status."""
    system, machine = platform.system().lower(), architecture()
    labels = {
        "kubernetes.io/hostname": name,
        "kubernetes.io/os": system,
        "kubernetes.io/arch": machine,
        **settings.labels,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels},
    }


def node_status(
    name: str,
    settings: KubeletSettings,
    capacity: Mapping[str, str],
    *,
    port: int,
    known: JsonObject,
    now: dt.datetime,
) -> JsonObject:
    """Return the node's status; `known` is the one before, whose transition times go on."""
    conditions = [
        _condition(kind, "False", reason, message, known=known, now=now)
        for kind, reason, message in _PRESSURES
    ]
    ready = "kubelet is posting ready status"
    conditions.append(_condition("Ready", "True", "KubeletReady", ready, known=known, now=now))
    status: JsonObject = {
        "capacity": dict(capacity),
        "allocatable": dict(capacity),
        "conditions": conditions,
        "addresses": [
            {"type": "InternalIP", "address": settings.node_address},
            {"type": "Hostname", "address": name},
        ],
        "nodeInfo": _information(settings),
    }
    if port:
        status["daemonEndpoints"] = {"kubeletEndpoint": {"Port": port}}
    return status


def lease_object(
    name: str, settings: KubeletSettings, *, node_uid: str, now: dt.datetime
) -> JsonObject:
    """Return the lease that says that the node lives."""
    owner = {"apiVersion": "v1", "kind": "Node", "name": name, "uid": node_uid}
    return {
        "apiVersion": "coordination.k8s.io/v1",
        "kind": "Lease",
        "metadata": {
            "name": name,
            "namespace": LEASE_NAMESPACE,
            "ownerReferences": [owner],
        },
        "spec": {
            "holderIdentity": name,
            "leaseDurationSeconds": settings.lease_seconds,
            "renewTime": format_micro_time(now),
        },
    }


def architecture() -> str:
    """Return the machine's architecture by Kubernetes' name for it."""
    return _ARCHITECTURES.get(platform.machine(), platform.machine())


def _condition(
    kind: str, status: str, reason: str, message: str, *, known: JsonObject, now: dt.datetime
) -> JsonObject:
    stamp = format_time(now)
    times = {
        (item.get("type"), item.get("status")): item.get("lastTransitionTime", stamp)
        for item in known.get("conditions") or ()
    }
    return {
        "type": kind,
        "status": status,
        "reason": reason,
        "message": message,
        "lastHeartbeatTime": stamp,
        "lastTransitionTime": times.get((kind, status), stamp),
    }


def _information(settings: KubeletSettings) -> JsonObject:
    return {
        "machineID": _first_line("/etc/machine-id"),
        "systemUUID": _first_line("/etc/machine-id"),
        "bootID": _first_line("/proc/sys/kernel/random/boot_id"),
        "kernelVersion": platform.release(),
        "osImage": _system_name(),
        "containerRuntimeVersion": "elasti://local-processes",
        "kubeletVersion": settings.version,
        "kubeProxyVersion": "",
        "operatingSystem": platform.system().lower(),
        "architecture": architecture(),
    }


def _first_line(path: str) -> str:
    try:
        return Path(path).read_text().strip()
    except OSError:
        return ""


def _system_name() -> str:
    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.system())
    except OSError:
        return platform.system()
