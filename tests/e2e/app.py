"""The app behind the Services: answers, tells who answered, and writes down what it executed.

    POD_IP=127.0.0.1 POD_NAME=web python -m tests.e2e.app

PORT (8080), START_SECONDS (1): how long it takes to start; START_WHEN: a file, before which it does
not start at all. LINGER_SECONDS (5): how long it serves on
after SIGTERM, without being ready; 0 ends it at once, as an app does that does not handle the signal.
EXECUTED: a directory, where each process appends the ids of the requests that it executed to a file.
`/healthz` and `/metrics` are not use; `always_idle` is a metric that never shows any.
"""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from pathlib import Path

from tests.e2e.prober.contract import answer_of

_LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
_FORWARDED = re.compile(rb"(?i)\r\nforwarded:")


class App:
    """What all connections share."""

    def __init__(self, name: str, executed: str) -> None:
        self.name = name.encode()
        self.leaving = False
        self._used = 0
        path = Path(executed or "/dev", f"{name}.{os.getpid()}" if executed else "null")
        self._log = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)

    def answer(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Return the status and the body."""
        if path == "healthz":
            return (503, b"leaving\n") if self.leaving else (200, b"ok\n")
        if path == "metrics":
            lines = f"http_requests_total {self._used}\nalways_idle 0\n"
            return 200, lines.encode()
        self._used += 1
        os.write(self._log, f"{time.monotonic():.6f} {path}\n".encode())
        return 200, answer_of(path, body)


class Conversation(asyncio.Protocol):
    """One connection."""

    def __init__(self, app: App) -> None:
        self._app = app
        self._buffer = b""
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        while (end := self._buffer.find(b"\r\n\r\n") + 4) >= 4:
            head = self._buffer[:end]
            length = _LENGTH.search(head)
            whole = end + (int(length[1]) if length else 0)
            if len(self._buffer) < whole:
                return
            body, self._buffer = self._buffer[end:whole], self._buffer[whole:]
            self._answer(head, body)

    def _answer(self, head: bytes, body: bytes) -> None:
        assert self._transport is not None
        path = head.split(b" ", 2)[1].lstrip(b"/").decode()
        status, content = self._app.answer(path, body)
        words = [b"HTTP/1.1 %d Status" % status, b"Content-Length: %d" % len(content)]
        words.append(b"X-Pod: " + self._app.name)
        if _FORWARDED.search(head):
            words.append(b"X-Via: resolver")
        if self._app.leaving:
            words.append(b"Connection: close")
        self._transport.write(b"\r\n".join((*words, b"", content)))
        if self._app.leaving:
            self._transport.close()


async def main() -> None:
    linger = float(os.environ.get("LINGER_SECONDS", "5"))
    app = App(os.environ["POD_NAME"], os.environ.get("EXECUTED", ""))
    stop = asyncio.Event()
    loop = asyncio.get_running_loop()
    if linger:
        loop.add_signal_handler(signal.SIGTERM, stop.set)
    else:
        signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    await asyncio.sleep(float(os.environ.get("START_SECONDS", "1")))
    if when := os.environ.get("START_WHEN"):
        while not Path(when).exists():  # noqa: ASYNC110, ASYNC240 -- a file tells nobody
            await asyncio.sleep(0.05)
    host, port = os.environ["POD_IP"], int(os.environ.get("PORT", "8080"))
    server = await loop.create_server(lambda: Conversation(app), host, port, backlog=4096)
    print(f"{time.time():.4f} listening", flush=True)
    await stop.wait()
    app.leaving = True
    await asyncio.sleep(linger)
    server.close()


if __name__ == "__main__":
    asyncio.run(main())
