"""Triggers on a query of a Prometheus server."""

from __future__ import annotations

import re
import urllib.parse
from typing import Annotated, NamedTuple

import msgspec
from msgspec import Meta

from elasti.api.descriptions import about
from elasti.api.triggers.destinations import ALLOWED, parse_networks
from elasti.api.triggers.registry import REDACTED, TriggerMetadata, TriggerType
from kubeloop.objects.names import url_host

ADDRESS = "PROMETHEUS_TRIGGER_SERVER_ADDRESS"
AUTHORIZATION = "PROMETHEUS_TRIGGER_AUTHORIZATION_HEADER"
SERVERS = "ELASTI_PROMETHEUS_SERVERS"
_CREDENTIALS = re.compile(r"(//|\A)[^/]*@|[?#].*", re.DOTALL)
_PORTS = {"http": 80, "https": 443}
_HEADER_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z-]+\Z")
_CONTROL = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")
# They say where a request goes and where it ends, which is not the author's to decide.
_FRAMING = frozenset(
    (
        "host",
        "connection",
        "content-length",
        "expect",
        "te",
        "trailer",
        "transfer-encoding",
        "upgrade",
    )
)


class ServerAddress(NamedTuple):
    """A server and the path before its API: all that decides where a request goes."""

    scheme: str
    host: str
    port: int
    path: str

    @classmethod
    def parse(cls, text: str) -> ServerAddress:
        """Read an address. Raises ValueError, without the address: it may hold credentials."""
        try:
            found = urllib.parse.urlsplit(text)
            port = found.port
        except ValueError:
            raise ValueError(_ADDRESS_RULE) from None
        path = urllib.parse.unquote(found.path)
        # Some servers drop what follows a ';' in a segment, and read '..;' as '..'; some decode twice.
        segments = {segment.partition(";")[0] for segment in path.split("/")}
        odd = {".", ".."} & segments or not path.isprintable() or "\\" in path or "%" in path
        if found.scheme not in _PORTS or not found.hostname or odd or "?" in text or "#" in text:
            raise ValueError(_ADDRESS_RULE)
        port = _PORTS[found.scheme] if port is None else port
        return cls(found.scheme, found.hostname, port, found.path.rstrip("/"))

    def covers(self, other: ServerAddress) -> bool:
        """Whether the other is here or below."""
        return self[:3] == other[:3] and f"{other.path}/".startswith(f"{self.path}/")

    def __str__(self) -> str:
        host = url_host(self.host)
        port = "" if self.port == _PORTS[self.scheme] else f":{self.port}"
        return f"{self.scheme}://{host}{port}{self.path}"


_ADDRESS_RULE = (
    "serverAddress must be like http://host:9090 or https://host/prefix: http or https, a host, and"
    " no '?', '#' or '..'"
)


class SecretRef(msgspec.Struct, frozen=True, gc=False):
    """A Secret beside the ElastiService."""

    name: Annotated[str, Meta(min_length=1, max_length=253, pattern=r"^[a-z0-9][-a-z0-9.]*\Z")]


class PrometheusMetadata(TriggerMetadata, frozen=True):
    """A query whose single value is compared with the threshold.

    `server_address` may be left out if the operator or the Secret has one. `headers` may hold
    credentials: they never appear in logs, events, status or metrics.
    """

    query: Annotated[
        str,
        Meta(min_length=1, description="A PromQL query that returns one number (type prometheus)."),
    ]
    server_address: Annotated[str, about("Prometheus' URL, such as http://host:9090.")] = ""
    uptime_filter: Annotated[
        str, about("Selects Prometheus' own up series; empty: its uptime is not checked.")
    ] = 'container="prometheus"'
    headers: Annotated[dict[str, str], about("Headers to send, such as credentials.")] = (
        msgspec.field(default_factory=dict)
    )
    authentication_ref: Annotated[SecretRef | None, about("The Secret with the credentials.")] = (
        None
    )

    def __post_init__(self) -> None:
        if self.server_address:
            ServerAddress.parse(self.server_address)
        for name, value in self.headers.items():
            if not _HEADER_NAME.match(name):
                raise ValueError(
                    f"headers: {name!r:.80} is not a header's name; write one like X-Scope-OrgID"
                )
            if name.lower() in _FRAMING:
                raise ValueError(
                    f"headers: {name} is set by the operator; remove it (serverAddress names the host)"
                )
            if _CONTROL.search(value):
                raise ValueError(
                    f"headers: the value of {name} has a line break or another control character; remove it"
                )

    def __repr__(self) -> str:
        return f"PrometheusMetadata(query={self.query!r}, threshold={self.threshold!r})"


def without_credentials(address: str) -> str:
    """Return an address without what may be a credential in it: a user and password, a query."""
    return _CREDENTIALS.sub(r"\1", address)


def _parse_servers(text: str) -> tuple[ServerAddress, ...]:
    return tuple(ServerAddress.parse(part.strip()) for part in text.split(",") if part.strip())


PROMETHEUS = TriggerType(
    name="prometheus",
    metadata=PrometheusMetadata,
    variables={ADDRESS: str, AUTHORIZATION: str, SERVERS: _parse_servers, ALLOWED: parse_networks},
    redactions={
        "serverAddress": lambda value: (
            without_credentials(value) if isinstance(value, str) else REDACTED
        ),
        "headers": lambda value: (
            dict.fromkeys(value, REDACTED) if isinstance(value, dict) else REDACTED
        ),
    },
)
