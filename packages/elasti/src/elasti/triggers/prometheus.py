"""Triggers that ask Prometheus.

One query, one number. Prometheus itself must have been up for the whole cooldown (KubeElasti's uptime
query), or its silence would be taken for the target's. What is no single finite number is an error,
and an error never lets a target sleep. Headers and addresses may hold credentials: they appear in no
message. Nor do the server's own words: the author of a trigger names the server, and must not read by
status what only the operator can reach.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import functools
import math
import os
import re
import urllib.parse
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple, TypeVar

import aiohttp
import msgspec
import structlog
from msgspec import Meta

from elasti.triggers.registry import (
    REDACTED,
    SecretUnavailable,
    TriggerMetadata,
    TriggerReader,
    TriggerReading,
    TriggerType,
)
from elasti.triggers.responses import ResponseTooLong, whole_body
from kubeloop.client.auth.credentials import basic

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine, Mapping, Sequence

    from elasti.triggers.registry import ReadContext, ReaderSettings, ReadSecret
    from kubeloop.aio.clock import Clock

_TIMEOUT = 5.0
_MAX_BYTES = 1 << 20
_MAX_SILENCES = 3
_AT_ONCE = 64
_ADDRESS, _AUTHORIZATION, _SERVERS = (
    "PROMETHEUS_TRIGGER_SERVER_ADDRESS",
    "PROMETHEUS_TRIGGER_AUTHORIZATION_HEADER",
    "ELASTI_PROMETHEUS_SERVERS",
)
_CREDENTIALS = re.compile(r"(//|\A)[^/]*@|[?#].*", re.DOTALL)
_PORTS = {"http": 80, "https": 443}
# Prometheus' own words for why; any other word is the server's, and not shown.
_ERROR_TYPES = frozenset(
    {"bad_data", "execution", "timeout", "canceled", "internal", "not_found", "unavailable"}
)

_log = structlog.get_logger(__name__)
_T = TypeVar("_T")


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
        odd = {".", ".."} & set(path.split("/")) or not path.isprintable() or "\\" in path
        if found.scheme not in _PORTS or not found.hostname or odd or "?" in text or "#" in text:
            raise ValueError(_ADDRESS_RULE)
        port = _PORTS[found.scheme] if port is None else port
        return cls(found.scheme, found.hostname, port, found.path.rstrip("/"))

    def covers(self, other: ServerAddress) -> bool:
        """Whether the other is here or below."""
        return self[:3] == other[:3] and f"{other.path}/".startswith(f"{self.path}/")

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
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

    `server_address` may be left out where the operator or the Secret has one. `headers` may hold
    credentials: they never appear in logs, events, status or metrics.
    """

    query: Annotated[
        str, Meta(min_length=1, description="A PromQL query for one number, of type prometheus.")
    ]
    server_address: Annotated[str, Meta(description="Prometheus' URL, like http://host:9090.")] = ""
    uptime_filter: Annotated[str, Meta(description="Which up series are Prometheus' own.")] = (
        'container="prometheus"'
    )
    headers: Annotated[
        dict[str, str], Meta(description="What is sent along, such as credentials.")
    ] = msgspec.field(default_factory=dict)
    authentication_ref: Annotated[
        SecretRef | None, Meta(description="The Secret with the credentials.")
    ] = None

    def __post_init__(self) -> None:
        if self.server_address:
            ServerAddress.parse(self.server_address)

    def __repr__(self) -> str:
        return f"PrometheusMetadata(query={self.query!r}, threshold={self.threshold!r})"


class QueryFailed(Exception):
    """There is no number; the message says why."""


class _QueryData(msgspec.Struct, rename="camel"):
    result_type: str = ""
    result: Any = None


class _QueryResponse(msgspec.Struct, rename="camel"):
    status: str = ""
    data: _QueryData = msgspec.field(default_factory=_QueryData)
    error_type: str = ""


def uptime_query(uptime_filter: str, cooldown: float) -> str:
    """Return the query that is 1 where Prometheus was up for the whole cooldown."""
    return f"min_over_time((max(up{{{uptime_filter}}}) or vector(0))[{cooldown:.0f}s:])"


def basic_authorization(address: str) -> str:
    """Return the header that stands for a user and password in an address; empty without them."""
    user = urllib.parse.urlsplit(address)
    if user.username is None:
        return ""
    login, password = (urllib.parse.unquote(part or "") for part in (user.username, user.password))
    return basic(login, password)["Authorization"]


