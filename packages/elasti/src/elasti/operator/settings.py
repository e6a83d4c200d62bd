"""The operator's settings: read once, at the composition root, from a mapping of variables.

KubeElasti's names keep their meaning; what it demanded has its chart's values as defaults. Everything
wrong is reported at once, each with the variable, the value and what to write instead.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Mapping
from typing import Any

from elasti.api.defaults import (
    ENGAGE_SETTLE,
    ENROLMENT_OBSERVE_FOR,
    FIRST_RESOLVER_PORT,
    HEALTH_PORT,
    LAST_RESOLVER_PORT,
    OPERATOR_PORT,
    POLLING_INTERVAL,
    RESOLVER_ADMIN_PORT,
)
from elasti.api.names import LEASE_NAME, NAMESPACE, PORT_RANGE, RESOLVER_SERVICE
from elasti.api.parsing import (
    Variables,
    is_http_url,
    parse_bool,
    parse_count,
    parse_list,
    parse_port,
    parse_port_range,
    parse_seconds,
    read_variables,
)
from elasti.api.triggers.registry import read_metadata, trigger_types
from elasti.authn.settings import AUTHN_VARIABLES, AuthnSettings

TARGET_REFS = ("Auto", "Pod", "None")


class OnResolverLoss(enum.Enum):
    """The treatment of sleeping targets when no resolver is ready."""

    WAKE = "Wake"
    WAIT = "Wait"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class OperatorSettings(AuthnSettings):
    """All settings; times in seconds."""

    operator_namespace: str = NAMESPACE
    resolver_namespace: str = NAMESPACE
    resolver_service: str = RESOLVER_SERVICE
    resolver_admin_port: int = RESOLVER_ADMIN_PORT
    #: what ports of Services get; resolvers open whatever status names, so only operators read it
    port_range: tuple[int, int] = (FIRST_RESOLVER_PORT, LAST_RESOLVER_PORT)
    watch_namespaces: tuple[str, ...] = ()  #: empty: the whole cluster

    polling_interval: float = POLLING_INTERVAL
    #: what triggers need of the environment; may hold credentials
    trigger_variables: Mapping[str, Any] = dataclasses.field(default_factory=dict, repr=False)
    default_triggers: tuple[str, ...] = ()  #: of an ElastiService that leaves its triggers out
    #: where notifications are posted, and with what key they are signed; both may be secrets
    notify_url: str = dataclasses.field(default="", repr=False)
    notify_key: str = dataclasses.field(default="", repr=False)
    notify_key_file: str = ""
    doze: bool = False  #: requests may be changed through pods/resize
    enrolment: bool = False  #: labelled Services get ElastiServices
    #: before a namespace's label `enforce` takes effect
    enrolment_observe_for: float = ENROLMENT_OBSERVE_FOR

    #: how long resolver and pods are both in rotation before a park; more than the slowest node's
    #: endpoints need
    engage_settle: float = ENGAGE_SETTLE
    release_settle: float = (
        2.0  #: how long an endpoint must be ready before the resolver steps aside
    )
    finalize_wait: float = 120.0  #: the longest that a deletion waits for pods
    #: without a ready resolver, before sleeping targets are woken
    resolver_loss_grace: float = 30.0
    on_resolver_loss: OnResolverLoss = OnResolverLoss.WAKE
    target_ref: str = "Auto"  #: whether endpoints name the resolver's pods

    informer_resync: float = 300.0
    informer_health_period: float = 5.0
    informer_stuck_after: float = 900.0
    sweep_period: float = 60.0
    workers: int = 16

    host: str | None = None  #: None: every address
    port: int = OPERATOR_PORT
    health_port: int = HEALTH_PORT
    token_file: str = ""
    tls_secret: str = (
        ""  #: in the operator's namespace; the leader makes and renews its certificates
    )

    leader_elect: bool = True
    lease_name: str = LEASE_NAME
    identity: str = ""

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **overrides: Any) -> OperatorSettings:
        """Read variables; `overrides` (from flags) win if they are not None.

        Raises SettingsError with every complaint.
        """
        values = read_variables(VARIABLES, environ)
        known: Variables = {
            name: (name, parse)
            for trigger in trigger_types().values()
            for name, parse in trigger.variables.items()
        }
        values["trigger_variables"] = read_variables(known, environ)
        return cls.with_overrides(values, overrides)

    @property
    def vetoes(self) -> tuple[str, ...]:
        """The types that can stand beside a trigger which wants them."""
        known = trigger_types().values()
        return tuple(kind.name for kind in known if self.trigger_variables.get(kind.needs))

    @property
    def callers(self) -> tuple[str, ...]:
        """Who may ask for wake-ups: by default every ServiceAccount of the resolver's namespace."""
        account = f"system:serviceaccount:{self.resolver_namespace}:*"
        return self.allowed_callers or (account,)


