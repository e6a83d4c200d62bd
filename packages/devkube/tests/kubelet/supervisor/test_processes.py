"""The supervisor: isolation, exit codes, and that nothing ever outlives its owner."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from tests.kubelet.support import exists

from devkube.kubelet.logs.files import OutputPipe
from devkube.kubelet.supervisor.linux import descendants
from devkube.kubelet.supervisor.processes import Process, Processes, StartError
from devkube.kubelet.supervisor.spec import Isolation, Mount, ProcessSpec
from tests.waiting import eventually

ENV = {"PATH": "/usr/local/bin:/usr/bin:/bin"}
ROOT = Path(__file__).resolve().parents[3]
PRIVILEGED = pytest.param(Isolation.PRIVILEGED, marks=pytest.mark.needs_root)
NAMESPACES = [PRIVILEGED, Isolation.USER]
ALL = [PRIVILEGED, *(each for each in Isolation if each is not Isolation.PRIVILEGED)]


class Shell:
    """Runs scripts and keeps what they print."""

    def __init__(self, processes: Processes) -> None:
        self.processes = processes
        self.printed = b""
        self._pipes: list[OutputPipe] = []

    def take(self, data: bytes) -> None:
        self.printed += data

    async def start(self, *argv: str, **fields: Any) -> Process:
        pipe = OutputPipe(self.take)
        self._pipes.append(pipe)
        spec = ProcessSpec(argv=argv, env=fields.pop("env", ENV), **fields)
        try:
            return await self.processes.start(spec, output=pipe.writer)
        finally:
            pipe.close_writer()

    async def run(self, script: str, **fields: Any) -> int:
        process = await self.start("sh", "-c", script, **fields)
        code = await process.wait()
        self.close()
        return code

    async def says(self, text: str) -> None:
        await eventually(lambda: text.encode() in self.printed, f"the output {text!r}")

    def close(self) -> None:
        for pipe in self._pipes:
            pipe.close()
        self._pipes.clear()


@contextlib.asynccontextmanager
async def shell(most: Isolation) -> AsyncIterator[Shell]:
    async with Processes(most=most) as processes:
        if processes.isolation is not most:
            pytest.skip(
                f"this machine gives containers {processes.isolation.value}, not {most.value}"
            )
        made = Shell(processes)
        try:
            yield made
        finally:
            made.close()


async def all_gone(pids: list[int]) -> None:
    assert pids
    await eventually(lambda: not any(map(exists, pids)), f"the end of {pids}")


@pytest.mark.parametrize("most", ALL)
async def test_exit_codes_and_output_come_back(most):
    async with shell(most) as sh:
        assert await sh.run("echo out; echo err >&2; exit 7", cwd="/tmp") == 7
        assert sh.printed == b"out\nerr\n"
        assert await sh.run("kill -9 $$") == 137
        assert await sh.run("kill -TERM $$") == 143


@pytest.mark.parametrize("most", ALL)
async def test_a_stop_reaches_the_whole_group_and_an_end_everything(most):
    async with shell(most) as sh:
        process = await sh.start(
            "sh", "-c", "trap 'echo asked; exit 5' TERM; echo up; sleep 99 & wait"
        )
        await sh.says("up")
        process.stop()
        assert await process.wait() == 5
        assert b"asked" in sh.printed
        stubborn = await sh.start(
            "sh", "-c", "trap '' TERM; (setsid sleep 99 &); echo up2; sleep 99"
        )
        await sh.says("up2")
        tree = [stubborn.pid, *descendants(stubborn.pid)]
        assert len(tree) >= 3
        stubborn.stop()
        stubborn.kill()
        assert await stubborn.wait() == 137
        await all_gone(tree)


@pytest.mark.parametrize("most", ALL)
async def test_what_a_program_leaves_behind_goes_with_it(most):
    async with shell(most) as sh:
        process = await sh.start(
            "sh", "-c", "(setsid sleep 98 &); (sleep 97 &); echo up; read x; exit 0"
        )
        await sh.says("up")
        tree = [process.pid, *descendants(process.pid)]
        await process.wait()
        await all_gone(tree)


@pytest.mark.parametrize("most", ALL)
async def test_programs_that_cannot_start_say_why(most, tmp_path):
    async with shell(most) as sh:
        with pytest.raises(StartError, match=r'exec: "nope": executable file not found in \$PATH'):
            await sh.start("nope")
        with pytest.raises(StartError, match="no such file or directory"):
            await sh.start("/no/such/program")
        with pytest.raises(StartError, match="permission denied"):
            await sh.start(str(tmp_path))
        with pytest.raises(StartError, match=r'chdir to cwd \("/no/where"\)'):
            await sh.start("true", cwd="/no/where")


@pytest.mark.parametrize("most", ALL)
async def test_the_environment_is_what_was_given_however_large(most):
    async with shell(most) as sh:
        big = {f"V{number}": "x" * 100_000 for number in range(12)}
        assert await sh.run("env | wc -c", env={**ENV, **big}) == 0
        assert int(sh.printed) > 1_200_000


def host_entries() -> list[set[str]]:
    return [{entry.name for entry in Path(place).iterdir()} for place in ("/", "/etc", "/run")]


@pytest.mark.parametrize("most", NAMESPACES)
async def test_volumes_appear_without_a_trace_on_the_host(most, tmp_path):
    (tmp_path / "volume").mkdir()
    (tmp_path / "volume/file").write_text("content\n")
    (tmp_path / "hosts").write_text("1.2.3.4 pod\n")
    volume = str(tmp_path / "volume")
    mounts = (
        Mount(volume, "/var/run/secrets/test.example/account", read_only=True),
        Mount(volume, "/no-such-directory/inside"),
        Mount(volume, "/etc/no-such-place"),
        Mount(str(tmp_path / "hosts"), "/etc/hosts"),
    )
    before = host_entries()
    async with shell(most) as sh:
        script = (
            "cat /var/run/secrets/test.example/account/file /no-such-directory/inside/file"
            " /etc/no-such-place/file /etc/hosts; ls -A / | wc -l;"
            " touch /no-such-directory/inside/made;"
            " touch /var/run/secrets/test.example/account/not 2>&1 | grep -o Read-only"
        )
        assert await sh.run(script, mounts=mounts) == 0
        lines = sh.printed.decode().splitlines()
    assert lines[:4] == ["content"] * 3 + ["1.2.3.4 pod"]
    assert int(lines[4]) == len(before[0]) + 1
    assert lines[5] == "Read-only"
    assert (tmp_path / "volume/made").exists()
    assert host_entries() == before


@pytest.mark.parametrize("most", NAMESPACES)
async def test_a_container_has_a_host_name_of_its_own(most):
    async with shell(most) as sh:
        await sh.run("hostname", hostname="pod-1")
        assert sh.printed == b"pod-1\n"


@pytest.mark.parametrize("most", ALL)
async def test_a_command_runs_beside_a_container(most, tmp_path):
    async with shell(most) as sh:
        mounts = (Mount(str(tmp_path), "/no-such-volume"),) if most.has_namespaces else ()
        main = await sh.start("sh", "-c", "echo up; sleep 99", mounts=mounts, hostname="pod-1")
        await sh.says("up")
        if most.has_namespaces:
            assert await sh.run("test -d /no-such-volume && hostname", join=main.pid) == 0
            assert sh.printed.endswith(b"pod-1\n")
        else:
            assert await sh.run("exit 4", join=main.pid) == 4
        beside = await sh.start("sh", "-c", "echo up2; sleep 98", join=main.pid)
        await sh.says("up2")
        beside.kill()
        assert await asyncio.wait_for(beside.wait(), 10) == 137


@pytest.mark.needs_root
async def test_a_lost_supervisor_takes_its_processes_along_and_is_replaced():
    async with shell(Isolation.PRIVILEGED) as sh:
        process = await sh.start("sh", "-c", "(setsid sleep 96 &); echo up; sleep 95")
        await sh.says("up")
        tree = [process.pid, *descendants(process.pid)]
        link = sh.processes._link
        assert link is not None
        os.kill(link.process.pid, signal.SIGKILL)
        assert await asyncio.wait_for(process.wait(), 10) == 137
        await all_gone(tree)
        assert await sh.run("exit 3") == 3


OWNER = """
import asyncio, os, sys
from devkube.kubelet.supervisor.processes import Processes
from devkube.kubelet.supervisor.spec import Isolation, ProcessSpec
async def main():
    async with Processes(most=Isolation(sys.argv[1])) as processes:
        spec = ProcessSpec(argv=("sh", "-c", "(setsid sleep 94 &); sleep 93"), env={"PATH": "/usr/bin:/bin"})
        process = await processes.start(spec, output=2)
        await asyncio.sleep(0.2)
        print(processes._link.process.pid, process.pid, flush=True)
        await asyncio.sleep(60)
asyncio.run(main())
"""


@pytest.mark.parametrize("most", list(Isolation))
async def test_nothing_outlives_an_owner_that_is_killed(most):
    owner = await asyncio.create_subprocess_exec(
        sys.executable, "-c", OWNER, most.value, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert owner.stdout is not None
    supervisor, process = map(int, (await owner.stdout.readline()).split())
    tree = [supervisor, process, *descendants(process)]
    assert len(tree) >= 4
    owner.kill()
    await owner.wait()
    await all_gone(tree)


def test_a_start_closes_no_descriptor_of_another_thread() -> None:
    script = Path(__file__).with_name("descriptors.py")
    ran = subprocess.run([sys.executable, script], check=False, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
