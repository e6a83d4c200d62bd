"""The prober's schedule and its connections.

Open loop: requests are due at fixed moments, whatever became of earlier ones; one that is late is sent
all the same, and its lateness is recorded. Nothing is ever sent again.

Kept connections are taken in turn, the one that rested longest first, so that each is used often and
none meets a server that just grew tired of it.
"""

from __future__ import annotations

import asyncio
import errno
import time
from collections import deque

from tests.e2e.prober.connection import Connection
from tests.e2e.prober.contract import BODY_SIZES, body_of
from tests.e2e.prober.plan import Fault, Plan, Record

_SWEEP = 0.5
_OWN_LIMITS = (errno.EMFILE, errno.ENFILE, errno.ENOBUFS, errno.ENOMEM, errno.EADDRNOTAVAIL)


class Sender:
    """Sends by a plan until told to stop; `records` grow in the order of the answers."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._loop = asyncio.get_running_loop()
        self._number = 0
        self._idle: list[deque[Connection]] = [deque() for _ in plan.targets]
        self._open: dict[Connection, Record | None] = {}
        self._dialling: set[asyncio.Task[None]] = set()
        self._due = 0.0
        self._rate = 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._settled = asyncio.Event()
        self._stopped = False
        self._sweep()
        self.all_sent = asyncio.Event()
        self.records: list[Record] = []

    @property
    def sent(self) -> int:
        """How many requests were begun."""
        return self._number

    @property
    def outstanding(self) -> int:
        """How many have no outcome yet."""
        return self._number - len(self.records)

    def set_rate(self, rate: float) -> None:
        """Send so many a second from now on."""
        if self._timer is not None:
            self._timer.cancel()
        self._rate, self._due = rate, time.monotonic()
        if rate:
            self._tick()

    def abandon(self) -> None:
        """Send no more, and give up on every request that has no outcome yet."""
        self._stopped = True
        self.set_rate(0)
        for task in self._dialling:
            task.cancel()
        for connection, record in list(self._open.items()):
            if record is not None:
                connection.give_up(time.monotonic())

    async def finish(self) -> None:
        """Send no more, and wait for every outcome."""
        self.set_rate(0)
        self._stopped = True
        while self.outstanding:
            self._settled.clear()
            await self._settled.wait()
        self._sweeper.cancel()
        for connection in list(self._open):
            connection.close()

    def _tick(self) -> None:
        now = time.monotonic()
        while self._due <= now and not self._is_over():
            self._send(self._due, now)
            self._due += 1 / self._rate
        if not self._is_over():
            self._timer = self._loop.call_later(max(self._due - now, 0), self._tick)

    def _is_over(self) -> bool:
        return self._stopped or (self._plan.limit is not None and self._number >= self._plan.limit)

    def _send(self, due: float, now: float) -> None:
        number, self._number = self._number, self._number + 1
        target = number % len(self._plan.targets)
        turn = number // len(self._plan.targets)
        reused = self._plan.reuse and turn % 2 == 0
        size = BODY_SIZES[(turn // 2) % len(BODY_SIZES)]
        record = Record(
            id=f"{self._plan.run}-{number}",
            method="POST" if size else "GET",
            target=target,
            reused=False,
            due=due,
            sent=now,
        )
        idle = self._idle[target]
        if reused and idle:
            record.reused = True
            self._ask(idle.popleft(), record, size)
        else:
            task = self._loop.create_task(self._dial(record, size))
            self._dialling.add(task)
            task.add_done_callback(self._dialled)

    async def _dial(self, record: Record, size: int) -> None:
        host, port = self._plan.targets[record.target]
        try:
            async with asyncio.timeout(self._plan.timeout):
                _, connection = await self._loop.create_connection(
                    lambda: Connection(self._lost), host, port
                )
        except asyncio.CancelledError:
            self._failed(record, Fault.TIMEOUT, "while connecting: abandoned")
            raise
        except ConnectionRefusedError as error:
            self._failed(record, Fault.REFUSED, str(error))
        except TimeoutError as error:
            self._failed(record, Fault.TIMEOUT, f"while connecting: {error}")
        except OSError as error:
            fault = Fault.OWN if error.errno in _OWN_LIMITS else Fault.RESET
            self._failed(record, fault, f"while connecting: {error}")
        else:
            if connection.transport is None:
                self._failed(record, Fault.RESET, "closed at once")
            else:
                self._ask(connection, record, size)

    def _ask(self, connection: Connection, record: Record, size: int) -> None:
        host, port = self._plan.targets[record.target]
        body = body_of(record.id, size)
        length = f"Content-Length: {size}\r\n" if size else ""
        name = self._plan.host or f"{host}:{port}"
        head = f"{record.method} /{record.id} HTTP/1.1\r\nHost: {name}\r\n{length}\r\n"
        self._open[connection] = record
        try:
            connection.ask(record, head.encode(), body, self._done)
        except RuntimeError as error:
            # Reset by the other side, and not yet told of it: an outcome like any other.
            connection.break_off(time.monotonic(), str(error))

    def _dialled(self, task: asyncio.Task[None]) -> None:
        self._dialling.discard(task)
        if self._number == self._plan.limit and not self._dialling:
            self.all_sent.set()

    def _failed(self, record: Record, fault: Fault, detail: str) -> None:
        record.answered, record.fault, record.detail = time.monotonic(), fault, detail
        self._note(record)

    def _done(self, connection: Connection, record: Record, keep: bool) -> None:
        if connection in self._open:
            self._open[connection] = None
        self._note(record)
        idle = self._idle[record.target]
        if keep and len(idle) < self._plan.idle and self._plan.reuse and not self._stopped:
            idle.append(connection)
        else:
            connection.close()

    def _note(self, record: Record) -> None:
        self.records.append(record)
        if self._stopped:
            self._settled.set()

    def _lost(self, connection: Connection) -> None:
        self._open.pop(connection, None)
        for idle in self._idle:
            if connection in idle:
                idle.remove(connection)

    def _sweep(self) -> None:
        """Give up on what takes too long."""
        now = time.monotonic()
        for connection, record in list(self._open.items()):
            if record is not None and now - record.sent > self._plan.timeout:
                connection.give_up(now)
        self._sweeper = self._loop.call_later(_SWEEP, self._sweep)
