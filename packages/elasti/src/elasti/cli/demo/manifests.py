"""The demo's objects: Elasti as `elasti install` makes it, and two apps that may sleep. Pure."""

from __future__ import annotations

import sys

from elasti.api.names import API_VERSION, KIND
from elasti.cli.install.choices import Choices, Program
from kubeloop.objects.meta import JsonObject

NAMESPACE = "default"
DEMO_COOLDOWN = 6
START_SECONDS = 1
_FLEET = 100
TEAMS = ("billing", "catalog", "checkout", "preview", "search")


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
    # Not the echo port: each probe would count as a connection, and it would never seem idle.
    listening = {"tcpSocket": {"port": 7001}, "periodSeconds": 1}
    return [
        *_website("web", 1),
        _deployment("echo", "tcp", listening),
        _service("echo", {"name": "echo", "port": 7000}),
        _elasti_service("echo"),
    ]


def fleet() -> list[JsonObject]:
    """Return a hundred apps that sleep, in the namespaces of five teams."""
    made = [{"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": one}} for one in TEAMS]
    for number in range(_FLEET):
        for obj in _website(f"app-{number:02}"):
            obj["metadata"]["namespace"] = TEAMS[number % len(TEAMS)]
            made.append(obj)
    return made


def _website(name: str, replicas: int = 0) -> list[JsonObject]:
    healthy = {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1}
    # A Service of an ordinary user's dev cluster listens on an ordinary user's port.
    service = _service(name, {"name": "http", "port": 8080})
    return [_deployment(name, "http", healthy, replicas), service, _elasti_service(name)]


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


def _deployment(name: str, protocol: str, probe: JsonObject, replicas: int = 1) -> JsonObject:
    labels = {"app": name}
    spec = {
        "replicas": replicas,
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