def value_of(body: bytes) -> float:
    """Read the single number of an answer. Raises QueryFailed."""
    try:
        answer = msgspec.json.decode(body, type=_QueryResponse)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        raise QueryFailed("Prometheus' answer cannot be read") from None
    if answer.status != "success":
        kind = answer.error_type if answer.error_type in _ERROR_TYPES else "no reason given"
        raise QueryFailed(f"Prometheus refused the query ({kind}); ask it the same query")
    value = _single(answer.data)
    if math.isinf(value):
        raise QueryFailed("the query's value is infinite")
    return value


def _single(data: _QueryData) -> float:
    found = [data.result] if data.result_type == "scalar" else data.result
    if not isinstance(found, list):
        raise QueryFailed("Prometheus' answer has no result")
    if not found:
        raise QueryFailed("the query returned nothing; use `or vector(0)` if that means idle")
    if len(found) > 1:
        raise QueryFailed(f"the query returned {len(found)} series; aggregate them, as with sum()")
    try:
        pair = found[0]["value"] if isinstance(found[0], dict) else found[0]
        return float(pair[1])
    except (KeyError, TypeError, ValueError, IndexError, OverflowError):
        raise QueryFailed("the query's result is no single number") from None


@dataclasses.dataclass(eq=False, repr=False)
class PrometheusReader(TriggerReader):
    """Asks Prometheus; identical queries of one round are sent once.

    A server that has not answered several times in a row is given up for the rest of the round: with
    thousands of triggers, waiting for each in turn would keep all others from being read.
    """

    session: aiohttp.ClientSession
    _: dataclasses.KW_ONLY
    clock: Clock
    default_address: str = ""
    authorization: str = ""
    servers: Sequence[ServerAddress] = ()
    secret: ReadSecret | None = None
    timeout: float = _TIMEOUT

    def __post_init__(self) -> None:
        self._asked: dict[tuple[object, ...], asyncio.Future[Any]] = {}
        self._silences: dict[ServerAddress, list[str]] = {}
        self.sent = 0

    async def read(self, metadata: PrometheusMetadata, context: ReadContext) -> TriggerReading:
        """Return the query's value, from a Prometheus that was up for the whole cooldown."""
        try:
            address, headers = await self._destination(metadata, context)
            uptime = uptime_query(metadata.uptime_filter, context.cooldown)
            # Both are under way before the first is waited for.
            asked = [
                self._once(
                    (address, query, *sorted(headers.items())),
                    functools.partial(self._send, address, query, headers),
                )
                for query in (uptime, metadata.query)
            ]
            # Shared: a reading that is cancelled must not take the answer from the others.
            up, value = [await asyncio.shield(one) for one in asked]
        except (QueryFailed, SecretUnavailable) as error:
            return TriggerReading(error=str(error))
        if up != 1:
            return TriggerReading(
                error="Prometheus was not up for the whole cooldown (uptimeFilter)"
            )
        return TriggerReading(value)

    async def _destination(
        self, metadata: PrometheusMetadata, context: ReadContext
    ) -> tuple[ServerAddress, dict[str, str]]:
        """Return whom to ask, and what is sent along. Raises QueryFailed, SecretUnavailable."""
        text, credential = metadata.server_address, ""
        if (ref := metadata.authentication_ref) is not None:
            text, credential = await self._from_secret(ref.name, text, context)
        text = text or self.default_address
        if not text:
            raise QueryFailed(
                f"metadata.serverAddress is missing, and the operator has no default ({_ADDRESS})"
            )
        address = _parsed(text)
        default = _parsed(self.default_address) if self.default_address else None
        if self.servers and not any(
            allowed.covers(address) for allowed in (*self.servers, *filter(None, [default]))
        ):
            raise QueryFailed(
                f"the operator may not ask {address}: it is none of {_SERVERS}, which the"
                " installation lists"
            )
        own = dict(metadata.headers)
        if not credential and any(name.lower() == "authorization" for name in own):
            return address, own
        # The author of a trigger may name any server: the operator's own credential is for the whole
        # address that it was given with, and for no other path of that host.
        credential = credential or basic_authorization(text)
        if not credential and address == default:
            credential = self.authorization
        rest = {name: value for name, value in own.items() if name.lower() != "authorization"}
        return address, ({"Authorization": credential} if credential else {}) | rest

    async def _from_secret(self, name: str, named: str, context: ReadContext) -> tuple[str, str]:
        """Return the address that a Secret is for, and its credential.

        Without an address in the Secret, every user who may write an ElastiService could send it anywhere.
        """
        if self.secret is None:
            raise QueryFailed("metadata.authenticationRef cannot be used here")
        read, namespace = self.secret, context.namespace
        found = await asyncio.shield(
            self._once(("secret", namespace, name), lambda: read(namespace, name))
        )
        address = found.get("serverAddress", "")
        if not address:
            raise QueryFailed(f"Secret {name} has no key serverAddress: the server that it is for")
        if named and _parsed(named) != _parsed(address):
            raise QueryFailed(f"metadata.serverAddress is not the server that Secret {name} is for")
        if token := found.get("token"):
            return address, f"Bearer {token}"
        if authorization := found.get("authorization"):
            return address, authorization
        user, password = found.get("username", ""), found.get("password", "")
        if not user and not password:
            raise QueryFailed(
                f"Secret {name} has no credential: give it token, authorization, or username and"
                " password"
            )
        return address, basic(user, password)["Authorization"]

    def _once(
        self, key: tuple[object, ...], make: Callable[[], Coroutine[Any, Any, _T]]
    ) -> asyncio.Future[_T]:
        """Do something, or wait for the same that is under way or done in this round."""
        asked = self._asked.get(key)
        if asked is None:
            asked = self._asked[key] = asyncio.ensure_future(make())
            asked.add_done_callback(_take_exception)
        return asked

    async def _send(self, address: ServerAddress, query: str, headers: Mapping[str, str]) -> float:
        if len(silences := self._silences.get(address, [])) >= _MAX_SILENCES:
            raise QueryFailed(silences[-1])
        self.sent += 1
        now = self.clock.now().astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        try:
            async with self.session.get(
                f"{address}/api/v1/query",
                params={"query": query, "time": now},
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=self.timeout),
                allow_redirects=False,  # headers are for the address that the author gave
            ) as response:
                body = await whole_body(response, limit=_MAX_BYTES)
                if response.status != 200:
                    raise QueryFailed(f"Prometheus answered {response.status} at {address}")
        except (aiohttp.ClientError, OSError, ValueError, ResponseTooLong) as error:
            text = f"Prometheus at {address} {_why(error)}"
            # After a few times in a row it is not asked again in this round.
            self._silences.setdefault(address, []).append(text)
            raise QueryFailed(text) from None
        self._silences.pop(address, None)
        return value_of(body)

    async def end_round(self) -> None:
        """Cancel what is not answered yet, and send everything again in the next round."""
        pending = [asked for asked in self._asked.values() if not asked.done()]
        for asked in pending:
            asked.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        self._asked.clear()
        self._silences.clear()

    async def close(self) -> None:
        """Cancel queries, and close connections."""
        await self.end_round()
        await self.session.close()


