"""Triggers that ask Prometheus.

One query, one number. Prometheus itself must have been up for the whole cooldown (KubeElasti's uptime
query), or its silence would be taken for the target's. What is no single finite number is an error,
and an error never lets a target sleep. Headers and addresses may hold credentials: they appear in no
message.
"""

from __future__ import annotations

import asyncio
import base64
import datetime as dt
import math
import re
import urllib.parse
from typing import TYPE_CHECKING, Annotated, Any

import aiohttp
import msgspec
from msgspec import Meta

from elasti.triggers.registry import (
    REDACTED,
    TriggerMetadata,
    TriggerReader,
    TriggerReading,
    TriggerType,
)
from elasti.triggers.responses import ResponseTooLong, whole_body

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elasti.triggers.registry import ReadContext, ReaderSettings
    from kubeloop.aio.clock import Clock

_TIMEOUT = 5.0
_MAX_BYTES = 1 << 20
_MAX_SILENCES = 3
_AT_ONCE = 64
_ADDRESS, _AUTHORIZATION = (
    "PROMETHEUS_TRIGGER_SERVER_ADDRESS",
    "PROMETHEUS_TRIGGER_AUTHORIZATION_HEADER",
)
_CREDENTIALS = re.compile(r"(//|\A)[^/]*@")


class PrometheusMetadata(TriggerMetadata, frozen=True):
    """A query whose single value is compared with the threshold.

    `server_address` may be left out where the operator has a default. `headers` may hold
    credentials: they never appear in logs, events, status or metrics.
    """

    query: Annotated[str, Meta(min_length=1)]
    server_address: str = ""
    uptime_filter: str = 'container="prometheus"'
    headers: dict[str, str] = msgspec.field(default_factory=dict)

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
    error: str = ""


def uptime_query(uptime_filter: str, cooldown: float) -> str:
    """Return the query that is 1 where Prometheus was up for the whole cooldown."""
    return f"min_over_time((max(up{{{uptime_filter}}}) or vector(0))[{cooldown:.0f}s:])"


def basic_authorization(address: str) -> str:
    """Return the header that stands for a user and password in an address; empty without them."""
    user = urllib.parse.urlsplit(address)
    if user.username is None:
        return ""
    login, password = (urllib.parse.unquote(part or "") for part in (user.username, user.password))
    return f"Basic {base64.b64encode(f'{login}:{password}'.encode()).decode()}"


def _origin(address: str) -> tuple[str, str | None, int | None]:
    found = urllib.parse.urlsplit(address)
    return found.scheme, found.hostname, found.port


def value_of(body: bytes) -> float:
    """Read the single number of an answer. Raises QueryFailed."""
    try:
        answer = msgspec.json.decode(body, type=_QueryResponse)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise QueryFailed(f"Prometheus' answer cannot be read: {error}") from None
    if answer.status != "success":
        raise QueryFailed(f"Prometheus refused the query: {answer.error or answer.status}")
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


