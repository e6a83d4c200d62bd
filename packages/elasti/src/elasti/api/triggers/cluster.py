"""Triggers that need the cluster and nothing else: its pods, kubelets, metrics-server, KEDA, the resolver."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, TypeAlias

import msgspec
from msgspec import Meta

from elasti.api.descriptions import about
from elasti.api.names import KUBELET_ACCOUNT
from elasti.api.parsing import parse_bool, parse_port
from elasti.api.rbac import PolicyRule
from elasti.api.triggers.destinations import ALLOWED, parse_networks
from elasti.api.triggers.registry import Role, Threshold, TriggerMetadata, TriggerType
from elasti.safe_regex import compile_safely

PodPort: TypeAlias = Annotated[
    int | str, about("The name or number of the Service's port. Default: its first.")
]


def _check_port(port: int | str) -> None:
    if isinstance(port, int) and not 0 <= port < 65536:
        raise ValueError(f"port {port} is not a port; write a name, or a number up to 65535")


# New connections: near the end of the cooldown the resolver looks, beside the pods


class TrafficMetadata(TriggerMetadata, frozen=True):
    """Connections that reach the resolver while it is in rotation beside the pods."""

    window_seconds: Annotated[
        int,
        Meta(
            ge=1,
            le=604_800,
            description="How long the resolver watches before a sleep: at most the cooldown, at least the"
            " engage settle (type traffic).",
        ),
    ] = 300
    network: Annotated[
        bool,
        about(
            "Whether the bytes of its pods also keep the target awake: adds a network trigger as a"
            " Veto, if the operator may read kubelets (type traffic)."
        ),
    ] = True
    threshold: Threshold = 1

    @property
    def look_seconds(self) -> float:
        """The window."""
        return float(self.window_seconds)

    @property
    def vetoes(self) -> tuple[str, ...]:
        """Triggers that also see connections that existed before."""
        return ("network",) if self.network else ()


TRAFFIC = TriggerType(name="traffic", metadata=TrafficMetadata)


# A metric that the target's own pods serve


class PodsMetadata(TriggerMetadata, frozen=True):
    """A metric that the target's own pods serve, summed over all of them.

    A counter is compared by its rate per second, a gauge by its value. `kind` left out means
    counter for names that end in `_total` and gauge otherwise. `port` left out is the Service's
    first target port. `labels` are what a sample must have, or `match` with these and `notMatch`
    with a value, or a list of values, whose samples do not count.
    """

    metric: Annotated[
        str,
        Meta(pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$", description="The metric's name (type pods)."),
    ]
    port: PodPort = 0
    path: Annotated[str, Meta(pattern="^/", description="The path of the metrics.")] = "/metrics"
    kind: Annotated[
        Literal["", "counter", "gauge"],
        about("counter: compare its rate; gauge: its value. Default: by name."),
    ] = ""
    labels: Annotated[
        dict[str, str | dict[str, str | list[str]]],
        about("Labels that a sample must have, or match and notMatch with labels."),
    ] = msgspec.field(default_factory=dict)

    def __post_init__(self) -> None:
        _check_port(self.port)
        nested = [key for key, value in self.labels.items() if isinstance(value, dict)]
        if nested and not (len(nested) == len(self.labels) and {*nested} <= {"match", "notMatch"}):
            raise ValueError(
                "labels is either {handler: /api} or {match: {...}, notMatch: {...}}, not both"
            )

    def accepts(self, labels: Mapping[str, str]) -> bool:
        """Whether a sample with these labels counts."""
        found: Mapping[str, Any] = self.labels
        if not any(isinstance(value, dict) for value in found.values()):
            found = {"match": found}
        return all(
            labels.get(name) in _choices(wanted) for name, wanted in found.get("match", {}).items()
        ) and not any(
            labels.get(name) in _choices(unwanted)
            for name, unwanted in found.get("notMatch", {}).items()
        )

    @property
    def is_counter(self) -> bool:
        """Whether the metric is compared by its rate."""
        return self.kind == "counter" or (not self.kind and self.metric.endswith("_total"))


def _choices(wanted: str | list[str]) -> list[str]:
    return wanted if isinstance(wanted, list) else [wanted]


PODS = TriggerType(name="pods", metadata=PodsMetadata, variables={ALLOWED: parse_networks})


# The target's own pods, asked over HTTP whether they are busy

MAX_STATES = 200
"""How large an expression may be."""


class HttpMetadata(TriggerMetadata, frozen=True, kw_only=True):
    """The response of each pod at a path: a number for each pod, compared by their sum.

    By `busyStatus` it is 1 for a pod that answers with it, by `expression` 1 for one whose body has it, by
    `pointer` the number there (true is 1, a list or an object counts its members).
    """

    path: Annotated[str, Meta(pattern="^/", description="The path to request from each pod.")]
    port: PodPort = 0
    busy_status: Annotated[int, about("The status of a busy pod; any other 2xx means idle.")] = 0
    pointer: Annotated[
        Annotated[str, Meta(pattern=r"^(/|\Z)")] | None,
        about("A JSON pointer to the number in the response, such as /jobs/running."),
    ] = None
    expression: Annotated[
        str, about("An RE2 expression that the response of a busy pod matches.")
    ] = ""
    threshold: Threshold = 1

    def __post_init__(self) -> None:
        _check_port(self.port)
        ways = (self.busy_status, self.pointer is not None, self.expression)
        if sum(map(bool, ways)) != 1:
            raise ValueError(
                "give exactly one of busyStatus, pointer or expression, which say that a pod is busy"
            )
        if self.busy_status and not 200 <= self.busy_status < 600:
            raise ValueError(
                f"busyStatus {self.busy_status} is not an HTTP status; write one from 200 to 599"
            )
        if self.expression:
            compile_safely(self.expression, most_states=MAX_STATES)


HTTP = TriggerType(
    name="http", metadata=HttpMetadata, role=Role.VETO, variables={ALLOWED: parse_networks}
)


# Bytes that the target's pods receive and send, as kubelets count them

KUBELET_ACCOUNT_VARIABLE = "ELASTI_KUBELET_ACCOUNT"
KUBELET_INSECURE_TLS = "ELASTI_KUBELET_INSECURE_TLS"
KUBELET_PORT = "ELASTI_KUBELET_PORT"

KUBELET_RULES = (PolicyRule("", ("nodes/stats",), ("get",), "the bytes of pods"),)
"""All that the account may do whose token kubelets see, in the whole cluster."""
KUBELET_TOKEN_RULES = (
    PolicyRule(
        "", ("serviceaccounts/token",), ("create",), "to read kubelets with", (KUBELET_ACCOUNT,)
    ),
)
"""The right that the operator needs in its own namespace to get that token."""

NETWORK_THRESHOLD = 16.0
"""Bytes a second and pod: the cost of a node's ARP, IPv6 and DNS to an idle pod stays below it."""