def _parsed(text: str) -> ServerAddress:
    try:
        return ServerAddress.parse(text)
    except ValueError as error:
        raise QueryFailed(f"metadata.{error}") from None


def _why(error: Exception) -> str:
    """Return why there was no answer, in words of ours: errors quote what a server has sent."""
    match error:
        case TimeoutError():
            return "did not answer in time"
        case ResponseTooLong():
            why = str(error)
        case aiohttp.ClientConnectorDNSError():
            why = "its name is not known"
        case aiohttp.ClientSSLError():
            why = "TLS failed, or its certificate is not valid"
        case OSError(errno=int(number)) if not isinstance(error, aiohttp.ClientError):
            why = os.strerror(number)
        case aiohttp.ClientConnectorError(os_error=OSError(errno=int(number))):
            why = os.strerror(number)
        case _:
            why = "what it sent is no answer"
    return f"cannot be asked: {why}"


def _take_exception(done: asyncio.Future[Any]) -> None:
    if not done.cancelled():
        done.exception()


def without_credentials(address: str) -> str:
    """Return an address without what may be a credential in it: a user and password, a query."""
    return _CREDENTIALS.sub(r"\1", address)


def _make_reader(settings: ReaderSettings) -> PrometheusReader:
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=_AT_ONCE),
        # Addresses are the authors' of ElastiServices: none may set what another's is sent.
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )
    address, authorization = (
        settings.variables.get(name, "") for name in (_ADDRESS, _AUTHORIZATION)
    )
    if authorization and not address:
        _log.warning(f"{_AUTHORIZATION} is sent nowhere, since {_ADDRESS} is not set")
    return PrometheusReader(
        session,
        clock=settings.clock,
        default_address=address,
        authorization=authorization,
        servers=settings.variables.get(_SERVERS, ()),
        secret=settings.secret,
    )


def _parse_servers(text: str) -> tuple[ServerAddress, ...]:
    return tuple(ServerAddress.parse(part.strip()) for part in text.split(",") if part.strip())


TRIGGER = TriggerType(
    name="prometheus",
    metadata=PrometheusMetadata,
    reader=_make_reader,
    variables={_ADDRESS: str, _AUTHORIZATION: str, _SERVERS: _parse_servers},
    redactions={
        "serverAddress": lambda value: (
            without_credentials(value) if isinstance(value, str) else REDACTED
        ),
        "headers": lambda value: (
            dict.fromkeys(value, REDACTED) if isinstance(value, dict) else REDACTED
        ),
    },
)
