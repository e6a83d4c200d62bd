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
import urllib.parse
from typing import TYPE_CHECKING, Any

import aiohttp
import msgspec

from elasti.api.triggers import without_credentials
from elasti.operator.idleness.decide import TriggerReading
from elasti.operator.idleness.triggers.responses import ResponseTooLong, whole_body

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elasti.api.triggers import PrometheusMetadata
    from kubeloop.aio.clock import Clock

_TIMEOUT = 5.0
_MAX_BYTES = 1 << 20
_MAX_SILENCES = 3


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


class QueryRound:
    """The queries of one round of polling: identical ones are sent once.

    A server that has not answered several times in a row is given up for the rest of the round: with
    thousands of triggers, waiting for each in turn would keep everyone else's from being read.
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

    async def read(self, metadata: PrometheusMetadata, cooldown: float) -> TriggerReading:
        """Return what a trigger says now."""
        address = metadata.server_address or self._default_address
        if not address:
            return TriggerReading(
                error="metadata.serverAddress is missing, and the operator has no default"
                " (PROMETHEUS_TRIGGER_SERVER_ADDRESS)"
            )
        try:
            headers = self._headers(address, metadata.headers)
        except ValueError:
            return TriggerReading(
                error="metadata.serverAddress is no URL; write it like http://host:9090"
            )
        address = without_credentials(address)
        uptime = self._ask(address, uptime_query(metadata.uptime_filter, cooldown), headers)
        query = self._ask(address, metadata.query, headers)
        try:
            # Shared: one asker that is cancelled must not take the answer from the others.
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

        Whoever may write a trigger may name any server. Where the operator has no address of its
        own, its credential goes to all of them, as KubeElasti's does.
        """
        foreign = self._default_address and _origin(address) != _origin(self._default_address)
        return "" if foreign else self._authorization

    def _ask(self, address: str, query: str, headers: Mapping[str, str]) -> asyncio.Future[float]:
        """Send a query, or take part in the one that was sent."""
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

    async def close(self) -> None:
        """End what is still asked."""
        pending = [asked for asked in self._asked.values() if not asked.done()]
        for asked in pending:
            asked.cancel()
        await asyncio.gather(*pending, return_exceptions=True)


def _take_exception(done: asyncio.Future[float]) -> None:
    if not done.cancelled():
        done.exception()
