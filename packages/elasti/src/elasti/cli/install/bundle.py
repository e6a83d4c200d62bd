"""Everything of an installation, in order; its Deployments; and all of it as text. Pure.

What others need comes first: the namespace, the definition, accounts with their roles, Services and policies,
and the programs last.

Both Deployments run one image, the command says which program. They need no root, no capability and no
writable file system. A rollout never has fewer pods than before: a new one is ready first. They listen on every
address, of both families where a pod has both; a cluster for development, whose pods share their
machine's addresses, sets ELASTI_LISTEN_ADDRESS to theirs.
"""

from __future__ import annotations

import textwrap
from collections.abc import Iterator, Sequence

import msgspec

from elasti.api.crd import custom_resource_definition, template_definition
from elasti.api.defaults import (
    DASHBOARD_PORT,
    HEALTH_PORT,
    LOWEST_DATA_PORT,
    OPERATOR_PORT,
    RESOLVER_ADMIN_PORT,
    RESOLVER_SHARED_PORT,
)
from elasti.api.names import DEFAULT_TRIGGERS_ANNOTATION, KUBELET_ACCOUNT, PORT_RANGE, TLS_SECRET
from elasti.api.triggers import cluster
from elasti.api.wire import OPERATOR_AUDIENCE, RESOLVER_AUDIENCE
from elasti.cli.install.access import (
    PRIORITY_CLASS,
    accounts,
    autoscalers,
    budgets,
    certificates,
    dashboard_access,
    policies,
    priorities,
    roles,
    services,
    wake_policy,
)
from elasti.cli.install.choices import (
    DEFAULT_PORT_RANGE,
    DEFAULT_TRIGGERS,
    DEFINITION_LABELS,
    OPTIONS_ANNOTATION,
    PROGRAMS,
    Choices,
    Manifest,
    Program,
    account,
    cluster_object,
    labels,
    program_object,
    read_toleration,
    selector,
)
from elasti.cli.install.enrolment_policy import enrolment_policy
from elasti.cli.install.operator_policy import operator_policy
from elasti.cli.rendering import render
from kubeloop.objects.meta import JsonObject

USER = 65532
TOKENS = "/var/run/secrets/elasti"
CERTIFICATES = "/var/run/secrets/elasti-tls"
SERVICE_ACCOUNT = "/var/run/secrets/kubernetes.io/serviceaccount"
SCRATCH = "/run/elasti"
# A resolver serves what it holds before it ends, for up to ELASTI_DRAIN_TIMEOUT (600 s).
GRACE_SECONDS = {Program.OPERATOR: 30, Program.RESOLVER: 660}

_CALLED = {Program.OPERATOR: Program.RESOLVER, Program.RESOLVER: Program.OPERATOR}
_AUDIENCES = {Program.OPERATOR: OPERATOR_AUDIENCE, Program.RESOLVER: RESOLVER_AUDIENCE}
_HEALTH = {Program.OPERATOR: "health", Program.RESOLVER: "admin"}
_PORTS = {
    Program.OPERATOR: {"http": OPERATOR_PORT, "health": HEALTH_PORT},
    Program.RESOLVER: {"admin": RESOLVER_ADMIN_PORT},
}


_POD_SECURITY = {
    "runAsNonRoot": True,
    "runAsUser": USER,
    "runAsGroup": USER,
    "fsGroup": USER,
    "seccompProfile": {"type": "RuntimeDefault"},
}
_FIRST_EPHEMERAL = 32768  # Linux' default
_CONTAINER_SECURITY = {
    "allowPrivilegeEscalation": False,
    "readOnlyRootFilesystem": True,
    "capabilities": {"drop": ["ALL"]},
}


def deployments(choices: Choices) -> Iterator[Manifest]:
    """Yield the two Deployments."""
    for program, why in (
        (Program.OPERATOR, "Decides what sleeps; one replica leads, every one wakes."),
        (Program.RESOLVER, "Holds connections while their workload wakes."),
    ):
        yield Manifest(why, _deployment(program, choices))


def _deployment(program: Program, choices: Choices) -> JsonObject:
    replicas = choices.replicas(program)
    port = OPERATOR_PORT if program is Program.OPERATOR else RESOLVER_ADMIN_PORT
    scrape = {"scrape": "true", "path": "/metrics", "port": str(port)}
    scraped = {f"prometheus.io/{name}": value for name, value in scrape.items()}
    spec = {
        **({} if replicas is None else {"replicas": replicas}),
        "selector": {"matchLabels": selector(program)},
        "strategy": {
            "type": "RollingUpdate",
            "rollingUpdate": {"maxUnavailable": 0, "maxSurge": 1},
        },
        "template": {
            "metadata": {"labels": labels(choices, program), "annotations": scraped},
            "spec": _pod(program, choices),
        },
    }
    found = program_object("apps/v1", "Deployment", program, choices, spec=spec)
    if program is Program.OPERATOR:
        # The next call keeps the options that it finds there.
        options = msgspec.json.encode(choices.options(), order="sorted").decode()
        found["metadata"]["annotations"] = {
            OPTIONS_ANNOTATION: options,
            DEFAULT_TRIGGERS_ANNOTATION: ",".join(choices.default_triggers),
        }
    return found


