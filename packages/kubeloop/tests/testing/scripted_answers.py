"""Ready-made answers for the scripted server.

An answer is any async callable that takes an `Exchange`. These are the ones that tests need again
and again: a whole reply, a refusal as a `Status`, raw bytes, a reset, silence, and a watch that
the test feeds as it goes.
"""

from __future__ import annotations

import asyncio
import json
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from tests.testing.scripted_exchange import Exchange, RecordedRequest


class Answer(Protocol):
    """What the server does with one request."""

    async def __call__(self, exchange: Exchange, /) -> None:
        """Answer the exchange; return when done with it."""


def reply(
    obj: object = None,
    *,
    status: int = 200,
    body: bytes | None = None,
    headers: Mapping[str, str] | None = None,
    content_type: str = "application/json",
) -> Answer:
    """A whole answer: `obj` as JSON, or `body` as it is."""
    data = json.dumps(obj).encode() if body is None else body

    async def answer(exchange: Exchange) -> None:
        await exchange.respond(status, body=data, headers=headers, content_type=content_type)

    return answer


def refuse(
    code: int,
    reason: str,
    message: str = "",
    *,
    headers: Mapping[str, str] | None = None,
    details: Mapping[str, object] | None = None,
) -> Answer:
    """A refusal in the API server's own form."""
    obj = status_object(code, reason, message, details=details)
    return reply(obj, status=code, headers=headers)


def status_object(
    code: int, reason: str, message: str = "", *, details: Mapping[str, object] | None = None
) -> dict[str, object]:
    """Return a `Status` as an API server writes it, for refusals and for ERROR events."""
    obj: dict[str, object] = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message or f"scripted {reason}",
        "reason": reason,
        "code": code,
    }
    return obj | ({"details": dict(details)} if details else {})


def raw(data: bytes) -> Answer:
    """Bytes instead of an answer; the connection is closed after them."""

    async def answer(exchange: Exchange) -> None:
        await exchange.raw(data)
        await exchange.close()

    return answer


async def reset(exchange: Exchange) -> None:
    """A connection reset instead of an answer."""
    exchange.reset()


async def drop(exchange: Exchange) -> None:
    """An ordinary close instead of an answer."""
    await exchange.close()


async def silence(exchange: Exchange) -> None:
    """No answer at all, until the client gives up."""
    await exchange.client_left()


class WatchScript:
    """An open watch in the test's hand. It is an answer: give it to `ScriptedServer.expect`.

    The head is sent when the request arrives; every method that sends waits for that. `end` closes
    the body properly, `drop` closes the connection without, `reset` resets it.
    """

    def __init__(self, *, status: int = 200, headers: Mapping[str, str] | None = None) -> None:
        self._status = status
        self._headers = headers
        self._exchange: Exchange | None = None
        self._opened = asyncio.Event()
        self._over = asyncio.Event()

    async def __call__(self, exchange: Exchange, /) -> None:
        """Serve the watch until the script ends it or the client leaves."""
        await exchange.start(self._status, headers=self._headers)
        self._exchange = exchange
        self._opened.set()
        over = asyncio.ensure_future(self._over.wait())
        left = asyncio.ensure_future(exchange.client_left())
        try:
            await asyncio.wait((over, left), return_when=asyncio.FIRST_COMPLETED)
        finally:
            over.cancel()
            left.cancel()

    async def opened(self) -> RecordedRequest:
        """Wait for the watch request and return it."""
        return (await self._live()).request

    async def event(self, kind: str, obj: object) -> None:
        """Send one event line in a chunk of its own, as an API server does."""
        await self.send(event_line(kind, obj))

    async def send(self, data: bytes) -> None:
        """Send bytes as one chunk; they need not be whole lines."""
        await (await self._live()).chunk(data)

    async def send_split(self, data: bytes, sizes: Iterable[int]) -> None:
        """Send bytes as chunks of the given sizes; what is left over makes the last one."""
        start = 0
        for size in sizes:
            await self.send(data[start : start + size])
            start += size
        await self.send(data[start:])

    async def raw(self, data: bytes) -> None:
        """Send bytes outside of the chunk framing."""
        await (await self._live()).raw(data)

    async def end(self) -> None:
        """End the body properly."""
        await (await self._live()).finish()
        self._over.set()

    async def drop(self) -> None:
        """Close the connection in the middle of the body."""
        await (await self._live()).close()
        self._over.set()

    async def reset(self) -> None:
        """Reset the connection."""
        (await self._live()).reset()
        self._over.set()

    async def client_left(self) -> None:
        """Wait until the client has closed the connection."""
        await (await self._live()).client_left()

    async def _live(self) -> Exchange:
        await self._opened.wait()
        assert self._exchange is not None
        return self._exchange


def event_line(kind: str, obj: object) -> bytes:
    """Return one line of a watch."""
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"
