"""`elasti dev` as a user starts it: a process, a kubeconfig, a clean end."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import yaml
from click.testing import CliRunner
from tests.cluster_support import Kubectl, kubectls

from devkube.cluster import ImagePrograms
from elasti.cli.dev import read_programs, startup_message
from elasti.cli.main import main
from tests.waiting import eventually

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not kubectls(), reason="no kubectl: make controlplane builds one"),
]
COMMAND = [sys.executable, "-c", "from elasti.cli.main import main; main()", "dev"]


class Dev:
    """A running `elasti dev`."""

    def __init__(self, process: asyncio.subprocess.Process, directory: Path) -> None:
        self.process = process
        self.kubectl = Kubectl(directory)

    async def said(self, text: str) -> str:
        """Return what was printed up to a line that contains the text."""
        assert self.process.stdout is not None
        lines = ""
        async with asyncio.timeout(20):
            while text not in lines:
                line = await self.process.stdout.readline()
                assert line, f"ended: {lines}"
                lines += line.decode()
        return lines

    async def stop(self, signum: signal.Signals = signal.SIGINT) -> str:
        """Stop it; returns what else it printed."""
        self.process.send_signal(signum)
        assert self.process.stdout is not None
        async with asyncio.timeout(20):
            rest = await self.process.stdout.read()
            await self.process.wait()
        return rest.decode()


@contextlib.asynccontextmanager
async def dev(directory: Path, *arguments: str) -> AsyncIterator[Dev]:
    if "--port" not in arguments:
        arguments = (*arguments, "--port", "0")
    process = await asyncio.create_subprocess_exec(
        *COMMAND,
        *arguments,
        "--kubeconfig",
        str(directory / "kubeconfig.yaml"),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
    )
    try:
        yield Dev(process, directory)
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        assert process.stdout is not None
        await process.stdout.read()
        await process.wait()


async def test_it_says_what_to_type_next_and_that_works(tmp_path: Path) -> None:
    async with dev(tmp_path) as running:
        said = await running.said("Ctrl-C")
        assert f"export KUBECONFIG={tmp_path}/kubeconfig.yaml" in said
        assert "kubectl get nodes" in said
        await running.kubectl("get", "nodes")
        assert "dev-admin" in await running.kubectl("auth", "whoami")


@pytest.mark.parametrize("signum", [signal.SIGINT, signal.SIGTERM])
async def test_it_ends_without_a_word_when_asked_to(tmp_path: Path, signum: signal.Signals) -> None:
    async with dev(tmp_path) as running:
        await running.said("Ctrl-C")
        started = time.monotonic()
        assert await running.stop(signum) == ""
        assert running.process.returncode == 0
        assert time.monotonic() - started < 30


async def test_a_port_in_use_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        async with dev(tmp_path, "--port", port) as running:
            assert running.process.stdout is not None
            said = (await running.process.stdout.read()).decode()
            assert await running.process.wait() == 1
    assert said == (
        f"Error: port {port} on 127.0.0.1 is in use; stop what listens there, or choose another with"
        " --port (0 takes any that is free)\n"
    )


async def test_a_directory_in_use_is_one_line_with_the_remedy(tmp_path: Path) -> None:
    data = str(tmp_path / "data")
    async with dev(tmp_path, "--data-dir", data) as running:
        await running.said("Ctrl-C")
        async with dev(tmp_path, "--data-dir", data) as second:
            assert second.process.stdout is not None
            said = (await second.process.stdout.read()).decode()
            assert await second.process.wait() == 1
        assert said == (
            f"Error: the data directory {data} is in use by another cluster (process"
            f" {running.process.pid}); stop that one, or use another --data-dir\n"
        )


async def test_a_users_kubeconfig_is_kept_and_the_context_named(tmp_path: Path) -> None:
    mine = {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "prod", "cluster": {"server": "https://prod"}}],
        "contexts": [{"name": "prod", "context": {"cluster": "prod", "user": "me"}}],
        "users": [{"name": "me", "user": {"token": "t"}}],
        "current-context": "prod",
    }
    path = tmp_path / "kubeconfig.yaml"
    path.write_text(yaml.safe_dump(mine))
    async with dev(tmp_path) as running:
        assert "kubectl --context elasti-dev get nodes" in await running.said("Ctrl-C")
        await running.kubectl("--context", "elasti-dev", "get", "nodes")
    assert yaml.safe_load(path.read_text())["current-context"] == "prod"


async def test_a_file_that_is_not_a_kubeconfig_is_not_touched(tmp_path: Path) -> None:
    path = tmp_path / "kubeconfig.yaml"
    path.write_text("shopping: [milk]\nkind: List\n")
    async with dev(tmp_path) as running:
        assert running.process.stdout is not None
        said = (await running.process.stdout.read()).decode()
        assert await running.process.wait() == 1
    assert said.startswith("Error: ")
    assert said.count("\n") == 1
    assert path.read_text() == "shopping: [milk]\nkind: List\n"


def test_the_first_lines_fit_the_options(tmp_path: Path) -> None:
    lines = startup_message("https://127.0.0.1:1", 3, tmp_path, tmp_path / "a b", current=True)
    text = "\n".join(lines)
    assert f"3 nodes; state kept in {tmp_path}" in text
    assert f"export KUBECONFIG='{tmp_path}/a b'" in text
    alone = startup_message("https://127.0.0.1:1", 1, None, Path("c"), current=True)
    assert f"  export KUBECONFIG={Path.cwd()}/c" in alone
    assert "1 node; state in memory; --data-dir keeps it" in "\n".join(alone)


@pytest.mark.parametrize(
    "wrong",
    [["--nodes", "0"], ["--port", "70000"], ["--nodes", "many"], ["--run", "nginx"]],
)
def test_a_wrong_call_is_a_usage_error(wrong: list[str]) -> None:
    result = CliRunner().invoke(main, ["dev", *wrong])
    assert result.exit_code == 2
    assert wrong[0] in result.output


def test_the_images_of_elasti_are_its_commands() -> None:
    programs = ImagePrograms(read_programs(["web=serve it"]))
    assert programs["tfy.jfrog.io/tfy-images/elasti-operator:0.1.30"] == ("elasti", "operator")
    assert programs["web:3"] == ("serve", "it")
    assert ImagePrograms(read_programs(["elasti=mine"]))["elasti:1"] == ("mine",)


async def test_an_image_can_be_a_program_of_this_machine(tmp_path: Path) -> None:
    async with dev(tmp_path, "--run", "hello=sh -c 'echo hello $0; sleep 60'") as running:
        await running.said("Ctrl-C")
        kubectl = running.kubectl
        await kubectl("run", "h", "--image=registry.example.com/hello:3", "--", "world")
        await kubectl("wait", "--for=condition=Ready", "pod/h", "--timeout=30s")

        async def greeted() -> bool:
            return await kubectl("logs", "h") == "hello world\n"

        await eventually(greeted)