def _pod(program: Program, choices: Choices) -> JsonObject:
    return {
        "serviceAccountName": account(program),
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": GRACE_SECONDS[program],
        "securityContext": _pod_security(program, choices),
        "topologySpreadConstraints": [_spread(program)],
        **({} if choices.namespaced else {"priorityClassName": PRIORITY_CLASS}),
        **_placement(program, choices),
        "containers": [_container(program, choices)],
        "volumes": [volume for volume, _ in _volumes(program, choices)],
    }


def _pod_security(program: Program, choices: Choices) -> JsonObject:
    """Return a pod's context; a resolver's own connections to pods use no port of the range."""
    first, last = choices.ports
    if program is not Program.RESOLVER or last < _FIRST_EPHEMERAL:
        return _POD_SECURITY
    below, above = (LOWEST_DATA_PORT, first - 1), (last + 1, 65535)
    low, high = below if below[1] - below[0] >= above[1] - above[0] else above
    sysctl = {"name": "net.ipv4.ip_local_port_range", "value": f"{low} {high}"}
    return {**_POD_SECURITY, "sysctls": [sysctl]}


def _placement(program: Program, choices: Choices) -> JsonObject:
    """Return where pods run, by the user's words before ours, and who pulls their image."""
    tolerations = [read_toleration(text) for text in choices.tolerations]
    affinity = dict(choices.affinity)
    if program in PROGRAMS:
        named = {toleration["key"] for toleration in tolerations}
        tolerations[:0] = [t for t in _LOST_NODE if t["key"] not in named]
        affinity = affinity or {"podAntiAffinity": _apart(program)}
    wanted = {
        "imagePullSecrets": [{"name": name} for name in choices.pull_secrets],
        "nodeSelector": dict(choices.node_selector),
        "tolerations": tolerations,
        "affinity": affinity,
    }
    return {name: value for name, value in wanted.items() if value}


# A pod on a lost node is replaced ten seconds after the node was found to be lost, not five minutes.
_LOST_NODE = tuple(
    {
        "key": f"node.kubernetes.io/{trouble}",
        "operator": "Exists",
        "effect": "NoExecute",
        "tolerationSeconds": 10,
    }
    for trouble in ("not-ready", "unreachable")
)


def _spread(program: Program) -> JsonObject:
    """Return the constraint that has one pod on each node.

    One key only: a scheduler counts no node that lacks a label which any constraint names, and many
    clusters have no zones. Only pods of the same rollout count, else the old ones decide where the new
    ones go, and leave.
    """
    return {
        "maxSkew": 1,
        "topologyKey": "kubernetes.io/hostname",
        "whenUnsatisfiable": "ScheduleAnyway",
        "labelSelector": {"matchLabels": selector(program)},
        "matchLabelKeys": ["pod-template-hash"],
    }


def _apart(program: Program) -> JsonObject:
    """Return the preference for another zone, if there are zones."""
    term = {
        "topologyKey": "topology.kubernetes.io/zone",
        "labelSelector": {"matchLabels": selector(program)},
    }
    return {
        "preferredDuringSchedulingIgnoredDuringExecution": [{"weight": 50, "podAffinityTerm": term}]
    }


def _container(program: Program, choices: Choices) -> JsonObject:
    ports = _PORTS[program]
    if program is Program.RESOLVER and choices.shared_port:
        ports = {**ports, "proxy": RESOLVER_SHARED_PORT}
    return {
        "name": program.value,
        "image": choices.image,
        "command": ["elasti", program.value],
        "env": _environment(program, choices),
        "ports": [
            {"name": name, "containerPort": number, "protocol": "TCP"}
            for name, number in ports.items()
        ],
        "startupProbe": _probe(program, "/healthz", every=1, failures=120),
        "readinessProbe": _probe(program, "/readyz", every=5, failures=2),
        "livenessProbe": _probe(program, "/healthz", every=20, failures=3),
        "resources": choices.resources_of(program),
        "securityContext": _CONTAINER_SECURITY,
        "volumeMounts": [mount for _, mount in _volumes(program, choices)],
    }


