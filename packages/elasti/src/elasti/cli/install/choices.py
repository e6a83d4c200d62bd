"""The choices of an installation, and the names and labels that they give. Pure.

A choice is checked here; the message names the option, the value and the remedy. `flags` reads the choices
from a command line.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, get_type_hints

from elasti._version import __version__
from elasti.api.defaults import FIRST_RESOLVER_PORT, LAST_RESOLVER_PORT
from elasti.api.names import GROUP, MANAGED_BY, NAMESPACE, PORT_RANGE, TLS_SECRET
from elasti.api.parsing import parse_port_range
from kubeloop.objects.names import DNS_LABEL_63
from kubeloop.objects.quantities import Quantity

if TYPE_CHECKING:
    from kubeloop.objects.meta import JsonObject

# Options that were given, by the names of `Choices`; variables by the program's word.
InstallOptions: TypeAlias = dict[str, Any]

IMAGE = f"elasti:{__version__}"
_VERSION = re.compile(r"v?(\d+)\.(\d+)\.(\d+)")
DEFAULT_PORT_RANGE = f"{FIRST_RESOLVER_PORT}-{LAST_RESOLVER_PORT}"
DEFAULT_TRIGGERS = "ELASTI_DEFAULT_TRIGGERS"
OPTIONS_ANNOTATION = f"{GROUP}/install-options"

_NAME = re.compile(rf"{DNS_LABEL_63}\Z")
_SECRET = re.compile(rf"{DNS_LABEL_63}(\.{DNS_LABEL_63})*\Z")
_TOLERATION = re.compile(
    r"(?P<key>[^=:\s]+)(=(?P<value>[^:\s]*))?(:(?P<effect>NoSchedule|PreferNoSchedule|NoExecute))?\Z"
)


class Program(enum.StrEnum):
    """The programs of a cluster; the value is the command that runs one."""

    OPERATOR = "operator"
    RESOLVER = "resolver"
    DASHBOARD = "dashboard"


PROGRAMS = (Program.OPERATOR, Program.RESOLVER)
"""Those that every installation has, with rights of their own."""


class ChoiceError(ValueError):
    """Choices that do not fit; the message names the option, the value and the remedy."""


# No limit of CPU: throttling would come when a wake-up is most in a hurry.
RESOURCES: Mapping[str, Mapping[str, str]] = {
    Program.OPERATOR: {"requests.cpu": "50m", "requests.memory": "128Mi", "limits.memory": "512Mi"},
    Program.RESOLVER: {"requests.cpu": "100m", "requests.memory": "128Mi", "limits.memory": "1Gi"},
    Program.DASHBOARD: {
        "requests.cpu": "20m",
        "requests.memory": "128Mi",
        "limits.memory": "512Mi",
    },
}
MINIMUM = {"requests.memory": "128Mi", "limits.memory": "256Mi", "limits.cpu": "1"}
"""With less, a program is killed for its memory, or throttled while a request waits for it."""


class Autoscaling(NamedTuple):
    """How many resolvers there may be, and how busy they should be, in percent of their CPU request."""

    least: int
    most: int
    busy: int = 70


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """An installation as its user wants it.

    namespaced: rights only in `watch_namespaces` and in `namespace`, by Roles; nothing cluster-wide.
    watch_namespaces: empty for the whole cluster. variables: over the defaults, by program.
    with_namespace, with_definition: whether the Namespace and the CRD are part of it.
    resources: over the defaults, by program, such as `limits.memory`. secret_variables: a Secret and its
    key, by program and variable. tolerations: as taints are written, KEY[=VALUE][:EFFECT].
    autoscaling: of the resolvers, in the place of `resolver_replicas`.
    port_range: the resolvers' ports for Services, FIRST-LAST.
    shared_port: whether the resolvers listen on the port that finds Services by the Host header.
    kubelet_stats: whether the operator reads kubelets, never if it is namespaced.
    kubelet_insecure_tls: also those whose certificate is not the cluster's. default_triggers: of
    ElastiServices that leave theirs out.
    doze: whether the operator may change the requests of pods.
    target_ref: whether endpoints name the resolver's pods: Auto, Pod or None. traffic_path: whether the operator
    may look for load balancers that read them.
    enrolment: whether labelled Services get ElastiServices.
    waiting_page: whether browsers get a page where an ElastiService does not say.
    client_connections: of one client address, at most; 0 for the resolver's default. unlimited_clients: networks
    without that bound.
    dashboard_hosts: the names by which visitors reach a dashboard in the cluster; without hosts it
    is not installed.
    tls: between operator and resolver, on, off or required; tls_secret: the user's own certificates for it.
    operator_policy: whether a policy binds the operator's writes to its own objects.
    egress_policies: whether policies say what the programs may call; egress_ports: more ports outside of pods.
    operator_url: where a cluster has no DNS; api_ports: the API server's. Both are read from the cluster.
    """

    namespace: str = NAMESPACE
    image: str = IMAGE
    namespaced: bool = False
    watch_namespaces: tuple[str, ...] = ()
    operator_replicas: int = 2
    resolver_replicas: int = 2
    authentication: bool = True
    tls: str = "on"
    tls_secret: str = ""
    with_namespace: bool = True
    with_definition: bool = True
    port_range: str = DEFAULT_PORT_RANGE
    shared_port: bool = False
    kubelet_stats: bool = True
    kubelet_insecure_tls: bool = False
    default_triggers: tuple[str, ...] = ("network",)
    doze: bool = False
    enrolment: bool = False
    target_ref: str = "Auto"
    traffic_path: bool = True
    waiting_page: bool = False
    client_connections: int = 0
    unlimited_clients: tuple[str, ...] = ()
    dashboard_hosts: tuple[str, ...] = ()
    variables: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    secret_variables: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    resources: Mapping[str, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    pull_secrets: tuple[str, ...] = ()
    labels: Mapping[str, str] = dataclasses.field(default_factory=dict)
    node_selector: Mapping[str, str] = dataclasses.field(default_factory=dict)
    tolerations: tuple[str, ...] = ()
    affinity: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    autoscaling: Autoscaling | None = None
    operator_policy: bool = True
    egress_policies: bool = True
    egress_ports: tuple[int, ...] = ()
    operator_url: str = ""
    api_ports: tuple[int, ...] = (443, 6443)

    def __post_init__(self) -> None:
        for option, name in (
            ("--namespace", self.namespace),
            *(("--watch-namespace", name) for name in self.watch_namespaces),
        ):
            if not _NAME.match(name):
                raise ChoiceError(
                    f"{option} {name!r} is not a valid namespace: use lower-case letters, digits and '-',"
                    " at most 63"
                )
        if self.tls_secret and not _SECRET.match(self.tls_secret):
            raise ChoiceError(f"--tls-secret {self.tls_secret!r} is not the name of a Secret")
        if self.tls_secret == TLS_SECRET:
            raise ChoiceError(
                f"--tls-secret {TLS_SECRET} is the operator's own Secret; use another"
            )
        if not self.image:
            raise ChoiceError("--image is empty: name one, such as registry.example.com/elasti:1")
        if self.namespaced and not self.watch_namespaces:
            raise ChoiceError(
                "--namespaced needs to know where: name each namespace with --watch-namespace"
            )
        if self.namespaced and self.enrolment:
            raise ChoiceError(
                "--enrolment reads Namespaces and ElastiTemplates, which are the cluster's: leave out --namespaced"
            )
        _check_ports(self)
        for program, wanted in self.resources.items():
            for name, text in wanted.items():
                _check_resource(program, name, text)
        if self.autoscaling and not 1 <= self.autoscaling.least <= self.autoscaling.most:
            raise ChoiceError(
                f"--resolver-autoscaling {self.autoscaling.least}-{self.autoscaling.most} is not a range:"
                " write the fewest resolvers first, at least 1, such as 2-6"
            )
        reserved = [name for name in self.labels if name == _APP or "kubernetes.io/" in name]
        if reserved:
            raise ChoiceError(
                f"--label {reserved[0]} is how the programs find each other: choose another name"
            )

    @property
    def programs(self) -> tuple[Program, ...]:
        """The programs of this installation."""
        return (*PROGRAMS, Program.DASHBOARD) if self.dashboard_hosts else PROGRAMS

    @property
    def ports(self) -> tuple[int, int]:
        """The first and the last of the resolvers' ports for Services."""
        return parse_port_range(self.port_range)

    @property
    def image_is_older(self) -> bool:
        """Whether the image's tag is a version before this one."""
        found, own = _VERSION.match(self.image.rpartition(":")[2]), _VERSION.match(__version__)
        assert own is not None
        return found is not None and [*map(int, found.groups())] < [*map(int, own.groups())]

    def replicas(self, program: Program) -> int | None:
        """How many pods a program has; None if an autoscaler decides it."""
        if program is Program.OPERATOR:
            return self.operator_replicas
        return None if self.autoscaling else self.resolver_replicas

    def resources_of(self, program: Program) -> JsonObject:
        """A program's resource requests and limits."""
        wanted = {**RESOURCES[program], **self.resources.get(program, {})}
        found: JsonObject = {}
        for name, text in wanted.items():
            kind, _, resource = name.partition(".")
            found.setdefault(kind, {})[resource] = text
        return found

    @property
    def makes_certificates(self) -> bool:
        """Whether the operator makes the certificates of both programs."""
        return self.tls != "off" and not self.tls_secret

    @property
    def reads_kubelets(self) -> bool:
        """Whether the operator may read kubelets: only a ClusterRole can grant it."""
        return self.kubelet_stats and not self.namespaced

    @property
    def usable_default_triggers(self) -> tuple[str, ...]:
        """The default triggers that this installation has the rights for."""
        # Here, not above: the help of a command reads no types.
        from elasti.api.triggers.cluster import KUBELET_ACCOUNT_VARIABLE
        from elasti.api.triggers.registry import trigger_type

        return tuple(
            name
            for name in self.default_triggers
            if self.reads_kubelets or trigger_type(name).needs != KUBELET_ACCOUNT_VARIABLE
        )

    def options(self) -> InstallOptions:
        """Return what differs from the defaults, for a later call to keep."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        found = {name: getattr(self, name) for name in OPTIONS}
        return {
            name: value for name, value in found.items() if value != defaults[name] and value != {}
        }


# What an installation keeps from call to call, with the types of the values.
OPTIONS = {
    name: hint
    for name, hint in get_type_hints(Choices).items()
    if name not in ("namespace", "operator_url", "api_ports")
}
BY_PROGRAM = ("variables", "secret_variables", "resources")


def read_toleration(text: str) -> JsonObject:
    """Read KEY[=VALUE][:EFFECT]. Raises ChoiceError."""
    found = _TOLERATION.match(text)
    if found is None:
        raise ChoiceError(
            f"--toleration {text!r} is not KEY[=VALUE][:EFFECT], such as dedicated=infra:NoSchedule"
        )
    read: JsonObject = {"key": found["key"], "operator": "Exists"}
    if found["value"] is not None:
        read |= {"operator": "Equal", "value": found["value"]}
    return read | ({"effect": found["effect"]} if found["effect"] else {})


def _check_ports(choices: Choices) -> None:
    try:
        parse_port_range(choices.port_range)
    except ValueError as error:
        raise ChoiceError(f"--port-range {error}") from None
    for given in (choices.variables, choices.secret_variables):
        if PORT_RANGE in given.get("operator", {}):
            raise ChoiceError(
                f"--env operator:{PORT_RANGE} is not enough, since policies follow it: write --port-range"
            )


def _check_resource(program: str, name: str, text: str) -> None:
    if name not in {"requests.cpu", "limits.cpu", "requests.memory", "limits.memory"}:
        raise ChoiceError(
            f"--resources {program}:{name} is not a resource: write requests.cpu, requests.memory,"
            " limits.cpu or limits.memory"
        )
    try:
        amount = Quantity.parse(text)
    except ValueError:
        example = "500m" if name.endswith("cpu") else "512Mi"
        raise ChoiceError(
            f"--resources {program}:{name}={text} is not an amount: write one such as {example}"
        ) from None
    least = MINIMUM.get(name, "0")
    if amount < Quantity.parse(least):
        raise ChoiceError(
            f"--resources {program}:{name}={text} is too little for the {program}: at least {least}"
        )


DEFINITION_LABELS = {
    "app.kubernetes.io/name": MANAGED_BY,
    "app.kubernetes.io/part-of": MANAGED_BY,
    "app.kubernetes.io/managed-by": MANAGED_BY,
}

_APP = "app"


class Manifest(NamedTuple):
    """An object, and what it is there for; `needs`: left out by servers without this version and kind."""

    why: str
    obj: JsonObject
    needs: tuple[str, str] | None = None


def account(program: Program) -> str:
    """Return the name of a program's Deployment, ServiceAccount, roles and policies."""
    return f"elasti-{program.value}"


