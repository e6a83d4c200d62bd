"""One connection of the prober: a request at a time, and exactly what became of it.

It reads just enough HTTP for what it may meet: heads with a Content-Length. Everything else, an early
end included, is a fault of the answer, with its bytes as detail.
"""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import cast

from tests.e2e.prober.contract import answer_of
from tests.e2e.prober.plan import Fault, Record

_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_CLOSE = re.compile(rb"(?i)\r\nconnection: *close")
_POD = re.compile(rb"(?i)\r\nx-pod: *([^\r]+)")
_VIA = re.compile(rb"(?i)\r\nx-via: *resolver")
_HELD = re.compile(rb"elasti-hold;dur=([0-9.]+)")
_SHOWN = 300


class Connection(asyncio.Protocol):
    """`lost` hears that it is gone."""

    __slots__ = ("_body", "_buffer", "_done", "_lost", "_record", "transport")

    def __init__(self, lost: Callable[[Connection], None]) -> None:
        self.transport: asyncio.Transport | None = None
        self._lost = lost
        self._buffer = b""
        self._record: Record | None = None
        self._body = b""
        self._done: Callable[[Connection, Record, bool], None] | None = None

    @property
    def is_busy(self) -> bool:
        """Whether an answer is awaited."""
        return self._record is not None

    def ask(
        self,
        record: Record,
        wire: bytes,
        body: bytes,
        done: Callable[[Connection, Record, bool], None],
    ) -> None:
        """Send a request; `done` hears the outcome and whether the connection may be kept."""
        assert self.transport is not None
        self._record, self._body, self._done = record, body, done
        self.transport.write(wire + body)

    def give_up(self, now: float) -> None:
        """The answer took too long."""
        self._finish(now, Fault.TIMEOUT, repr(self._buffer[:_SHOWN]))

    def break_off(self, now: float, why: str) -> None:
        """The request could not even be sent: the connection had ended."""
        self._finish(now, Fault.RESET, why)

    # asyncio.Protocol

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast("asyncio.Transport", transport)

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        record, buffer = self._record, self._buffer
        end = buffer.find(b"\r\n\r\n") + 4
        if record is None or end < 4:
            return
        head, length = buffer[:end], _LENGTH.search(buffer, 0, end)
        if length is None:
            self._finish(time.monotonic(), Fault.BODY, f"no Content-Length: {head[:_SHOWN]!r}")
        elif len(buffer) >= end + int(length[1]):
            self._answered(record, head, buffer[end : end + int(length[1])])

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._lost(self)
        if self._record is not None:
            got = f" after {self._buffer[:_SHOWN]!r}" if self._buffer else ""
            self._finish(time.monotonic(), Fault.RESET, f"{exc or 'closed'}{got}")

    def _answered(self, record: Record, head: bytes, body: bytes) -> None:
        record.status = int(head[9:12])
        if pod := _POD.search(head):
            record.pod = pod[1].decode()
        if held := _HELD.search(head):
            record.held = float(held[1]) / 1000
        record.via_resolver = _VIA.search(head) is not None or record.held is not None
        keep = _CLOSE.search(head) is None
        self._buffer = b""
        if record.status != 200:
            self._finish(
                time.monotonic(), Fault.STATUS, f"{record.status} {body[:_SHOWN]!r}", keep=keep
            )
        elif body != answer_of(record.id, self._body):
            self._finish(time.monotonic(), Fault.BODY, repr(body[:_SHOWN]))
        else:
            self._finish(time.monotonic(), Fault.NONE, "", keep=keep)

    def _finish(self, now: float, fault: Fault, detail: str, *, keep: bool = False) -> None:
        record, done = self._record, self._done
        assert record is not None
        assert done is not None
        self._record = self._done = None
        self._body = b""
        record.answered, record.fault, record.detail = now, fault, detail
        keep = keep and self.transport is not None
        if not keep:
            self.close()
        done(self, record, keep)

    def close(self) -> None:
        """End it, without a word to anybody."""
        if self.transport is not None:
            self.transport.abort() if self.is_busy else self.transport.close()
