"""Notifications: a CloudEvent for each target that fell asleep, woke up or is in trouble, to one URL.

What to send follows from the status that was written, so an event has the same id whichever leader sends it. Sending has
a task and a queue of its own: a receiver that hangs delays other notifications, and nothing else.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from elasti.api.conditions import TROUBLES
from elasti.api.names import API_VERSION, GROUP, PLURAL
from elasti.api.states import State, phase_of
from elasti.api.types import ElastiService, ElastiServiceStatus
from elasti.logger import get_logger
from elasti.operator.metrics import OperatorMetrics
from elasti.operator.model.state import ServiceState
from elasti.operator.settings import OperatorSettings
from kubeloop.aio.backoff import Backoff
from kubeloop.aio.clock import Clock
from kubeloop.http.client import HttpClient
from kubeloop.http.framing import FramingError
from kubeloop.objects.times import unix_seconds

_log = get_logger(__name__)
SIGNATURE = "Elasti-Signature"
ASLEEP, AWAKE = "asleep", "awake"
_TYPE = ".".join(reversed(GROUP.split(".")))
_RECENT = 60.0
"""Seconds for which a change is news: a leader that finds an older one did not see it happen."""
_MOST = 1000
_ATTEMPTS = 5
_TIMEOUT = 10.0
_BACKOFF = Backoff(duration=1.0, factor=3.0, jitter=0.2, cap=30.0)
_RETRIED = frozenset((408, 429))


class Change(NamedTuple):
    """Something that happened; `since` names it for good, `at` is when it was known, in seconds since 1970."""

    kind: str
    since: str
    at: float
    data: Mapping[str, Any]


def changes(status: ElastiServiceStatus) -> dict[str, Change]:
    """Return what holds according to a status, by a key: one of asleep and awake, and each trouble."""
    found: dict[str, Change] = {}
    wake = status.last_wake
    if status.phase == phase_of(State.PROXY) and status.asleep_since is not None:
        since = status.asleep_since
        found[ASLEEP] = Change(ASLEEP, since, unix_seconds(since), {})
    elif status.phase == phase_of(State.SERVE) and wake is not None and wake.seconds is not None:
        data = {"cause": wake.cause, "seconds": wake.seconds}
        found[AWAKE] = Change(AWAKE, wake.time, unix_seconds(wake.time) + wake.seconds, data)
    for one in status.conditions:
        if (one.type, one.status) in TROUBLES:
            data = {"condition": one.type, "reason": one.reason, "message": one.message}
            since = one.last_transition_time
            found[one.type] = Change("trouble", since, unix_seconds(since), data)
    return found


def cloud_event(es: ElastiService, change: Change) -> bytes:
    """Return a change as a CloudEvent in structured JSON."""
    meta, ref = es.metadata, es.spec.scale_target_ref
    known = {"namespace": meta.namespace, "name": meta.name, "service": es.spec.service}
    what = change.data.get("condition", change.kind)
    return msgspec.json.encode(
        {
            "specversion": "1.0",
            "id": f"{meta.uid}/{what}/{change.since}",
            "source": f"/apis/{API_VERSION}/namespaces/{meta.namespace}/{PLURAL}/{meta.name}",
            "type": f"{_TYPE}.{change.kind}",
            "subject": f"{meta.namespace}/{meta.name}",
            "time": change.since,
            "datacontenttype": "application/json",
            "data": {**known, "target": f"{ref.kind}/{ref.name}", **change.data},
        }
    )


class Notifier:
    """Sends. One for a tenure of the leader."""

    def __init__(self, settings: OperatorSettings, metrics: OperatorMetrics, clock: Clock) -> None:
        self._settings = settings
        self._metrics = metrics
        self._clock = clock
        self._queue: asyncio.Queue[bytes] = asyncio.Queue()

    def look(self, es: ElastiService, status: ElastiServiceStatus, state: ServiceState) -> None:
        """Queue what a written status has of news. Never waits: the oldest one makes room."""
        found, now = changes(status), self._clock.now().timestamp()
        for key, change in found.items():
            if key not in state.notified and now - change.at < _RECENT:
                self._queue.put_nowait(cloud_event(es, change))
        # Between asleep and awake the last of the two stays: an attempt that ends early is not a change.
        kept = state.notified & {ASLEEP, AWAKE} if not {ASLEEP, AWAKE} & found.keys() else set()
        state.notified = frozenset({*found, *kept})
        while self._queue.qsize() > _MOST:
            self._queue.get_nowait()
            self._metrics.notified("dropped")

    async def run(self) -> None:
        """Send until cancelled."""
        async with HttpClient() as http:
            while True:
                event = await self._queue.get()
                sent = await self._send(http, event)
                self._metrics.notified("sent" if sent else "failed")

    async def _send(self, http: HttpClient, event: bytes) -> bool:
        """Send one event, a few times if it must be; False if the receiver did not take it."""
        delays, reason = _BACKOFF.start(), ""
        for attempt in range(_ATTEMPTS):
            if attempt:
                await asyncio.sleep(delays.next_delay())
            try:
                async with http.request(
                    "POST",
                    self._settings.notify_url,
                    timeout=_TIMEOUT,
                    headers={"Content-Type": "application/cloudevents+json"} | self._signed(event),
                    body=event,
                ) as answer:
                    if answer.status in range(200, 300):
                        return True
                    reason = f"status {answer.status}"
                    if answer.status < 500 and answer.status not in _RETRIED:
                        break
            except (OSError, FramingError, ValueError) as error:
                reason = type(error).__name__
        # Without the URL, which may be a secret itself.
        _log.warning("notification failed", reason=reason, attempts=attempt + 1)
        return False

    def _signed(self, event: bytes) -> dict[str, str]:
        """Return the header with the signature; a file is read each time, so that a new key counts at once."""
        key, path = self._settings.notify_key.encode(), self._settings.notify_key_file
        if path and not (key := Path(path).read_bytes().strip()):
            raise ValueError("the file of the key is empty")
        return (
            {SIGNATURE: f"sha256={hmac.new(key, event, hashlib.sha256).hexdigest()}"} if key else {}
        )
