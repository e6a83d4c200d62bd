"""`elasti resolver` as it is run: a process, or several, against an API server over the network."""

from __future__ import annotations

import asyncio
import signal

import pytest
from click.testing import CliRunner
from tests.resolver.installation import NOT_YET, installation
from tests.resolver.support import HttpPod, free_port, get

from elasti.cli.main import main
from tests.waiting import eventually

pytestmark = pytest.mark.slow


def test_help_teaches():
    result = CliRunner().invoke(main, ["resolver", "--help"])
    assert result.exit_code == 0
    for word in ("status.resolverPorts", "POD_IP", "elasti resolver --workers 4"):
        assert word in result.output


def test_a_wrong_setting_is_one_line(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("QUEUE_SIZE", "many")
    result = CliRunner().invoke(main, ["resolver"])
    assert result.exit_code == 2
    assert "QUEUE_SIZE: 'many' is not a number above zero" in result.output


@pytest.mark.parametrize("workers", ["1", "2"])
async def test_a_resolver_with_too_few_descriptors_says_so_and_ends(tmp_path, workers):
    async with installation(tmp_path) as made:
        flags = ("--workers", workers)
        async with made.resolver(*flags, descriptors=64, ready=False) as running:
            async with asyncio.timeout(30):
                assert await running.process.wait() == 1
    assert "RLIMIT_NOFILE) is 64, and the resolver needs 100" in running.log.read_text()


@pytest.mark.parametrize("workers", [1, 2])
async def test_a_held_request_survives_sigterm_and_is_served(tmp_path, workers):
    port, process = free_port(), HttpPod()
    async with installation(tmp_path) as made:
        await made.service("web", port)
        async with made.resolver("--workers", str(workers)) as running:
            asking = [asyncio.create_task(get(port)) for _ in range(10)]
            assert await made.woken.get() == "web"
            await running.holds(10)
            route = "/queue-status?namespace=default&service=web"
            assert (await running.ask(route))[1] == b'{"queueStatus":1}'
            running.process.send_signal(signal.SIGTERM)

            async def not_ready() -> bool:
                return not await running.is_ready()

            await eventually(not_ready, ignore=NOT_YET)
            async with process.answering():
                await made.endpoint("web", process.port)
                answers = await asyncio.gather(*asking)
                async with asyncio.timeout(30):
                    assert await running.process.wait() == 0
    assert all(answer.startswith(b"HTTP/1.1 200 ") for answer in answers)
    assert process.requests == 10


async def test_a_resolver_stopped_before_its_caches_are_complete_ends_at_once(
    tmp_path,
):
    async def says_nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(says_nothing, "127.0.0.1", 0)
    async with silent, installation(tmp_path) as made:
        kubeconfig = tmp_path / "silent"
        port = silent.sockets[0].getsockname()[1]
        kubeconfig.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: it\n"
            f"clusters: [{{name: it, cluster: {{server: 'http://127.0.0.1:{port}'}}}}]\n"
            "contexts: [{name: it, context: {cluster: it, user: it}}]\n"
            "users: [{name: it, user: {token: it}}]\n"
        )
        environment = {"KUBECONFIG": str(kubeconfig)}
        async with made.resolver(ready=False, environment=environment) as running:
            await eventually(lambda: running.ask("/healthz"), ignore=NOT_YET)
            assert not await running.is_ready()
            running.process.send_signal(signal.SIGTERM)
            async with asyncio.timeout(30):
                assert await running.process.wait() == 0
