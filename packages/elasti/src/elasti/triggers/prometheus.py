"""Triggers that ask Prometheus.

One query gives one number. Prometheus itself must have been up for the whole cooldown (KubeElasti's
uptime query), or a gap in its data would pass for an idle target. Any other result is an error, and an
error never lets a target sleep. Headers and addresses may hold credentials, so no message has them. Nor
does a message quote the server: the author of a trigger names the server, and must not read in status
what only the operator can reach.
"""

from __future__ import annotations

import asyncio
import dataclasses
import datetime as dt
import functools
import math
import os
import socket
import ssl
import urllib.parse
from collections.abc import Callable, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

import msgspec

from elasti.api.triggers.destinations import DENIED, Destinations
from elasti.api.triggers.prometheus import (
    ADDRESS,
    AUTHORIZATION,
    SERVERS,
    PrometheusMetadata,
    ServerAddress,
)
from elasti.logger import get_logger
from elasti.triggers.reader import (
    ReadContext,
    ReaderSettings,
    ReadSecret,
    SecretUnavailable,
    TriggerReader,
    TriggerReading,
)
from elasti.triggers.responses import DestinationDenied, destinations_of, guarded_client
from kubeloop.aio.clock import Clock
from kubeloop.client.auth.credentials import basic
from kubeloop.http.client import AnswerTooLong, ConnectFailed, HttpClient

_TIMEOUT = 5.0
_MAX_BYTES = 1 << 20
_MAX_SILENCES = 3
# Prometheus' own words for why; any other word is the server's, and not shown.
_ERROR_TYPES = frozenset(
    {"bad_data", "execution", "timeout", "canceled", "internal", "not_found", "unavailable"}
)

_log = get_logger(__name__)
_T = TypeVar("_T")


class QueryFailed(Exception):
    """The query has no usable number; the message gives the reason."""


class _QueryData(msgspec.Struct, rename="camel"):
    result_type: str = ""
    result: Any = None


class _QueryResponse(msgspec.Struct, rename="camel"):
    status: str = ""
    data: _QueryData = msgspec.field(default_factory=_QueryData)
    error_type: str = ""


def uptime_query(uptime_filter: str, cooldown: float) -> str:
    """Return the query that is 1 if Prometheus was up for the whole cooldown."""
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
        raise QueryFailed(
            f"Prometheus refused the query ({kind}); run the same query in Prometheus to see why"
        )
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
        raise QueryFailed("the query's result is not a single number") from None


class _Failures:
    """Failures of one server, in a row. After a few it is not asked again in the same round.

    With thousands of triggers, waiting for a silent server again and again would keep all others from
    being read. But a query or a header can fail by itself, so each namespace has a count of its own. The
    server is given up for all if it cannot be connected to, or answers several namespaces too late.
    """

    def __init__(self) -> None:
        self._by_namespace: dict[str, list[str]] = {}
        self._of_all: list[str] = []
        self._late: set[str] = set()

    def given_up(self, namespace: str) -> str:
        """Return the last failure if the server is not to be asked; else empty."""
        for texts in (self._of_all, self._by_namespace.get(namespace, [])):
            if len(texts) >= _MAX_SILENCES:
                return texts[-1]
        return ""

    def add(self, text: str, namespace: str, error: Exception) -> None:
        """Count a failure."""
        self._by_namespace.setdefault(namespace, []).append(text)
        late = isinstance(error, TimeoutError) and namespace not in self._late
        if late or isinstance(error, ConnectFailed):
            self._of_all.append(text)
        if late:
            self._late.add(namespace)

    def end(self, namespace: str) -> None:
        """The server answered a namespace."""
        self._by_namespace.pop(namespace, None)
        self._of_all.clear()
        self._late.clear()