def _parse_polling_interval(text: str) -> float:
    # KubeElasti takes its default for what it cannot use, instead of failing.
    try:
        return parse_seconds(text) or POLLING_INTERVAL
    except ValueError:
        return POLLING_INTERVAL


def parse_default_triggers(text: str) -> tuple[str, ...]:
    """Read the types of triggers, of those that need no metadata. Raises ValueError."""
    names = parse_list(text)
    for name in names:
        try:
            read_metadata(name, {})
        except ValueError as error:
            raise ValueError(f"{text!r} is not a valid default for triggers: {error}") from None
    return names


def parse_notify_url(text: str) -> str:
    """Read where notifications are posted. Raises ValueError, without the value, which may be a secret."""
    if not is_http_url(text):
        raise ValueError(
            "it is not a URL for notifications; write one such as https://hooks.example.com/elasti"
        )
    return text


def _parse_on_resolver_loss(text: str) -> OnResolverLoss:
    try:
        return OnResolverLoss(text)
    except ValueError:
        raise ValueError(f"{text!r} is neither 'Wake' nor 'Wait'") from None


def _parse_target_ref(text: str) -> str:
    if text not in TARGET_REFS:
        raise ValueError(f"{text!r} is not one of {', '.join(TARGET_REFS)}")
    return text


VARIABLES: Variables = {
    "ELASTI_OPERATOR_NAMESPACE": ("operator_namespace", str),
    "ELASTI_LISTEN_ADDRESS": ("host", str),
    "ELASTI_OPERATOR_HOST": ("host", str),
    "ELASTI_OPERATOR_PORT": ("port", parse_port),
    "ELASTI_RESOLVER_NAMESPACE": ("resolver_namespace", str),
    "ELASTI_RESOLVER_SERVICE_NAME": ("resolver_service", str),
    "ELASTI_RESOLVER_PORT": ("resolver_admin_port", parse_port),
    PORT_RANGE: ("port_range", parse_port_range),
    "WATCH_NAMESPACES": ("watch_namespaces", parse_list),
    "POLLING_INTERVAL": ("polling_interval", _parse_polling_interval),
    "ELASTI_DEFAULT_TRIGGERS": ("default_triggers", parse_default_triggers),
    "ELASTI_DOZE": ("doze", parse_bool),
    "ELASTI_NOTIFY_URL": ("notify_url", parse_notify_url),
    "ELASTI_NOTIFY_KEY": ("notify_key", str),
    "ELASTI_NOTIFY_KEY_FILE": ("notify_key_file", str),
    "ELASTI_ENROLMENT": ("enrolment", parse_bool),
    "ELASTI_ENROLMENT_OBSERVE_FOR": ("enrolment_observe_for", parse_seconds),
    "ELASTI_ENGAGE_SETTLE": ("engage_settle", parse_seconds),
    "ELASTI_RELEASE_SETTLE": ("release_settle", parse_seconds),
    "ELASTI_FINALIZE_WAIT": ("finalize_wait", parse_seconds),
    "ELASTI_RESOLVER_LOSS_GRACE": ("resolver_loss_grace", parse_seconds),
    "ELASTI_ON_RESOLVER_LOSS": ("on_resolver_loss", _parse_on_resolver_loss),
    "ELASTI_TARGET_REF": ("target_ref", _parse_target_ref),
    "ELASTI_INFORMER_RESYNC": ("informer_resync", parse_seconds),
    "ELASTI_INFORMER_HEALTH_PERIOD": ("informer_health_period", parse_seconds),
    "ELASTI_INFORMER_STUCK_AFTER": ("informer_stuck_after", parse_seconds),
    "ELASTI_WORKERS": ("workers", parse_count),
    "ELASTI_RESOLVER_TOKEN_FILE": ("token_file", str),
    "ELASTI_TLS_SECRET": ("tls_secret", str),
    "ELASTI_LEADER_ELECT": ("leader_elect", parse_bool),
    "ELASTI_LEASE_NAME": ("lease_name", str),
    "POD_NAME": ("identity", str),
    **AUTHN_VARIABLES,
}
KUBEELASTI_ONLY = (
    "KUBERNETES_CLUSTER_DOMAIN", "ELASTI_RESOLVER_PROXY_PORT", "ELASTI_OPERATOR_DEPLOYMENT_NAME",
    "ELASTI_RESOLVER_DEPLOYMENT_NAME", "ELASTI_OPERATOR_SERVICE_NAME", "SENTRY_DSN", "SENTRY_ENVIRONMENT",
)  # fmt: skip
