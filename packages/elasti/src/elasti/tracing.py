"""OpenTelemetry: a span for each wake-up and each held request, sent in the background over OTLP/HTTP in JSON.

A wake-up's id is the id of its trace, and the id of its span follows from it and the Service, so that a resolver can link
to a span that an operator sends later. The queue is bounded. What does not fit, or is not taken by the collector, is
dropped and counted: no wake-up and no request ever waits for a collector. Loaded only with an endpoint.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import re
import secrets
import time
from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from elasti.authn.settings import AuthnSettings
from elasti.logger import get_logger
from kubeloop.http.client import HttpClient
from kubeloop.http.framing import FramingError
from kubeloop.metrics.text import MetricFamily

Times: TypeAlias = tuple[float, float]
"""Begin and end, in seconds since 1970."""
_MOST = 2048
_BATCH = 256
_PAUSE = 1.0
_LAST_CHANCE = 3.0
"""Seconds for what is queued when the program ends."""
_ID = re.compile(r"[0-9a-f]{32}")
_PARENT = re.compile(rb"[0-9a-f]{2}-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?")

_log = get_logger(__name__)


class Tracer:
    """The spans of one program. Cancel `run` to send what is left and end."""

    def __init__(self, settings: AuthnSettings, program: str) -> None:
        self.counts = {"sent": 0, "dropped": 0}
        self._settings = settings
        about = {"service.name": program, **settings.otel_resource}
        if settings.otel_service:
            about["service.name"] = settings.otel_service
        self._resource = {"attributes": _attributes(about)}
        self._spans: list[Mapping[str, Any]] = []
        self._more = asyncio.Event()

    def wake(self, service: str, wake_id: str, times: Times, *, failed: bool, **about: str) -> None:
        """A wake-up of what is behind `namespace/service` is over."""
        trace = wake_id if _ID.fullmatch(wake_id) else secrets.token_hex(16)
        span = {"name": "wake", "kind": 1, "traceId": trace, "spanId": _wake_span(trace, service)}
        self._add(span, times, failed=failed, service=service, **about)

    def held(
        self, service: str, wake_id: str, parent: bytes, times: Times, *, outcome: str
    ) -> None:
        """A connection or request was held, by the loop's clock.

        `parent` is its traceparent, which may ask for no span.
        """
        since_1970 = time.time() - asyncio.get_running_loop().time()
        trace, above, flags = secrets.token_hex(16), "", "01"
        if found := _PARENT.fullmatch(parent):
            trace, above, flags = (found[place].decode() for place in (1, 2, 3))
        if not int(flags, 16) & 1:
            return
        span = {"name": "hold", "kind": 2, "traceId": trace, "spanId": secrets.token_hex(8)}
        links = [{"traceId": wake_id, "spanId": _wake_span(wake_id, service)}]
        failed = outcome not in ("served", "client_gone")
        span |= {"parentSpanId": above, "links": links if _ID.fullmatch(wake_id) else []}
        start, end = (since_1970 + at for at in times)
        self._add(span, (start, end), failed=failed, service=service, outcome=outcome)

    def families(self) -> list[MetricFamily]:
        """Return its metrics."""
        about = "Spans for OpenTelemetry by outcome: sent or dropped."
        family = MetricFamily("counter", "elasti_spans_total", about, ["outcome"])
        for outcome, count in self.counts.items():
            family.add(count, outcome)
        return [family]

    async def run(self) -> None:
        """Send until cancelled, and then what is queued."""
        async with HttpClient() as http:
            try:
                while await self._more.wait():
                    await asyncio.sleep(_PAUSE)
                    await self._send(http)
            finally:
                with contextlib.suppress(TimeoutError):
                    await asyncio.wait_for(self._send(http), _LAST_CHANCE)

    def _add(self, span: dict[str, Any], times: Times, *, failed: bool, **about: str) -> None:
        if len(self._spans) >= _MOST:
            self.counts["dropped"] += 1
            return
        span["startTimeUnixNano"], span["endTimeUnixNano"] = (str(int(at * 1e9)) for at in times)
        span["attributes"] = _attributes({f"elasti.{key}": text for key, text in about.items()})
        self._spans.append(span | {"status": {"code": 2 if failed else 0}})
        self._more.set()

    async def _send(self, http: HttpClient) -> None:
        self._more.clear()
        settings, headers = self._settings, {"Content-Type": "application/json"}
        while spans := self._spans[:_BATCH]:
            scoped = [{"scope": {"name": "elasti"}, "spans": spans}]
            body = {"resourceSpans": [{"resource": self._resource, "scopeSpans": scoped}]}
            try:
                async with http.request(
                    "POST",
                    settings.traces_url,
                    timeout=settings.otlp_timeout / 1000,
                    headers={**headers, **settings.otlp_headers},
                    body=msgspec.json.encode(body),
                ) as answer:
                    taken, reason = answer.status in range(200, 300), f"status {answer.status}"
            except (OSError, FramingError, ValueError) as error:
                taken, reason = False, type(error).__name__
            # Not before: if the program ends meanwhile, they are sent again.
            del self._spans[:_BATCH]
            self.counts["sent" if taken else "dropped"] += len(spans)
            if not taken:  # without the URL and the headers, which may be secrets
                _log.warning("spans are dropped: the collector does not take them", reason=reason)


def _wake_span(trace: str, service: str) -> str:
    return hashlib.sha256(f"{trace} {service}".encode()).hexdigest()[:16]


def _attributes(values: Mapping[str, str]) -> list[dict[str, object]]:
    return [{"key": key, "value": {"stringValue": value}} for key, value in values.items()]
