from __future__ import annotations

import asyncio
import datetime as dt
import textwrap
import time

import pytest

from kubeloop.testing.virtual_time import DeadlockError, VirtualClock, VirtualTimeLoop

pytest_plugins = ["pytester"]


@pytest.mark.virtual_time
async def test_time_starts_at_zero_and_jumps_to_the_next_timer() -> None:
    loop = asyncio.get_running_loop()
    began = time.monotonic()
    assert loop.time() == 0
    await asyncio.sleep(3600)
    assert loop.time() == 3600
    assert time.monotonic() - began < 600


@pytest.mark.virtual_time
async def test_timers_fire_in_order_at_their_exact_times() -> None:
    moments: list[tuple[str, float]] = []

    async def wait(name: str, seconds: float) -> None:
        await asyncio.sleep(seconds)
        moments.append((name, asyncio.get_running_loop().time()))

    await asyncio.gather(wait("b", 2.5), wait("a", 1), wait("c", 100))
    assert moments == [("a", 1), ("b", 2.5), ("c", 100)]


@pytest.mark.virtual_time
async def test_time_stands_still_while_anything_is_ready_to_run() -> None:
    for _ in range(1000):
        await asyncio.sleep(0)
    assert asyncio.get_running_loop().time() == 0


@pytest.mark.virtual_time
async def test_a_timeout_ends_exactly_when_it_is_due() -> None:
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(30):
            await asyncio.Event().wait()
    assert asyncio.get_running_loop().time() == 30


@pytest.mark.virtual_time
async def test_virtual_time_does_not_overtake_work_in_a_thread() -> None:
    order: list[str] = []

    async def timer() -> None:
        await asyncio.sleep(0.5)
        order.append("timer")

    async def work() -> None:
        await asyncio.to_thread(time.sleep, 0.02)
        order.append("thread")

    await asyncio.gather(timer(), work())
    assert order == ["thread", "timer"]


@pytest.mark.virtual_time
async def test_sockets_work_and_are_served_before_time_jumps() -> None:
    async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(await reader.readline())
        writer.close()
        await writer.wait_closed()

    server = await asyncio.start_server(echo, "127.0.0.1", 0)
    async with server:
        reader, writer = await asyncio.open_connection(*server.sockets[0].getsockname())
        async with asyncio.timeout(3600):
            writer.write(b"hello\n")
            assert await reader.readline() == b"hello\n"
        writer.close()
        await writer.wait_closed()
    assert asyncio.get_running_loop().time() < 3600


@pytest.mark.virtual_time
async def test_the_wall_clock_follows_the_loop() -> None:
    clock = VirtualClock()
    began = clock.now()
    await asyncio.sleep(90)
    assert clock.now() - began == dt.timedelta(seconds=90)
    assert began == dt.datetime(2030, 1, 1, tzinfo=dt.UTC)


def test_waiting_for_nothing_is_a_deadlock_and_not_a_hang() -> None:
    async def wait() -> None:
        await asyncio.Event().wait()

    with asyncio.Runner(loop_factory=VirtualTimeLoop) as runner:
        with pytest.raises(DeadlockError, match="nothing can ever happen"):
            runner.run(wait())


async def test_without_the_marker_time_is_real() -> None:
    assert not isinstance(asyncio.get_running_loop(), VirtualTimeLoop)


def test_another_plugins_choice_of_loop_is_respected_without_the_marker(
    pytester: pytest.Pytester,
) -> None:
    pytester.makeini("[pytest]\nasyncio_mode = auto\nasyncio_default_fixture_loop_scope = function")
    pytester.makeconftest(
        textwrap.dedent("""
        import asyncio

        class Own(asyncio.SelectorEventLoop): pass

        def pytest_asyncio_loop_factories(config, item): return {"own": Own}
        """)
    )
    pytester.makepyfile(
        textwrap.dedent("""
        import asyncio, pytest

        async def test_own():
            assert type(asyncio.get_running_loop()).__name__ == "Own"

        @pytest.mark.virtual_time
        async def test_virtual():
            assert type(asyncio.get_running_loop()).__name__ == "VirtualTimeLoop"
        """)
    )
    pytester.runpytest_inprocess("-p", "no:cacheprovider").assert_outcomes(passed=2)


def test_loading_the_plugin_does_not_load_asyncio(pytester: pytest.Pytester) -> None:
    code = "import sys, kubeloop.testing.plugin; sys.exit('asyncio' in sys.modules)"
    assert pytester.runpython_c(code).ret == 0
