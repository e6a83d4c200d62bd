"""The gRPC clients of a soak, in a process of their own: all four kinds of calls, cut short now and then.

Prints a line of JSON at the end: what was `seen`, and what was `wrong`.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import time
from collections import Counter
from typing import TYPE_CHECKING, Any

import grpc
import grpc.aio

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

_CHANNELS = 4
_PATIENCE = 30.0
# A connection of its own for each channel.
_OPTIONS = (("grpc.use_local_subchannel_pool", 1),)
_OWN_WORDS = "Internal error from Core"
_BROKEN = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.CANCELLED)


class Callers:
    """Calls until the end, over one channel after the other."""

    def __init__(self, port: int, seed: int) -> None:
        self._target = f"127.0.0.1:{port}"
        self._random = random.Random(seed)
        self.seen: Counter[str] = Counter()
        self.wrong: list[str] = []

    async def one(self, end: float) -> None:
        """Be one client after the other."""
        kinds = (self.unary, self.server, self.client, self.both, self.deadline)
        while time.monotonic() < end:
            async with grpc.aio.insecure_channel(self._target, options=_OPTIONS) as channel:
                left = self._random.randrange(1, 30)
                while left and time.monotonic() < end:
                    left -= 1
                    await self._call(self._random.choice(kinds), channel)

    async def _call(self, kind: Any, channel: grpc.aio.Channel) -> None:
        try:
            is_right = await kind(channel)
        except grpc.aio.AioRpcError as error:
            code = error.code()
            self.seen[f"gRPC {code.name}"] += 1
            # What grpc.aio says itself where a call ends while it still sends.
            is_own = code is grpc.StatusCode.INTERNAL and error.details() == _OWN_WORDS
            if code not in _BROKEN and not is_own:
                self.wrong.append(f"gRPC {kind.__name__}: {code.name} {error.details()}")
        else:
            self.seen[f"gRPC {kind.__name__}"] += 1
            if not is_right:
                self.wrong.append(f"gRPC {kind.__name__} got another answer")

    async def unary(self, channel: grpc.aio.Channel) -> bool:
        said = self._random.randbytes(self._random.randrange(1, 20_000))
        heard = await channel.unary_unary("/echo/unary")(said, timeout=_PATIENCE)
        return bool(heard == said or said == b"fail")

    async def server(self, channel: grpc.aio.Channel) -> bool:
        count = self._random.randrange(1, 50)
        call = channel.unary_stream("/echo/server")(b"%d" % count, timeout=_PATIENCE)
        return [piece async for piece in call] == [b"%d" % number for number in range(count)]

    async def client(self, channel: grpc.aio.Channel) -> bool:
        pieces = self._pieces()
        heard = await channel.stream_unary("/echo/client")(_each(pieces), timeout=_PATIENCE)
        return bool(heard == b"".join(pieces))

    async def both(self, channel: grpc.aio.Channel) -> bool:
        pieces = self._pieces()
        call = channel.stream_stream("/echo/both")(_each(pieces), timeout=_PATIENCE)
        return [piece async for piece in call] == pieces

    async def deadline(self, channel: grpc.aio.Channel) -> bool:
        """Ask for what never comes, for a moment."""
        try:
            await channel.unary_unary("/echo/never")(b"", timeout=self._random.uniform(0.01, 0.2))
        except grpc.aio.AioRpcError as error:
            if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                return True
            raise
        return False

    def _pieces(self) -> list[bytes]:
        count = self._random.randrange(1, 20)
        return [self._random.randbytes(self._random.randrange(1, 5000)) for _ in range(count)]


async def _each(pieces: list[bytes]) -> AsyncIterator[bytes]:
    for piece in pieces:
        yield piece


async def _run(port: int, seconds: float, seed: int) -> None:
    callers = Callers(port, seed)
    end = time.monotonic() + seconds
    async with asyncio.TaskGroup() as group:
        for _ in range(_CHANNELS):
            group.create_task(callers.one(end))
    print(json.dumps({"seen": callers.seen, "wrong": callers.wrong}), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    asyncio.run(_run(arguments.port, arguments.seconds, arguments.seed))


if __name__ == "__main__":
    main()