def _probe(program: Program, path: str, *, every: int, failures: int) -> JsonObject:
    # An answer may take its time when ten thousand connections are held on one core.
    return {
        "httpGet": {"path": path, "port": _HEALTH[program]},
        "periodSeconds": every,
        "timeoutSeconds": 5,
        "failureThreshold": failures,
    }


def _environment(program: Program, choices: Choices) -> list[JsonObject]:
    """Return the variables: the pod's own first, so that values may name them; the given ones sorted.

    The next call reads them sorted from its options, and another order would roll the pods.
    """
    given = dict(sorted(choices.variables.get(program, {}).items()))
    secret = dict(sorted(choices.secret_variables.get(program, {}).items()))
    known = {
        "POD_NAME": "metadata.name",
        "POD_NAMESPACE": "metadata.namespace",
        "POD_IP": "status.podIP",
    }
    found: list[JsonObject] = [
        {"name": name, "valueFrom": {"fieldRef": {"fieldPath": path}}}
        for name, path in known.items()
        if name not in {*given, *secret}
    ]
    for name, place in secret.items():
        of, _, key = place.partition("/")
        found.append({"name": name, "valueFrom": {"secretKeyRef": {"name": of, "key": key}}})
    variables = {**_settings(program, choices), **given}
    return found + [{"name": k, "value": v} for k, v in variables.items() if k not in secret]


def _settings(program: Program, choices: Choices) -> dict[str, str]:
    other = _CALLED[program]
    settings = {
        "ELASTI_OPERATOR_NAMESPACE": choices.namespace,
        "ELASTI_RESOLVER_NAMESPACE": choices.namespace,
    }
    if program is Program.OPERATOR:
        if choices.reads_kubelets:
            settings[cluster.KUBELET_ACCOUNT_VARIABLE] = f"{choices.namespace}/{KUBELET_ACCOUNT}"
            if choices.kubelet_insecure_tls:
                settings[cluster.KUBELET_INSECURE_TLS] = "true"
        given = {
            DEFAULT_TRIGGERS: ",".join(choices.usable_default_triggers),
            PORT_RANGE: choices.port_range if choices.port_range != DEFAULT_PORT_RANGE else "",
            "ELASTI_DOZE": "true" if choices.doze else "",
            "ELASTI_ENROLMENT": "true" if choices.enrolment else "",
            "ELASTI_TARGET_REF": choices.target_ref if choices.target_ref != "Auto" else "",
        }
    else:
        settings["TMPDIR"] = SCRATCH
        if choices.shared_port:
            settings["ELASTI_RESOLVER_PROXY_PORT"] = str(RESOLVER_SHARED_PORT)
        if choices.waiting_page:
            settings["ELASTI_WAITING_PAGE"] = "Auto"
        given = {
            "ELASTI_MAX_CONNECTIONS_PER_CLIENT": str(choices.client_connections or ""),
            "ELASTI_UNLIMITED_CLIENTS": ",".join(choices.unlimited_clients),
            "ELASTI_OPERATOR_URL": choices.operator_url,
        }
    settings |= {name: value for name, value in given.items() if value}
    settings |= _tls_settings(program, choices)
    if choices.watch_namespaces:
        settings["WATCH_NAMESPACES"] = ",".join(choices.watch_namespaces)
    if not choices.authentication:
        return settings | {"ELASTI_AUTHENTICATE": "false"}
    if choices.namespaced:
        # Only a ClusterRole can let a program ask the API server about tokens.
        settings["ELASTI_AUTHENTICATION"] = "JWKS"
    caller = f"system:serviceaccount:{choices.namespace}:{account(other)}"
    return settings | {
        "ELASTI_ALLOWED_CALLERS": caller,
        f"ELASTI_{other.name}_TOKEN_FILE": f"{TOKENS}/{other.value}",
    }


def _tls_settings(program: Program, choices: Choices) -> dict[str, str]:
    if choices.tls == "off":
        return {}
    makes = choices.makes_certificates and program is Program.OPERATOR
    return {
        "ELASTI_TLS_DIRECTORY": CERTIFICATES,
        **({"ELASTI_TLS_REQUIRED": "true"} if choices.tls == "required" else {}),
        **({"ELASTI_TLS_SECRET": TLS_SECRET} if makes else {}),
    }


