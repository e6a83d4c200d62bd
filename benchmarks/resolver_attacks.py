"""How long a neighbour waits while clients of another Service attack the same resolver.

    .venv/bin/python -m benchmarks.resolver_attacks [--quick]

A hundred connections attack a Service that sleeps: each asks for as little as there is and leaves (`tiny`), or
sends a body that is held and leaves (`bodies`), again and again. Meanwhile a neighbour's port is asked whose it
is, which the resolver answers itself: the time of that answer is the resolver's alone, and waiting for its
only thread is all that can make it long. The goal is a 99th percentile of 50 ms. Attackers and the neighbour share
a core; the resolver has its own where there are two.

Then 10 000 connections of one client, from one address and from a hundred, take all that a resolver with few or many
descriptors has (`crowd`): most are held by one Service, 40 each by nine others. Every Service that sleeps must still
be held and woken, each by a client of its own address.
"""

from __future__ import annotations

import asyncio
import contextlib
import resource
import statistics
import sys
import time
from typing import TYPE_CHECKING

from benchmarks.processes import Cores
from benchmarks.report import Figure, Report, at_most
from benchmarks.resolver_whole import started, whole
from benchmarks.suites import Settings
from elasti.api.wire import probe_request

if TYPE_CHECKING:
    import subprocess

    from benchmarks.resolver_whole import Whole

_CONNECTIONS = 100
_BETWEEN = 0.005
_CROWD = 10_000
_FEW, _OTHERS = 40, 9
# By the number of descriptors: how many Services sleep meanwhile.
_IDLE = {256: 10, 1024: 10, 4096: 10, 20_000: 100}
_PATIENCE = 10.0
_ATTACKS = {
    "tiny": b"GET / HTTP/1.1\r\nHost: a\r\n\r\n",
    "bodies": b"POST / HTTP/1.1\r\nHost: a\r\nContent-Length: 60000\r\n\r\n" + b"x" * 60_000,
}


def run(settings: Settings) -> list[Figure]:
    """Measure the neighbour alone, and beside each attack."""
    return asyncio.run(_measure(settings))


async def _measure(settings: Settings) -> list[Figure]:
    seconds = 3.0 if settings.quick else 15.0
    async with whole(settings.cores) as running:
        victim, neighbour = await running.sleeping("victim"), await running.sleeping("neighbour")
        waits = {"none": await _ask(neighbour, seconds)}
        for attack in _ATTACKS:
            arguments = ("benchmarks.resolver_attacks", attack, str(victim))
            with started(settings.cores.serving, *arguments) as process:
                await asyncio.to_thread(_wait_for_line, process)
                waits[attack] = await _ask(neighbour, seconds)
    return [
        Figure(
            f"resolver: a neighbour's 99th percentile, attack: {attack}",
            [statistics.quantiles(found, n=100)[98]],
            "ms",
            goal=at_most(50),
            note=f"median {statistics.median(found):.1f}, {len(found)} answers",
        )
        for attack, found in waits.items()
    ] + await _measure_crowds(settings, seconds)


async def _measure_crowds(settings: Settings, seconds: float) -> list[Figure]:
    figures = []
    for descriptors, idle in _IDLE.items():
        for addresses in (1, 100):
            async with whole(settings.cores, descriptors=descriptors) as running:
                figures += await _measure_crowd(settings, running, idle, addresses, seconds)
    return figures


async def _measure_crowd(
    settings: Settings, running: Whole, idle: int, addresses: int, seconds: float
) -> list[Figure]:
    victims = [await running.sleeping(f"victim-{number}") for number in range(_OTHERS + 1)]
    sleeping = {
        f"idle-{number}": await running.sleeping(f"idle-{number}") for number in range(idle)
    }
    neighbour = await running.sleeping("neighbour")
    arguments = ("crowd", str(addresses), *map(str, victims))
    with started(settings.cores.serving, "benchmarks.resolver_attacks", *arguments) as process:
        await asyncio.to_thread(_wait_for_line, process)
        waits = await _ask(neighbour, seconds)
        woken = [name for name, port in sleeping.items() if await _wakes(running, name, port)]
    about = f"{running.descriptors} descriptors, 10 000 connections from {addresses} addresses"
    return [
        Figure(
            f"resolver: a neighbour's 99th percentile, {about}",
            [statistics.quantiles(waits, n=100)[98]],
            "ms",
            goal=at_most(50),
            note=f"median {statistics.median(waits):.1f}, {len(waits)} answers",
        ),
        Figure(
            f"resolver: Services that sleep and could not be woken, {about}",
            [idle - len(woken)],
            f"of {idle}",
            goal=at_most(0),
        ),
    ]


async def _wakes(running: Whole, name: str, port: int) -> bool:
    """Ask a Service that sleeps, from an address of its own; returns whether it was held and woken."""
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=("127.0.1.1", 0))
    writer.write(_ATTACKS["tiny"])
    answering = asyncio.create_task(reader.read(100))
    try:
        async with asyncio.timeout(_PATIENCE):
            await running.asked(name)
        return not answering.done()
    except TimeoutError:
        return False
    finally:
        answering.cancel()
        await asyncio.gather(answering, return_exceptions=True)
        writer.close()


async def _ask(port: int, seconds: float) -> list[float]:
    """Ask a port whose it is, again and again; returns milliseconds."""
    waits: list[float] = []
    end = time.monotonic() + seconds
    while (began := time.monotonic()) < end:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(probe_request("default", "neighbour"))
        answer = await reader.read()
        waits.append((time.monotonic() - began) * 1000)
        writer.close()
        if b"neighbour" not in answer:
            raise RuntimeError(f"the neighbour's port answered {answer[:100]!r}")
        await asyncio.sleep(_BETWEEN)
    return waits


def _wait_for_line(process: subprocess.Popen[bytes]) -> None:
    assert process.stdout is not None
    process.stdout.readline()


async def _attack(data: bytes, port: int) -> None:
    async with asyncio.TaskGroup() as group:
        for _ in range(_CONNECTIONS):
            group.create_task(_again_and_again(data, port))
        print("attacking", flush=True)


async def _again_and_again(data: bytes, port: int) -> None:
    while True:
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(data)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(1):
                    await writer.drain()
            writer.close()
        await asyncio.sleep(0)


async def _crowd(addresses: int, ports: list[int]) -> None:
    """Connect from so many addresses and stay: most to the first port, some with a body that is held."""
    first, *others = ports
    wanted = [first] * (_CROWD - _FEW * len(others)) + [
        port for port in others for _ in range(_FEW)
    ]
    writers = []
    for number, port in enumerate(wanted):
        address = f"127.0.0.{2 + number % addresses}"
        with contextlib.suppress(OSError, TimeoutError):
            async with asyncio.timeout(5):
                _, writer = await asyncio.open_connection(
                    "127.0.0.1", port, local_addr=(address, 0)
                )
            writer.write(_ATTACKS["bodies" if number % 2 else "tiny"])
            writers.append(writer)
    print("attacking", flush=True)
    await asyncio.sleep(3600)


def main() -> None:
    """Run this suite alone, or, with an attack's name and a port, be that attack."""
    if len(sys.argv) > 3 and sys.argv[1] == "crowd":
        soft = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, soft))
        asyncio.run(_crowd(int(sys.argv[2]), [int(port) for port in sys.argv[3:]]))
    if len(sys.argv) == 3:
        asyncio.run(_attack(_ATTACKS[sys.argv[1]], int(sys.argv[2])))
    settings = Settings(quick="--quick" in sys.argv, cores=Cores.of_this_machine())
    print(Report(run(settings)).table())


if __name__ == "__main__":
    main()