def selector(program: Program) -> dict[str, str]:
    """Return the labels by which a program's pods are found; they never change."""
    return {_APP: account(program)}


def installation(namespace: str) -> dict[str, str]:
    """Return the labels by which everything of one installation is found."""
    return {
        "app.kubernetes.io/part-of": MANAGED_BY,
        "app.kubernetes.io/managed-by": MANAGED_BY,
        "app.kubernetes.io/instance": namespace,
    }


def labels(choices: Choices, program: Program | None = None) -> dict[str, str]:
    """Return the labels of an object, of one program or of the installation."""
    common = {
        "app.kubernetes.io/name": MANAGED_BY,
        **installation(choices.namespace),
        "app.kubernetes.io/version": __version__,
        **choices.labels,
    }
    if program is None:
        return common
    return {**common, "app.kubernetes.io/component": program.value, **selector(program)}


def cluster_object(
    api_version: str,
    kind: str,
    name: str,
    choices: Choices,
    *,
    program: Program | None = None,
    namespace: str = "",
    **fields: Any,
) -> JsonObject:
    """Return an object of the installation, or of one program; the cluster's, unless in a namespace."""
    place = {"namespace": namespace} if namespace else {}
    meta = {"name": name, **place, "labels": labels(choices, program)}
    return {"apiVersion": api_version, "kind": kind, "metadata": meta, **fields}


def program_object(
    api_version: str,
    kind: str,
    program: Program,
    choices: Choices,
    *,
    name: str = "",
    **fields: Any,
) -> JsonObject:
    """Return an object of one program, beside it; under the program's own name unless one is given."""
    name, where = name or account(program), choices.namespace
    return cluster_object(
        api_version, kind, name, choices, program=program, namespace=where, **fields
    )
