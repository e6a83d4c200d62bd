from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator

import aiohttp
import pytest

from kubeloop.controller.manager.manager import Manager
from kubeloop.controller.manager.runnables import Group
from kubeloop.http.health import HealthChecks, HealthServer


def passes() -> None:
    return


async def passes_slowly() -> None:
    await asyncio.sleep(0)


async def fails() -> None:
    raise ConnectionError("the password is hunter2")


@pytest.mark.spec("C19")
async def test_all_checks_passing_is_ok_in_one_word() -> None:
    answer = await HealthChecks("healthz", {"a": passes, "b": passes_slowly}).run()
    assert (answer.ok, answer.text) == (True, "ok")


@pytest.mark.spec("C19")
async def test_without_checks_ping_answers() -> None:
    answer = await HealthChecks("healthz").run(verbose=True)
    assert (answer.ok, answer.text) == (True, "[+]ping ok\nhealthz check passed\n")


@pytest.mark.spec("C19")
async def test_one_failing_check_fails_all_and_hides_the_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    answer = await HealthChecks("readyz", {"z": fails, "a": passes}).run()
    assert not answer.ok
    assert answer.text == "[+]a ok\n[-]z failed: reason withheld\nreadyz check failed\n"
    assert "hunter2" in caplog.text


@pytest.mark.spec("C19")
async def test_verbose_tells_check_by_check_even_if_all_pass() -> None:
    answer = await HealthChecks("healthz", {"b": passes, "a": passes}).run(verbose=True)
    assert answer.text == "[+]a ok\n[+]b ok\nhealthz check passed\n"


@pytest.mark.spec("C19")
async def test_excluded_checks_are_not_run() -> None:
    checks = HealthChecks("healthz", {"bad": fails, "good": passes})
    answer = await checks.run(exclude=["bad"], verbose=True)
    assert answer.ok
    assert answer.text == "[+]bad excluded: ok\n[+]good ok\nhealthz check passed\n"


@pytest.mark.spec("C19")
async def test_excluding_what_is_not_there_is_reported() -> None:
    answer = await HealthChecks("healthz", {"a": passes}).run(exclude=["x"], verbose=True)
    assert answer.ok
    assert 'cannot be excluded: no matches for "x"' in answer.text


@pytest.mark.spec("C19")
async def test_a_single_check_can_be_asked_for() -> None:
    checks = HealthChecks("healthz", {"bad": fails, "good": passes})
    good, bad = await checks.run_one("good"), await checks.run_one("bad")
    assert good is not None
    assert bad is not None
    assert (good.ok, bad.ok) == (True, False)
    assert "hunter2" not in bad.text
    assert await checks.run_one("other") is None


def test_names_are_unique_and_fit_a_path() -> None:
    checks = HealthChecks("healthz", {"a": passes})
    with pytest.raises(ValueError, match="'a'"):
        checks.add("a", passes)
    with pytest.raises(ValueError, match="'a/b'"):
        checks.add("a/b", passes)


@contextlib.asynccontextmanager
async def serving(server: HealthServer) -> AsyncIterator[aiohttp.ClientSession]:
    manager = Manager()
    manager.add(server, group=Group.SERVERS)
    task = asyncio.create_task(manager.run())
    await server.wait_until_ready()
    async with aiohttp.ClientSession(f"http://127.0.0.1:{server.port}") as session:
        yield session
    manager.stop()
    await task


async def get(session: aiohttp.ClientSession, path: str) -> tuple[int, str]:
    async with session.get(path) as response:
        return response.status, await response.text()


@pytest.mark.spec("C19")
async def test_the_server_answers_probes_and_metrics() -> None:
    server = HealthServer(
        healthz=HealthChecks("healthz"),
        readyz=HealthChecks("readyz", {"bad": fails, "good": passes}),
        metrics=lambda: b"up 1\n",
        host="127.0.0.1",
        port=0,
    )
    with pytest.raises(RuntimeError, match="does not listen yet"):
        _ = server.port
    async with serving(server) as session:
        assert await get(session, "/healthz") == (200, "ok")
        status, text = await get(session, "/readyz/")
        assert status == 500
        assert "[-]bad failed: reason withheld" in text
        assert await get(session, "/readyz?exclude=bad") == (200, "ok")
        status, text = await get(session, "/readyz?exclude=bad&verbose")
        assert (status, text) == (200, "[+]bad excluded: ok\n[+]good ok\nreadyz check passed\n")
        assert await get(session, "/readyz/good") == (200, "ok")
        assert (await get(session, "/readyz/bad"))[0] == 500
        assert (await get(session, "/readyz/none"))[0] == 404
        assert await get(session, "/metrics") == (200, "up 1\n")


async def test_a_path_that_was_not_asked_for_is_not_served() -> None:
    server = HealthServer(host="127.0.0.1", port=0)
    async with serving(server) as session:
        for path in ("/healthz", "/readyz", "/metrics"):
            assert (await get(session, path))[0] == 404


async def test_importing_the_server_does_not_load_aiohttp() -> None:
    code = "import kubeloop.http.health, sys; sys.exit('aiohttp' in sys.modules)"
    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)
    assert await process.wait() == 0


async def test_a_check_that_fails_is_reported_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    def caches() -> None:
        raise RuntimeError("the caches are not filled yet")

    await HealthChecks("readyz", {"caches": caches}).run()

    (record,) = caplog.records
    assert record.getMessage() == "readyz check caches failed: the caches are not filled yet"
    assert record.exc_info is None
