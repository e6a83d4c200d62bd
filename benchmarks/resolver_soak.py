"""Traffic of all kinds for as long as one likes, with faults, while the accounts must stay even.

usage: python -m benchmarks.resolver_soak --seconds N

HTTP/1.1, WebSocket and TCP clients come, ask, pipeline, upload, stall, vanish and misbehave; gRPC
clients make all four kinds of calls from a process of their own. Pods answer, delay, break off and
sleep: whoever comes then is held, and released or turned away. Every answer must be the right one,
nothing may be executed twice that must not be, and nothing may be held, open or grown at the end.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import sys
import time
from typing import TYPE_CHECKING

import uvloop

from benchmarks.processes import ROOT, environment
from benchmarks.resolver_soak_account import Account, left_open, rss, sockets
from benchmarks.resolver_soak_clients import Clients
from benchmarks.resolver_soak_pods import OnePod, Pods
from elasti.resolver.ports.listening_socket import Acceptor, bound_socket
from elasti.resolver.proxy.limits import Limits
from elasti.resolver.proxy.port_handler import DataPath
from elasti.resolver.proxy.upstream.interface import PortProtocol, Refusal, UpstreamAddress

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from elasti.resolver.proxy.port_handler import PortHandler

_CLIENTS = 150
# Of the seconds that were asked for these are for the beginning and the end.
_ASIDE = 8.0


class Soak:
    """The run: pods, a data path and a crowd, with one account of what happened."""

    def __init__(self, seed: int) -> None:
        self.account = Account()
        self._seed = seed
        self._random = random.Random(seed)
        self._targets: list[OnePod] = []
        self._handlers: list[PortHandler] = []
        self._ports: list[int] = []

    async def run(self, seconds: float) -> None:
        """Soak, and let everything come to rest."""
        pods = Pods(self.account, self._random)
        path = DataPath(limits=Limits(head=2.0, body_stall=2.0, linger=1.0, answer=3.0))
        path.start()
        async with contextlib.AsyncExitStack() as stack:
            for handler, protocol in ((pods.http, PortProtocol.HTTP), (pods.tcp, PortProtocol.TCP)):
                server = await asyncio.start_server(handler, "127.0.0.1", 0, backlog=4096)
                stack.callback(server.close)
                await self._listen(stack, path, server.sockets[0].getsockname()[1], protocol)
            grpc_port = await stack.enter_async_context(_grpc_pod())
            await self._listen(stack, path, grpc_port, PortProtocol.HTTP)
            await self._load(seconds)
            for target in self._targets:
                target.release()
            await self._settle()
        await path.aclose()

    async def _listen(
        self, stack: contextlib.AsyncExitStack, path: DataPath, pod: int, protocol: PortProtocol
    ) -> None:
        target = OnePod(UpstreamAddress("127.0.0.1", pod), asleep=False)
        handler = path.handler(target, protocol)
        sock = bound_socket("127.0.0.1", 0, reuse_port=False)
        # Half of the connections as after a release.
        acceptor = Acceptor(
            handler, sock, lambda: path.brief_poll if self._random.random() < 0.5 else None
        )
        stack.callback(handler.close)
        stack.callback(acceptor.close)
        self._targets.append(target)
        self._handlers.append(handler)
        self._ports.append(sock.getsockname()[1])

    async def _load(self, seconds: float) -> None:
        http, tcp, grpc = self._ports
        clients = Clients(self.account, self._random, http_port=http, tcp_port=tcp)
        end = time.monotonic() + seconds
        async with asyncio.TaskGroup() as group:
            group.create_task(self._grpc_clients(grpc, seconds))
            group.create_task(self.account.look_every(1.0, end))
            for target in self._targets:
                group.create_task(self._sleep_and_wake(target, end))
            for _ in range(_CLIENTS):
                group.create_task(clients.one(end))

    async def _grpc_clients(self, port: int, seconds: float) -> None:
        process = await _python(
            "benchmarks.resolver_soak_grpc",
            f"--port={port}", f"--seconds={seconds}", f"--seed={self._seed}",
        )  # fmt: skip
        output, _ = await process.communicate()
        if process.returncode:
            self.account.wrong.append(f"the gRPC clients ended with {process.returncode}")
            return
        told = json.loads(output.splitlines()[-1])
        self.account.seen.update(told["seen"])
        self.account.wrong += told["wrong"]

    async def _sleep_and_wake(self, target: OnePod, end: float) -> None:
        while time.monotonic() < end:
            await asyncio.sleep(self._random.uniform(0.2, 1.0))
            target.asleep = True
            await asyncio.sleep(self._random.uniform(0.1, 0.5))
            self.account.seen["held at a release"] += len(target.waiting)
            if self._random.random() < 0.1:
                waiting, target.waiting = target.waiting, {}
                for waiter in waiting:
                    waiter.give_up(Refusal.TIMEOUT)
            target.release()

    async def _settle(self) -> None:
        """Wait until nothing is under way, and say what is."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(20):
                while any(self._left(handler) for handler in self._handlers):  # noqa: ASYNC110 -- nobody tells
                    await asyncio.sleep(0.1)
        for handler in self._handlers:
            if left := self._left(handler):
                self.account.wrong.append(f"left behind on a {handler.protocol.value} port: {left}")

    def _left(self, handler: PortHandler) -> dict[str, int]:
        counted = handler.statistics
        names = ("connections", "active", "held", "tunnels", "undecided")
        return {name: count for name in names if (count := getattr(counted, name))}


@contextlib.asynccontextmanager
async def _grpc_pod() -> AsyncIterator[int]:
    process = await _python("tests.resolver.proxy.grpc_pod")
    assert process.stdout is not None
    try:
        yield int(await process.stdout.readline())
    finally:
        # It would wait for calls whose clients are gone.
        process.kill()
        await process.wait()


async def _python(module: str, *arguments: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-m", module, *arguments, cwd=ROOT, env=environment(),
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, default=1)
    arguments = parser.parse_args()
    soak, began, before = Soak(arguments.seed), time.monotonic(), sockets()
    account = soak.account
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(soak.run(max(arguments.seconds - _ASIDE, 1.0)))
    if left := left_open(before):
        account.wrong.append(f"sockets were left open: {left}")
    print(
        f"{account.requests} requests reached HTTP and TCP pods in {time.monotonic() - began:.0f} s"
    )
    print(f"{account.judge()}; {rss():.0f} MiB at the end, load {os.getloadavg()[0]:.1f}")
    for what, count in sorted(account.seen.items()):
        print(f"{count:8} {what}")
    for problem in account.wrong[:20]:
        print(f"WRONG: {problem}")
    return 1 if account.wrong else 0


if __name__ == "__main__":
    sys.exit(main())