class NetworkMetadata(TriggerMetadata, frozen=True):
    """Bytes a second of the target's pods above what their probes cost."""

    threshold: Threshold = NETWORK_THRESHOLD


def _parse_account(text: str) -> str:
    if text.count("/") != 1 or text.startswith("/") or text.endswith("/"):
        raise ValueError(f"{text!r} is not NAMESPACE/NAME of a ServiceAccount")
    return text


NETWORK = TriggerType(
    name="network",
    metadata=NetworkMetadata,
    variables={
        KUBELET_ACCOUNT_VARIABLE: _parse_account,
        KUBELET_INSECURE_TLS: parse_bool,
        KUBELET_PORT: parse_port,
    },
    needs=KUBELET_ACCOUNT_VARIABLE,
)


# The CPU that the target's pods use, as metrics-server measures it


class CpuMetadata(TriggerMetadata, frozen=True):
    """Thousandths of a core that the target's pods use, summed over all of them."""


CPU = TriggerType(
    name="cpu",
    metadata=CpuMetadata,
    # A Veto: an idle program uses some CPU.
    role=Role.VETO,
    rules=(PolicyRule("metrics.k8s.io", ("pods",), ("list",), "how much CPU pods use"),),
)


# A ScaledObject of KEDA: whether its scalers see work


class KedaMetadata(TriggerMetadata, frozen=True, kw_only=True):
    """A ScaledObject of the namespace: 1 while its condition Active is True, 0 while it is False."""

    scaled_object: Annotated[
        str,
        Meta(
            pattern=r"^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?\Z",
            description="The ScaledObject's name (type keda).",
        ),
    ]
    threshold: Threshold = 1


# The rules are those of the autoscaler keda, which every installation has.
KEDA = TriggerType(name="keda", metadata=KedaMetadata)
