"""The resolver's settings, read once from environment variables.

KubeElasti's variables keep their meaning if they have one here: `REQ_TIMEOUT` and `QUEUE_SIZE` bound what an
ElastiService may ask for. Variables that tuned its polling loops are known and ignored. All invalid values are
reported together, each with its variable, its value and a remedy.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from ipaddress import IPv4Network, IPv6Network, ip_network
from typing import Any, Literal

from elasti.api.defaults import ENGAGE_SETTLE, OPERATOR_PORT, RESOLVER_ADMIN_PORT
from elasti.api.names import NAMESPACE, OPERATOR_SERVICE
from elasti.api.parsing import (
    Variables,
    parse_count,
    parse_list,
    parse_port,
    parse_seconds,
    read_variables,
)
from elasti.api.types import IgnorePreset
from elasti.authn.settings import AUTHN_VARIABLES, AuthnSettings


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResolverSettings(AuthnSettings):
    """All settings. Times are in seconds."""

    operator_namespace: str = NAMESPACE
    operator_service: str = OPERATOR_SERVICE
    operator_port: int = OPERATOR_PORT
    operator_url: str = ""
    operator_token_file: str = ""
    cluster_domain: str = "cluster.local"
    #: Empty for the whole cluster.
    watch_namespaces: tuple[str, ...] = ()

    host: str | None = None
    shared_port: int = 0
    admin_port: int = RESOLVER_ADMIN_PORT
    header_for_host: str = "Host"
    #: This resolver's address in EndpointSlices.
    pod_address: str = ""

    hold_timeout: int | None = None
    max_held: int | None = None
    #: The default of `wake.page.mode`.
    waiting_page: Literal["Off", "Auto"] = "Off"
    ignored_requests: tuple[IgnorePreset, ...] = (IgnorePreset.LOAD_BALANCERS, IgnorePreset.PROBES)
    idle_per_pod: int = 100
    client_connections: int | None = None
    """The most that one client address may have at a time; by default four fifths of the total."""
    unlimited_clients: tuple[IPv4Network | IPv6Network, ...] = ()
    """Networks of ingresses and other proxies, whose addresses stand for many clients."""
    #: How long traffic may still arrive after the last slice dropped this resolver. Same as the operator's.
    engage_settle: float = ENGAGE_SETTLE
    #: A draining resolver closes connections that are still active after this time.
    drain_timeout: float = 600.0
    workers: int = 1

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **overrides: Any) -> ResolverSettings:
        """Read variables. `overrides` (from flags) win unless they are None.

        Raises SettingsError with all invalid values.
        """
        return cls.with_overrides(read_variables(VARIABLES, environ), overrides)

    @property
    def operator(self) -> str:
        """The operator's URL."""
        host = f"{self.operator_service}.{self.operator_namespace}.svc.{self.cluster_domain}"
        return self.operator_url or f"http://{host}:{self.operator_port}"

    @property
    def callers(self) -> tuple[str, ...]:
        """Accounts that may read activity. Default: every ServiceAccount in the operator's namespace."""
        return self.allowed_callers or (f"system:serviceaccount:{self.operator_namespace}:*",)


def _whole_seconds(text: str) -> int:
    return max(int(parse_seconds(text)), 1)


def _parse_shared_port(text: str) -> int:
    return 0 if text == "0" else parse_port(text)


def parse_networks(text: str) -> tuple[IPv4Network | IPv6Network, ...]:
    """Read networks, or addresses, that commas separate."""
    try:
        return tuple(ip_network(item) for item in parse_list(text))
    except ValueError as error:
        raise ValueError(f"{error}; write networks such as 10.0.0.0/8,fd00::/8") from None


def _parse_page_mode(text: str) -> str:
    if text not in ("Off", "Auto"):
        raise ValueError(f"{text!r} is not a page mode; use 'Off' or 'Auto'")
    return text


def _parse_presets(text: str) -> tuple[IgnorePreset, ...]:
    try:
        return () if text == "None" else tuple(IgnorePreset(item) for item in parse_list(text))
    except ValueError as error:
        known = ", ".join(IgnorePreset)
        raise ValueError(f"{error}; write some of {known} with commas, or None") from None


VARIABLES: Variables = {
    "ELASTI_OPERATOR_NAMESPACE": ("operator_namespace", str),
    "ELASTI_OPERATOR_SERVICE_NAME": ("operator_service", str),
    "ELASTI_OPERATOR_PORT": ("operator_port", parse_port),
    "ELASTI_OPERATOR_URL": ("operator_url", str),
    "ELASTI_OPERATOR_TOKEN_FILE": ("operator_token_file", str),
    "ELASTI_RESOLVER_PORT": ("admin_port", parse_port),
    "ELASTI_RESOLVER_PROXY_PORT": ("shared_port", _parse_shared_port),
    "ELASTI_LISTEN_ADDRESS": ("host", str),
    "ELASTI_RESOLVER_HOST": ("host", str),
    "ELASTI_RESOLVER_WORKERS": ("workers", parse_count),
    "KUBERNETES_CLUSTER_DOMAIN": ("cluster_domain", str),
    "WATCH_NAMESPACES": ("watch_namespaces", parse_list),
    "HEADER_FOR_HOST": ("header_for_host", str),
    "REQ_TIMEOUT": ("hold_timeout", _whole_seconds),
    "QUEUE_SIZE": ("max_held", parse_count),
    "ELASTI_WAITING_PAGE": ("waiting_page", _parse_page_mode),
    "ELASTI_IGNORED_REQUESTS": ("ignored_requests", _parse_presets),
    "MAX_IDLE_PROXY_CONNS_PER_HOST": ("idle_per_pod", parse_count),
    "ELASTI_MAX_CONNECTIONS_PER_CLIENT": ("client_connections", parse_count),
    "ELASTI_UNLIMITED_CLIENTS": ("unlimited_clients", parse_networks),
    "ELASTI_ENGAGE_SETTLE": ("engage_settle", parse_seconds),
    "ELASTI_DRAIN_TIMEOUT": ("drain_timeout", parse_seconds),
    "POD_IP": ("pod_address", str),
    **AUTHN_VARIABLES,
}
KUBEELASTI_ONLY = (
    "MAX_IDLE_PROXY_CONNS", "TRAFFIC_RE_ENABLE_DURATION", "OPERATOR_RETRY_DURATION",
    "QUEUE_RETRY_DURATION", "MAX_QUEUE_CONCURRENCY", "INITIAL_CAPACITY", "ENABLE_H2C",
    "TRAFFIC_DISABLE_GRACE_DURATION", "CRD_CACHE_POLL_INTERVAL_MINUTES", "SENTRY_DSN",
    "SENTRY_ENVIRONMENT",
)  # fmt: skip