def _volumes(program: Program, choices: Choices) -> list[tuple[JsonObject, JsonObject]]:
    """Return each volume, with its mount."""
    found: list[tuple[JsonObject, JsonObject]] = []
    if choices.authentication:
        # With this token the program calls the other one.
        other = _CALLED[program]
        token = {"audience": _AUDIENCES[other], "expirationSeconds": 3600, "path": other.value}
        volume = {
            "name": "elasti-token",
            "projected": {"sources": [{"serviceAccountToken": token}]},
        }
        found.append((volume, {"name": "elasti-token", "mountPath": TOKENS, "readOnly": True}))
    if choices.tls != "off":
        # Optional: pods start before there are certificates. Not the authority's key, which only the operator needs.
        items = [{"key": name, "path": name} for name in ("ca.crt", "tls.crt", "tls.key")]
        name = choices.tls_secret or TLS_SECRET
        secret = {"secretName": name, "optional": True, "items": items}
        mount = {"name": TLS_SECRET, "mountPath": CERTIFICATES, "readOnly": True}
        found.append(({"name": TLS_SECRET, "secret": secret}, mount))
    if program is Program.RESOLVER:
        volume = {"name": "scratch", "emptyDir": {"sizeLimit": "16Mi"}}
        found.append((volume, {"name": "scratch", "mountPath": SCRATCH}))
    return found


def dashboard(choices: Choices) -> Iterator[Manifest]:
    """Yield the objects that serve the dashboard in the cluster, if it is enabled."""
    if not choices.dashboard_hosts:
        return
    yield from dashboard_access(choices)
    program = Program.DASHBOARD
    probe = {"httpGet": {"path": "/healthz", "port": "http"}, "timeoutSeconds": 5}
    options = {"--port": DASHBOARD_PORT, "--elasti-namespace": choices.namespace}
    hosts = [f"--host={host}" for host in choices.dashboard_hosts]
    container = {
        "name": program.value,
        "image": choices.image,
        "command": ["elasti", "dashboard", *(f"{n}={v}" for n, v in options.items()), *hosts],
        "ports": [{"name": "http", "containerPort": DASHBOARD_PORT, "protocol": "TCP"}],
        "readinessProbe": probe | {"periodSeconds": 5},
        "livenessProbe": probe | {"periodSeconds": 10, "failureThreshold": 6},
        "resources": choices.resources_of(program),
        "securityContext": _CONTAINER_SECURITY,
        "volumeMounts": [{"name": "ca", "mountPath": SERVICE_ACCOUNT, "readOnly": True}],
    }
    pod = {
        "serviceAccountName": account(program),
        # Of what a pod gets there, only the API server's CA.
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "securityContext": _POD_SECURITY,
        **_placement(program, choices),
        "containers": [container],
        "volumes": [{"name": "ca", "configMap": {"name": "kube-root-ca.crt"}}],
    }
    spec = {
        "replicas": 1,
        "selector": {"matchLabels": selector(program)},
        "template": {"metadata": {"labels": labels(choices, program)}, "spec": pod},
    }
    yield Manifest(
        "Shows visitors what their own tokens allow; a proxy in front signs them in.",
        program_object("apps/v1", "Deployment", program, choices, spec=spec),
    )


def bundle(choices: Choices) -> tuple[Manifest, ...]:
    """Return the objects, each with its reason."""
    return tuple(_parts(choices))


def _parts(choices: Choices) -> Iterator[Manifest]:
    if choices.with_namespace:
        namespace = cluster_object("v1", "Namespace", choices.namespace, choices)
        namespace["metadata"]["labels"]["pod-security.kubernetes.io/enforce"] = "restricted"
        yield Manifest("The namespace of the programs.", namespace)
    if choices.with_definition:
        yield Manifest("The definition of an ElastiService.", definition())
        if choices.enrolment:
            yield Manifest("The definition of an ElastiTemplate.", _ours(template_definition()))
    rights = (accounts, certificates, roles, priorities)
    admission = (wake_policy, operator_policy, enrolment_policy)
    around = (services, policies, budgets)
    programs = (deployments, dashboard, autoscalers)
    for parts in (*rights, *admission, *around, *programs):
        yield from parts(choices)


def definition() -> JsonObject:
    """Return the CustomResourceDefinition of ElastiServices, marked as ours."""
    return _ours(custom_resource_definition())


def _ours(found: JsonObject) -> JsonObject:
    """Return a CustomResourceDefinition, marked as ours; it belongs to no one installation."""
    return {**found, "metadata": {**found["metadata"], "labels": dict(DEFINITION_LABELS)}}


def as_text(parts: Sequence[Manifest], output: str) -> str:
    """Return the parts as `yaml` or `json`."""
    if output == "json":
        items = [part.obj for part in parts]
        return render({"apiVersion": "v1", "kind": "List", "items": items}, output)
    return "".join(
        f"---\n{textwrap.fill(part.why, 98, initial_indent='# ', subsequent_indent='# ')}\n"
        + render(part.obj, output)
        for part in parts
    )
