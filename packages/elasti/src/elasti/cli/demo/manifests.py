"""The demo's objects: Elasti as `elasti install` makes it, and two apps that may sleep. Pure."""

from __future__ import annotations

import sys

from elasti.api.names import API_VERSION, KIND
from elasti.cli.install.choices import Choices, Program
from kubeloop.objects.meta import JsonObject

NAMESPACE = "default"
DEMO_COOLDOWN = 6
START_SECONDS = 1


def choices() -> Choices:
    """Return an installation in a hurry: a real cluster keeps the defaults, for its slow nodes."""
    settle = {"ELASTI_ENGAGE_SETTLE": "2s"}
    return Choices(
        tls="off",  # the pods share this machine
        variables={
            Program.OPERATOR: {**settle, "POLLING_INTERVAL": "1s", "ELASTI_RELEASE_SETTLE": "1s"},
            Program.RESOLVER: settle,
        },
    )


def samples() -> list[JsonObject]:
    """Return the two apps, their Services and their ElastiServices."""
    healthy = {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1}
    # Not the echo port: each probe would count as a connection, and it would never seem idle.
    listening = {"tcpSocket": {"port": 7001}, "periodSeconds": 1}
    return [
        _deployment("web", "http", healthy),
        # A Service of an ordinary user's dev cluster listens on an ordinary user's port.
        _service("web", {"name": "http", "port": 8080}),
        _elasti_service("web"),
        _deployment("echo", "tcp", listening),
        _service("echo", {"name": "echo", "port": 7000}),
        _elasti_service("echo"),
    ]


def _object(api_version: str, kind: str, name: str, spec: JsonObject) -> JsonObject:
    meta = {"name": name, "namespace": NAMESPACE}
    return {"apiVersion": api_version, "kind": kind, "metadata": meta, "spec": spec}


def _elasti_service(name: str) -> JsonObject:
    spec = {
        "service": name,
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
        "cooldownPeriod": DEMO_COOLDOWN,
    }
    return _object(API_VERSION, KIND, name, spec)


def _service(name: str, port: JsonObject) -> JsonObject:
    return _object("v1", "Service", name, {"selector": {"app": name}, "ports": [port]})


def _deployment(name: str, protocol: str, probe: JsonObject) -> JsonObject:
    labels = {"app": name}
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": labels},
        "template": {
            "metadata": {"labels": labels},
            "spec": {"containers": [_container(name, protocol, probe)]},
        },
    }
    return _object("apps/v1", "Deployment", name, spec)


def _container(name: str, protocol: str, probe: JsonObject) -> JsonObject:
    return {
        "name": name,
        "image": f"sample-{name}",
        "command": [sys.executable, "-m", "elasti.cli.demo.sample_apps", protocol],
        "env": [
            {"name": "START_SECONDS", "value": str(START_SECONDS)},
            {"name": "LINGER_SECONDS", "value": "2"},
            _from_pod("POD_NAME", "metadata.name"),
            _from_pod("POD_IP", "status.podIP"),
        ],
        "readinessProbe": probe,
        "resources": {"requests": {"cpu": "250m", "memory": "128Mi"}},
    }


def _from_pod(name: str, path: str) -> JsonObject:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