class PrometheusReader(TriggerReader):
    """Asks Prometheus; identical queries of one round are sent once.

    A server that has not answered several times in a row is given up for the rest of the round: with
    thousands of triggers, waiting for each in turn would keep all others from being read.
    """

    def __init__(
        self,
        session: aiohttp.ClientSession,
        *,
        clock: Clock,
        default_address: str = "",
        authorization: str = "",
        timeout: float = _TIMEOUT,
    ) -> None:
        self._session = session
        self._clock = clock
        self._default_address = default_address
        self._authorization = authorization
        self._timeout = aiohttp.ClientTimeout(total=timeout)
        self._asked: dict[tuple[object, ...], asyncio.Future[float]] = {}
        self._silences: dict[str, list[str]] = {}
        self.sent = 0

    async def read(self, metadata: PrometheusMetadata, context: ReadContext) -> TriggerReading:
        """Return the query's value, from a Prometheus that was up for the whole cooldown."""
        address = metadata.server_address or self._default_address
        if not address:
            return TriggerReading(
                error="metadata.serverAddress is missing, and the operator has no default"
                f" ({_ADDRESS})"
            )
        try:
            headers = self._headers(address, metadata.headers)
        except ValueError:
            return TriggerReading(
                error="metadata.serverAddress is no URL; write it like http://host:9090"
            )
        address = without_credentials(address)
        uptime = self._ask(address, uptime_query(metadata.uptime_filter, context.cooldown), headers)
        query = self._ask(address, metadata.query, headers)
        try:
            # Shared: a reading that is cancelled must not take the answer from the others.
            up, value = await asyncio.shield(uptime), await asyncio.shield(query)
        except QueryFailed as error:
            return TriggerReading(error=str(error))
        if up != 1:
            return TriggerReading(
                error="Prometheus was not up for the whole cooldown (uptimeFilter)"
            )
        return TriggerReading(value)

    def _headers(self, address: str, own: Mapping[str, str]) -> dict[str, str]:
        """Return what is sent along: the trigger's own first, then the address', then the default."""
        if any(name.lower() == "authorization" for name in own):
            return dict(own)
        authorization = basic_authorization(address) or self._default_for(address)
        return ({"Authorization": authorization} if authorization else {}) | dict(own)

    def _default_for(self, address: str) -> str:
        """Return the operator's own credential, for the server that it is meant for.

        The author of a trigger may name any server. Where the operator has no address of its
        own, its credential goes to all of them, as KubeElasti's does.
        """
        foreign = self._default_address and _origin(address) != _origin(self._default_address)
        return "" if foreign else self._authorization

    def _ask(self, address: str, query: str, headers: Mapping[str, str]) -> asyncio.Future[float]:
        """Send a query, or wait for the same one that was sent."""
        key = (address, query, *sorted(headers.items()))
        asked = self._asked.get(key)
        if asked is None:
            asked = self._asked[key] = asyncio.ensure_future(self._send(address, query, headers))
            asked.add_done_callback(_take_exception)
        return asked

    async def _send(self, address: str, query: str, headers: Mapping[str, str]) -> float:
        if len(silences := self._silences.get(address, [])) >= _MAX_SILENCES:
            raise QueryFailed(silences[-1])
        self.sent += 1
        url = f"{address.rstrip('/')}/api/v1/query"
        now = self._clock.now().astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        params = {"query": query, "time": now}
        try:
            async with self._session.get(
                url,
                params=params,
                headers=headers,
                timeout=self._timeout,
                allow_redirects=False,  # headers are for the address that the author gave
            ) as response:
                body = await whole_body(response, limit=_MAX_BYTES)
                if response.status != 200:
                    raise QueryFailed(f"Prometheus answered {response.status} at {address}")
        except TimeoutError:
            raise self._silence(
                address, f"Prometheus at {address} did not answer in time"
            ) from None
        except (aiohttp.ClientError, OSError, ValueError, ResponseTooLong) as error:
            text = f"Prometheus at {address} cannot be asked: {error}"
            raise self._silence(address, text) from None
        self._silences.pop(address, None)
        return value_of(body)

    def _silence(self, address: str, text: str) -> QueryFailed:
        """Note that a server did not answer; after a few times in a row it is not asked again."""
        self._silences.setdefault(address, []).append(text)
        return QueryFailed(text)

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
        await self._session.close()


def _take_exception(done: asyncio.Future[float]) -> None:
    if not done.cancelled():
        done.exception()


def without_credentials(address: str) -> str:
    """Return an address without the user and password that may stand in it."""
    return _CREDENTIALS.sub(r"\1", address)


def _make_reader(settings: ReaderSettings) -> PrometheusReader:
    session = aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=_AT_ONCE),
        # Addresses are the authors' of ElastiServices: none may set what another's is sent.
        cookie_jar=aiohttp.DummyCookieJar(),
        trust_env=False,
    )
    return PrometheusReader(
        session,
        clock=settings.clock,
        default_address=settings.variables.get(_ADDRESS, ""),
        authorization=settings.variables.get(_AUTHORIZATION, ""),
    )


TRIGGER = TriggerType(
    name="prometheus",
    metadata=PrometheusMetadata,
    reader=_make_reader,
    variables=(_ADDRESS, _AUTHORIZATION),
    redactions={
        "serverAddress": lambda value: (
            without_credentials(value) if isinstance(value, str) else REDACTED
        ),
        "headers": lambda value: (
            dict.fromkeys(value, REDACTED) if isinstance(value, dict) else REDACTED
        ),
    },
)
