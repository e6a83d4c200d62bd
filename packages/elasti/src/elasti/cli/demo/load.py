"""Real requests to a Service's own address, each accounted for."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import re

import aiohttp

_HELD = re.compile(r"elasti-hold;dur=([0-9.]+)")
_PATIENCE = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class RequestResult:
    """The outcome of one request; times in seconds, `held` is 0 if a pod answered at once."""

    what: str
    ok: bool
    words: str
    took: float
    held: float = 0.0


def _words(error: Exception) -> str:
    if isinstance(error, TimeoutError):
        return f"no answer in {_PATIENCE:.0f} s"
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    return (isinstance(cause, OSError) and cause.strerror) or str(cause) or "connection lost"


class LoadGenerator:
    """The clients; `sent` and `answered` are for the live board."""

    def __init__(self) -> None:
        self.sent = 0
        self.answered = 0

    async def http(self, url: str, count: int) -> list[RequestResult]:
        """Send requests at the same moment, each over a connection of its own."""
        timeout = aiohttp.ClientTimeout(total=_PATIENCE)
        connector = aiohttp.TCPConnector(limit=0, force_close=True)
        async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
            return await asyncio.gather(
                *(self._get(session, f"{url}/{number}") for number in range(1, count + 1))
            )

    async def tcp(self, host: str, port: int) -> RequestResult:
        """Connect, read the first line, and check the echo of another."""
        began, what = self._send(), f"TCP {host}:{port}"
        try:
            async with asyncio.timeout(_PATIENCE):
                reader, writer = await asyncio.open_connection(host, port)
                with contextlib.closing(writer):
                    greeting = await reader.readline()
                    took = _now() - began
                    writer.write(b"are you there?\n")
                    said = await reader.readline()
                await writer.wait_closed()
        except (OSError, TimeoutError) as error:
            return RequestResult(what, ok=False, words=_words(error), took=_now() - began)
        self.answered += 1
        good = greeting.startswith(b"hello") and said == b"are you there?\n"
        # A pod that runs greets at once: whatever it took, it was held.
        return RequestResult(what, good, "hello, and an echo", took, took)

    async def _get(self, session: aiohttp.ClientSession, url: str) -> RequestResult:
        began, what = self._send(), f"GET {url}"
        try:
            async with session.get(url) as response:
                await response.read()
                held = _HELD.search(response.headers.get("Server-Timing", ""))
        except (aiohttp.ClientError, TimeoutError) as error:
            return RequestResult(what, ok=False, words=_words(error), took=_now() - began)
        self.answered += 1
        seconds = float(held[1]) / 1000 if held else 0.0
        ok, words = response.status == 200, str(response.status)
        return RequestResult(what, ok, words, _now() - began, seconds)

    def _send(self) -> float:
        self.sent += 1
        return _now()


def _now() -> float:
    return asyncio.get_running_loop().time()