@dataclasses.dataclass(eq=False, repr=False)
class PrometheusReader(TriggerReader):
    """Asks Prometheus; identical queries of one round are sent once."""

    http: HttpClient
    _: dataclasses.KW_ONLY
    clock: Clock
    listed: HttpClient | None = None
    """For servers that the installation names, whatever their address."""
    destinations: Destinations = dataclasses.field(default_factory=Destinations)
    default_address: str = ""
    authorization: str = ""
    servers: Sequence[ServerAddress] = ()
    secret: ReadSecret | None = None
    timeout: float = _TIMEOUT

    def __post_init__(self) -> None:
        self._asked: dict[tuple[object, ...], asyncio.Future[Any]] = {}
        self._failures: dict[ServerAddress, _Failures] = {}
        self.sent = 0

    async def read(self, metadata: PrometheusMetadata, context: ReadContext) -> TriggerReading:
        """Return the query's value, from a Prometheus that was up for the whole cooldown."""
        try:
            address, headers = await self._destination(metadata, context)
            uptime = uptime_query(metadata.uptime_filter, context.cooldown)
            queries = (uptime, metadata.query) if metadata.uptime_filter else (metadata.query,)
            # Both are under way before the first is waited for.
            asked = [
                self._once(
                    (address, query, *sorted(headers.items())),
                    functools.partial(self._send, address, query, headers, context.namespace),
                )
                for query in queries
            ]
            # Shared: a reading that is cancelled must not take the answer from the others.
            *up, value = [await asyncio.shield(one) for one in asked]
        except (QueryFailed, SecretUnavailable) as error:
            return TriggerReading(error=str(error))
        if up and up != [1]:
            return TriggerReading(
                error=f"Prometheus was not up for the whole cooldown: {uptime} is {up[0]:g}, not 1; let"
                ' metadata.uptimeFilter select its own series up, or turn the check off with ""'
            )
        return TriggerReading(value)

    async def _destination(
        self, metadata: PrometheusMetadata, context: ReadContext
    ) -> tuple[ServerAddress, dict[str, str]]:
        """Return the server, and the headers to send. Raises QueryFailed, SecretUnavailable."""
        named, credential = metadata.server_address, ""
        if (ref := metadata.authentication_ref) is not None:
            named, credential = await self._from_secret(ref.name, named, context)
        text = named or self.default_address
        if not text:
            raise QueryFailed(
                f"metadata.serverAddress is missing, and the operator has no default ({ADDRESS})"
            )
        address = _parsed(text)
        default = _parsed(self.default_address) if self.default_address else None
        if not self._is_listed(address):
            if self.servers:
                raise QueryFailed(
                    f"the operator may not ask {address}: it is not in {SERVERS}, which the"
                    " installation lists"
                )
            if not self.destinations.permits_name(address.host, address.port):
                raise QueryFailed(f"Prometheus at {address} cannot be queried: {DENIED}")
        own = dict(metadata.headers)
        if not credential and any(name.lower() == "authorization" for name in own):
            return address, own
        rest = {name: value for name, value in own.items() if name.lower() != "authorization"}
        credential = credential or basic_authorization(named)
        # The author of a trigger may name any server: the operator's own credential is for the whole
        # address that it was given with, and for no other path of that host.
        if not credential and address == default:
            credential = ("" if named else basic_authorization(text)) or self.authorization
            # With it, a header such as X-Scope-OrgID would choose whose numbers the author reads.
            if credential and rest:
                raise QueryFailed(
                    f"metadata.headers {', '.join(sorted(rest))} cannot be sent with the operator's own"
                    f" credential ({AUTHORIZATION}): remove them, or give a credential of your own in"
                    " authenticationRef or in the header Authorization"
                )
        return address, ({"Authorization": credential} if credential else {}) | rest

    def _is_listed(self, address: ServerAddress) -> bool:
        default = [_parsed(self.default_address)] if self.default_address else []
        return any(listed.covers(address) for listed in (*self.servers, *default))

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
            raise QueryFailed(
                f"Secret {name} has no key serverAddress: add it, with the server that the credential is for"
            )
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
        """Do something once in a round; later calls share its result."""
        asked = self._asked.get(key)
        if asked is None:
            asked = self._asked[key] = asyncio.ensure_future(make())
            asked.add_done_callback(_take_exception)
        return asked

    async def _send(
        self, address: ServerAddress, query: str, headers: Mapping[str, str], namespace: str
    ) -> float:
        failures = self._failures.setdefault(address, _Failures())
        if given_up := failures.given_up(namespace):
            raise QueryFailed(given_up)
        self.sent += 1
        listed = self.listed if self._is_listed(address) else None
        now = self.clock.now().astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        asked = urllib.parse.urlencode({"query": query, "time": now})
        try:
            # No redirect is followed: headers are for the address that the author gave.
            async with (listed or self.http).request(
                "GET", f"{address}/api/v1/query?{asked}", headers=headers, timeout=self.timeout
            ) as answer:
                body = await answer.body(limit=_MAX_BYTES)
                if answer.status != 200:
                    raise QueryFailed(f"Prometheus answered {answer.status} at {address}")
        except (OSError, ValueError, AnswerTooLong) as error:
            text = f"Prometheus at {address} {_why(error)}"
            failures.add(text, namespace, error)
            raise QueryFailed(text) from None
        failures.end(namespace)
        return value_of(body)

    async def end_round(self) -> None:
        """Cancel pending queries; the next round sends everything again."""
        pending = [asked for asked in self._asked.values() if not asked.done()]
        for asked in pending:
            asked.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        self._asked.clear()
        self._failures.clear()

    async def close(self) -> None:
        """Cancel queries, and close connections."""
        await self.end_round()
        await self.http.aclose()
        if self.listed is not None:
            await self.listed.aclose()


def _parsed(text: str) -> ServerAddress:
    try:
        return ServerAddress.parse(text)
    except ValueError as error:
        raise QueryFailed(f"metadata.{error}") from None


def _why(error: Exception) -> str:
    """Return why there was no answer, in our own words: errors quote what a server has sent."""
    match error.cause if isinstance(error, ConnectFailed) else error:
        case TimeoutError():
            return "did not answer in time"
        case AnswerTooLong():
            why = str(error)
        case DestinationDenied():
            why = DENIED
        case socket.gaierror():
            why = "its name cannot be resolved"
        case ssl.SSLError():
            why = "TLS failed, or its certificate is not valid"
        case OSError(errno=int(number)):
            why = os.strerror(number)
        case _:
            why = "its answer is not HTTP"
    return f"cannot be queried: {why}"


def _take_exception(done: asyncio.Future[Any]) -> None:
    if not done.cancelled():
        done.exception()


def make_reader(settings: ReaderSettings) -> PrometheusReader:
    """Make the reader."""
    destinations = destinations_of(settings)
    address, authorization = (settings.variables.get(name, "") for name in (ADDRESS, AUTHORIZATION))
    if authorization and not address:
        _log.warning(
            "credential is never sent: its address is not set",
            credential=AUTHORIZATION,
            address=ADDRESS,
        )
    return PrometheusReader(
        # The evaluator bounds how many are asked at once, by namespace; a queue here would be shared by all.
        guarded_client(destinations),
        listed=guarded_client(None),
        destinations=destinations,
        clock=settings.clock,
        default_address=address,
        authorization=authorization,
        servers=settings.variables.get(SERVERS, ()),
        secret=settings.secret,
    )
