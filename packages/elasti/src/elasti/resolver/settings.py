"""The resolver's settings: read once, at the composition root, from a mapping of variables.

KubeElasti's names keep their meaning where there is one: `REQ_TIMEOUT` and `QUEUE_SIZE` bound what an
ElastiService may ask for. Those that tuned its polling loops are known and change nothing here.
Everything wrong is reported at once, each with the variable, the value and what to write instead.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
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
from elasti.authn.settings import AUTHN_VARIABLES, AuthnSettings


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResolverSettings(AuthnSettings):
    """All settings; times in seconds.

    engage_settle: how long after it left every slice traffic may still come; as the operator's.
    drain_timeout: after it, a draining resolver gives up on connections that do not end.
    pod_address: how slices name this resolver. watch_namespaces: empty for the whole cluster.
    waiting_page: what `wake.page.mode` is where an ElastiService leaves it out.
    """

    operator_namespace: str = NAMESPACE
    operator_service: str = OPERATOR_SERVICE
    operator_port: int = OPERATOR_PORT
    operator_url: str = ""
    operator_token_file: str = ""
    cluster_domain: str = "cluster.local"
    watch_namespaces: tuple[str, ...] = ()

    host: str | None = None
    shared_port: int = 0
    admin_port: int = RESOLVER_ADMIN_PORT
    header_for_host: str = "Host"
    pod_address: str = ""

    hold_timeout: int | None = None
    max_held: int | None = None
    waiting_page: Literal["Off", "Auto"] = "Off"
    idle_per_pod: int = 100
    engage_settle: float = ENGAGE_SETTLE
    drain_timeout: float = 600.0
    workers: int = 1

    @classmethod
    def from_env(cls, environ: Mapping[str, str], **overrides: Any) -> ResolverSettings:
        """Read variables; `overrides` (from flags) win where they are not None.

        Raises SettingsError with every complaint.
        """
        return cls.with_overrides(read_variables(VARIABLES, environ), overrides)

    @property
    def operator(self) -> str:
        """The operator's URL."""
        host = f"{self.operator_service}.{self.operator_namespace}.svc.{self.cluster_domain}"
        return self.operator_url or f"http://{host}:{self.operator_port}"

    @property
    def callers(self) -> tuple[str, ...]:
        """Who may ask for activity: by default every ServiceAccount of the operator's namespace."""
        return self.allowed_callers or (f"system:serviceaccount:{self.operator_namespace}:*",)


def _whole_seconds(text: str) -> int:
    return max(int(parse_seconds(text)), 1)


def _parse_shared_port(text: str) -> int:
    return 0 if text == "0" else parse_port(text)


def _parse_page_mode(text: str) -> str:
    if text not in ("Off", "Auto"):
        raise ValueError(f"{text!r} is neither 'Off' nor 'Auto'")
    return text


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
    "MAX_IDLE_PROXY_CONNS_PER_HOST": ("idle_per_pod", parse_count),
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
