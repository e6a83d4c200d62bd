"""The resolver's data path as a program, for measurements: one port before one pod.

Commands come line by line: `release` lets everybody who waits go to the pod, `rss` and `stats` ask.
Each is answered with a line of JSON. It ends with its input.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import resource
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

import uvloop

from elasti.resolver.proxy.limits import Limits
from elasti.resolver.proxy.port_handler import DataPath
from elasti.resolver.proxy.statistics import TrafficStatistics
from elasti.resolver.proxy.transport import enable_keepalive
from elasti.resolver.proxy.upstream.interface import (
    HeldConnection,
    LocalAnswer,
    PortProtocol,
    Refusal,
    RequestFacts,
    UpstreamAddress,
    WaitingPage,
)

if TYPE_CHECKING:
    from elasti.resolver.proxy.port_handler import PortHandler


class OnePod:
    """A target with one pod, asleep until it is released."""

    def __init__(self, address: UpstreamAddress, *, asleep: bool) -> None:
        self.address = address
        self.asleep = asleep
        self.stepping_aside = False
        self.page: WaitingPage | None = None
        self.statistics = TrafficStatistics()
        self.waiting: dict[HeldConnection, None] = {}

    def pick(self) -> UpstreamAddress | None:
        return None if self.asleep else self.address

    def wait(self, waiter: HeldConnection, *, first: bool = False) -> Refusal | None:
        del first
        self.waiting[waiter] = None
        return None

    def leave(self, waiter: HeldConnection) -> None:
        self.waiting.pop(waiter, None)

    def refused(self, address: UpstreamAddress) -> None:
        del address

    def answer_locally(self, asked: RequestFacts) -> LocalAnswer | None:
        del asked
        return None

    def arrived(self, now: float) -> None:
        del now

    def release(self) -> None:
        self.asleep = False
        waiting, self.waiting = self.waiting, {}
        for waiter in waiting:
            waiter.admit(self.address)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--backend", required=True)
    parser.add_argument("--port", type=int, default=0)
    parser.add_argument("--asleep", action="store_true")
    arguments = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_serve(arguments))


async def _serve(arguments: argparse.Namespace) -> None:
    host, _, port = arguments.backend.rpartition(":")
    target = OnePod(UpstreamAddress(host, int(port)), asleep=arguments.asleep)
    descriptors, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    path = DataPath(limits=Limits.for_descriptors(descriptors))
    path.start()
    handler = path.handler(target, PortProtocol.HTTP)
    loop = asyncio.get_running_loop()
    server = await loop.create_server(handler, "127.0.0.1", arguments.port, backlog=4096)
    enable_keepalive(server.sockets[0])
    gc.collect()
    gc.freeze()
    _say(url=f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}")
    reader = asyncio.StreamReader()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
    while line := await reader.readline():
        _command(line.decode().strip(), target, handler)
    server.close()
    handler.close()
    await path.aclose()


def _command(command: str, target: OnePod, handler: PortHandler) -> None:
    if command == "release":
        at = time.monotonic()
        target.release()
        _say(at=at)
    elif command == "stats":
        counted = handler.statistics
        _say(held=counted.held, connections=counted.connections, requests=counted.requests)
    else:
        gc.collect()
        pages = int(Path("/proc/self/statm").read_text().split()[1])
        _say(rss=pages * resource.getpagesize())


def _say(**fields: object) -> None:
    print(json.dumps(fields), flush=True)


if __name__ == "__main__":
    main()
