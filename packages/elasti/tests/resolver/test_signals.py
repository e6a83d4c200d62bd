"""What signals do to resolvers under load: a drain loses no request, a kill only its own connections."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from pathlib import Path

import pytest
from tests.resolver.installation import NOT_YET, Running, installation
from tests.resolver.support import free_port
from tests.resolver.traffic import Connection, CountingPod, Traffic

from tests.waiting import eventually

pytestmark = pytest.mark.slow
HELD = 500
FIRST, SECOND = "127.0.0.1", "127.0.0.2"


def as_pod(address: str) -> dict[str, str]:
    return {"POD_IP": address, "ELASTI_ENGAGE_SETTLE": "1s"}


async def held_crowd(address: str, port: int, count: int) -> list[asyncio.Task[None]]:
    """Connections that ask for something and wait for it."""

    async def ask(number: int) -> None:
        connection = await Connection.to((address, port))
        try:
            await connection.ask("POST" if number % 2 else "GET", f"/held/{number}")
        finally:
            connection.close()

    tasks = []
    for number in range(count):
        tasks.append(asyncio.create_task(ask(number)))
        if number % 50 == 0:
            await asyncio.sleep(0)
    return tasks


async def is_not_ready(running: Running) -> bool:
    return not await running.is_ready()


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_resolver_stopped_under_load_loses_nothing(tmp_path, workers):
    hot, cold = free_port(), free_port()
    pod, late = CountingPod(), CountingPod()
    listed = [FIRST, SECOND]
    traffic = Traffic(lambda: (listed[traffic.asked % len(listed)], hot), name="hot")
    flags = ("--workers", str(workers))
    async with contextlib.AsyncExitStack() as stack:
        made = await stack.enter_async_context(installation(tmp_path))
        await stack.enter_async_context(pod.answering())
        await made.service("hot", hot)
        await made.service("cold", cold)
        await made.endpoint("hot", pod.port)
        for service, port in (("hot", hot), ("cold", cold)):
            await made.publish(service, {"http": port}, FIRST, SECOND)
        leaving = await stack.enter_async_context(
            made.resolver(*flags, host=FIRST, environment=as_pod(FIRST))
        )
        await stack.enter_async_context(made.resolver(host=SECOND, environment=as_pod(SECOND)))
        async with traffic.flowing():
            crowd = await held_crowd(FIRST, cold, HELD)
            await leaving.holds(HELD, "cold")
            await traffic.until(200)
            leaving.process.send_signal(signal.SIGTERM)
            await eventually(lambda: is_not_ready(leaving), ignore=NOT_YET)
            # What is still sent to it is served: nodes learn later than the slice.
            await traffic.until(100)
            for service, port in (("hot", hot), ("cold", cold)):
                await made.publish(service, {"http": port}, SECOND)
            await traffic.until(50)
            listed[:] = [SECOND]
            await stack.enter_async_context(late.answering())
            await made.endpoint("cold", late.port)
            async with asyncio.timeout(50):
                await asyncio.gather(*crowd)
                assert await leaving.process.wait() == 0
            await traffic.until(50)
        assert traffic.lost == []
        assert traffic.asked > 350
        assert set(pod.executed.values()) == set(late.executed.values()) == {1}
        assert len(late.executed) == HELD


def workers_of(running: Running) -> list[int]:
    pid = running.process.pid
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [int(child) for child in children]


def is_gone(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        # Its sockets are open until its last thread has ended, and the first may be a zombie before.
        return state in "ZX" and len(list(Path(f"/proc/{pid}/task").iterdir())) == 1
    except FileNotFoundError:
        return True


async def test_a_worker_that_is_killed_takes_only_its_own_connections_and_is_replaced(tmp_path):
    port, pod = free_port(), CountingPod()
    async with contextlib.AsyncExitStack() as stack:
        made = await stack.enter_async_context(installation(tmp_path))
        await stack.enter_async_context(pod.answering())
        await made.service("web", port)
        await made.endpoint("web", pod.port)
        await made.publish("web", {"http": port}, FIRST)
        running = await stack.enter_async_context(made.resolver("--workers", "2"))
        before = workers_of(running)
        assert len(before) == 2
        kept = [await Connection.to((FIRST, port)) for _ in range(40)]
        for number, connection in enumerate(kept):
            await connection.ask("GET", f"/before/{number}")
        os.kill(before[0], signal.SIGKILL)
        await eventually(lambda: asyncio.to_thread(is_gone, before[0]), ignore=NOT_YET)
        # New ones all succeed, from the first on, while one worker is missing and after it is back.
        traffic = Traffic(lambda: (FIRST, port), name="after")
        async with traffic.flowing():
            await traffic.until(100)
            served = 0
            for number, connection in enumerate(kept):
                with contextlib.suppress(OSError, EOFError):
                    await connection.ask("GET", f"/kept/{number}")
                    served += 1
                connection.close()
            assert 0 < served < 40

            async def is_replaced() -> bool:
                return len(workers_of(running)) == 2 and before[0] not in workers_of(running)

            await eventually(is_replaced, ignore=NOT_YET)
            await eventually(running.is_ready, ignore=NOT_YET)
            await traffic.until(100)
        assert traffic.lost == []
        assert before[1] in workers_of(running)


async def test_a_resolver_that_is_killed_takes_only_its_own_connections(tmp_path):
    port, pod = free_port(), CountingPod()
    listed = [FIRST, SECOND]
    async with contextlib.AsyncExitStack() as stack:
        made = await stack.enter_async_context(installation(tmp_path))
        await stack.enter_async_context(pod.answering())
        await made.service("web", port)
        await made.endpoint("web", pod.port)
        await made.publish("web", {"http": port}, FIRST, SECOND)
        killed = await stack.enter_async_context(made.resolver(host=FIRST))
        await stack.enter_async_context(made.resolver(host=SECOND))
        there = [await Connection.to((SECOND, port)) for _ in range(20)]
        traffic = Traffic(lambda: (listed[traffic.asked % len(listed)], port))
        async with traffic.flowing():
            await traffic.until(100)
            assert traffic.lost == []
            killed.process.kill()
            await killed.process.wait()
            # Nodes send to it until its endpoint is gone.
            await traffic.until(20)
            listed[:] = [SECOND]
            await traffic.until(100)
            for number, connection in enumerate(there):
                await connection.ask("POST", f"/there/{number}")
                connection.close()
        assert {address for (address, _), _ in traffic.lost} == {FIRST}, traffic.lost
        assert all(count == 1 for path, count in pod.executed.items())


async def test_workers_do_not_outlive_their_parent(tmp_path):
    async with installation(tmp_path) as made:
        await made.service("web", free_port())
        async with made.resolver("--workers", "2") as running:
            workers = workers_of(running)
            running.process.kill()
            await running.process.wait()

            async def are_gone() -> bool:
                return all(map(is_gone, workers))

            await eventually(are_gone, ignore=NOT_YET)
