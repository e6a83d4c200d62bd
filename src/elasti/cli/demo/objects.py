"""What the demo puts into its cluster: Elasti itself, and two apps that may sleep. Pure."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from elasti.api.names import API_VERSION, GROUP, KIND, PLURAL
from elasti.operator.rbac import (
    CLUSTER_RULES,
    LEASE_RULES,
    NAMESPACED_RULES,
    RESOLVER_NAMESPACE_RULES,
)

if TYPE_CHECKING:
    from kubeloop.objects.meta import JsonObject

NAMESPACE = "elasti"
OPERATOR = "elasti-operator"
OPERATOR_SERVICE = "elasti-operator-controller-service"
RESOLVER = "elasti-resolver"
RESOLVER_SERVICE = "elasti-resolver-service"
COOLDOWN = 6

# The demo is in a hurry: a real cluster keeps the defaults, which leave time to slow nodes.
_HURRY = {"POLLING_INTERVAL": "1s", "ELASTI_ENGAGE_SETTLE": "2s", "ELASTI_RELEASE_SETTLE": "1s"}
_RESOLVER_RULES = [
    {"apiGroups": [GROUP], "resources": [PLURAL], "verbs": ["get", "list", "watch", "patch"]},
    {"apiGroups": [""], "resources": ["services"], "verbs": ["get", "list", "watch"]},
    {"apiGroups": [""], "resources": ["pods"], "verbs": ["get"]},
    {
        "apiGroups": ["discovery.k8s.io"],
        "resources": ["endpointslices"],
        "verbs": ["get", "list", "watch"],
    },
    {"apiGroups": ["authentication.k8s.io"], "resources": ["tokenreviews"], "verbs": ["create"]},
]


def foundations() -> list[JsonObject]:
    """Return the namespace, accounts, rights and Services of the two programs."""
    every = (*NAMESPACED_RULES, *CLUSTER_RULES, *LEASE_RULES, *RESOLVER_NAMESPACE_RULES)
    return [
        {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": NAMESPACE}},
        *_account(OPERATOR, [rule.to_json() for rule in every]),
        *_account(RESOLVER, _RESOLVER_RULES),
        _service(OPERATOR_SERVICE, NAMESPACE, OPERATOR, [{"name": "http", "port": 8013}]),
        _service(
            RESOLVER_SERVICE,
            NAMESPACE,
            RESOLVER,
            [{"name": "admin", "port": 8013}, {"name": "proxy", "port": 8012}],
        ),
    ]


def programs(operator_address: str) -> list[JsonObject]:
    """Return the Deployments of operator and resolver; a dev cluster has no DNS to find one by."""
    url = f"http://{operator_address}:8013"
    return [
        _program(OPERATOR, ["operator", "--no-authenticate"], _HURRY, "ELASTI_OPERATOR_HOST"),
        _program(
            RESOLVER,
            ["resolver", "--no-authentication"],
            {"ELASTI_OPERATOR_URL": url, "ELASTI_ENGAGE_SETTLE": "2s"},
            "ELASTI_RESOLVER_HOST",
        ),
    ]


def samples() -> list[JsonObject]:
    """Return the two apps, their Services and their ElastiServices."""
    http = {"metric": "http_requests_total", "threshold": 0.1}
    tcp = {"metric": "tcp_connections_total", "threshold": 0.1, "port": 7001}
    healthy = {"httpGet": {"path": "/healthz", "port": 8080}, "periodSeconds": 1}
    # Not the echo port: each look would count as a connection, and it would never seem idle.
    listening = {"tcpSocket": {"port": 7001}, "periodSeconds": 1}
    return [
        _sample("web", "sample_http", healthy),
        _service("web", "default", "web", [{"name": "http", "port": 80, "targetPort": 8080}]),
        _elasti_service("web", http),
        _sample("echo", "sample_tcp", listening),
        _service("echo", "default", "echo", [{"name": "echo", "port": 7000}]),
        _elasti_service("echo", tcp),
    ]


def _elasti_service(name: str, metadata: JsonObject) -> JsonObject:
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {"name": name, "namespace": "default"},
        "spec": {
            "service": name,
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": name},
            "cooldownPeriod": COOLDOWN,
            "triggers": [{"type": "pods", "metadata": metadata}],
        },
    }


def _account(name: str, rules: list[JsonObject]) -> list[JsonObject]:
    subject = {"kind": "ServiceAccount", "name": name, "namespace": NAMESPACE}
    rbac = "rbac.authorization.k8s.io"
    role = {"apiGroup": rbac, "kind": "ClusterRole", "name": name}
    return [
        {
            "apiVersion": "v1",
            "kind": "ServiceAccount",
            "metadata": {"name": name, "namespace": NAMESPACE},
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": name},
            "rules": rules,
        },
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": name},
            "roleRef": role,
            "subjects": [subject],
        },
    ]


def _service(name: str, namespace: str, app: str, ports: list[JsonObject]) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"selector": {"app": app}, "ports": ports},
    }


def _program(name: str, words: list[str], variables: dict[str, str], host: str) -> JsonObject:
    command = [sys.executable, "-m", "elasti", *words]
    probe = {"httpGet": {"path": "/readyz", "port": 8013}, "periodSeconds": 1}
    container = _container(name, command, variables, probe)
    container["env"].append(_from_pod(host, "status.podIP"))
    spec = {"serviceAccountName": name, "containers": [container]}
    return _deployment(name, NAMESPACE, spec)


def _sample(name: str, module: str, probe: JsonObject) -> JsonObject:
    command = [sys.executable, "-m", f"elasti.cli.demo.{module}"]
    settings = {"START_SECONDS": "1", "LINGER_SECONDS": "2"}
    container = _container(name, command, settings, probe)
    return _deployment(name, "default", {"containers": [container]})


def _container(
    name: str, command: list[str], variables: dict[str, str], probe: JsonObject
) -> dict[str, Any]:
    environment = [{"name": key, "value": value} for key, value in variables.items()]
    environment += [
        _from_pod("POD_NAME", "metadata.name"),
        _from_pod("POD_IP", "status.podIP"),
    ]
    return {
        "name": name,
        "image": name,
        "command": command,
        "env": environment,
        "readinessProbe": probe,
    }


def _from_pod(name: str, path: str) -> JsonObject:
    return {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}


def _deployment(name: str, namespace: str, spec: JsonObject) -> JsonObject:
    labels = {"app": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "replicas": 1,
            "selector": {"matchLabels": labels},
            "template": {"metadata": {"labels": labels}, "spec": spec},
        },
    }
