"""Servers that people use, as pods in processes of their own, and the tools that tests call."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from elasti.resolver.proxy.upstream.interface import UpstreamAddress

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

WEB_POD = Path(__file__).with_name("web_pod.py")


def needs(program: str) -> pytest.MarkDecorator:
    """Skip without a program; in CI it must be there, so the test runs and fails."""
    missing = shutil.which(program) is None and os.environ.get("CI") != "true"
    return pytest.mark.skipif(missing, reason=f"needs {program}")


@contextlib.asynccontextmanager
async def web_pod(*arguments: str) -> AsyncIterator[UpstreamAddress]:
    """An aiohttp server; with a certificate and a key over TLS."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, WEB_POD, *arguments,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield UpstreamAddress("127.0.0.1", int(await process.stdout.readline()))
    finally:
        process.stdin.close()
        await process.wait()


@contextlib.contextmanager
def shared_web_pod() -> Iterator[UpstreamAddress]:
    """The same, for tests of any event loop."""
    command = [sys.executable, str(WEB_POD)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield UpstreamAddress("127.0.0.1", int(process.stdout.readline()))
        process.communicate()


@contextlib.asynccontextmanager
async def nginx(folder: Path, *, big: int) -> AsyncIterator[UpstreamAddress]:
    """An nginx that speaks h2c, which Debian's can since 1.9.5 (`http2` on a plain port)."""
    with (folder / "big").open("wb") as file:
        file.truncate(big)
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    paths = "".join(
        f"{kind}_temp_path {folder}/{kind};"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    # Its workers must be able to read the test's folder; others keep their own user.
    runs_as = "user root;" if os.geteuid() == 0 else ""
    (folder / "nginx.conf").write_text(
        f"{runs_as} daemon off; worker_processes 1; pid {folder}/pid; error_log {folder}/log;"
        f"events {{}} http {{ access_log off; {paths} server {{ listen 127.0.0.1:{port} http2;"
        f' root {folder}; location / {{ return 200 "hello\\n"; }} location = /big {{}} }} }}'
    )
    process = await asyncio.create_subprocess_exec(
        "nginx", "-c", str(folder / "nginx.conf"), stderr=asyncio.subprocess.DEVNULL
    )
    try:
        await _until_it_accepts(port)
        yield UpstreamAddress("127.0.0.1", port)
    finally:
        process.terminate()
        await process.wait()


async def _until_it_accepts(port: int) -> None:
    async with asyncio.timeout(30):
        while True:
            with contextlib.suppress(OSError):
                _, writer = await asyncio.open_connection("127.0.0.1", port)
                writer.close()
                await writer.wait_closed()
                return
            await asyncio.sleep(0.02)


async def run(program: str, *arguments: str, stdin: bytes = b"", ok: bool = True) -> bytes:
    """Run a program to its end; returns what it printed."""
    process = await asyncio.create_subprocess_exec(
        program, *arguments,
        stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    async with asyncio.timeout(55):
        output, errors = await process.communicate(stdin)
    assert (process.returncode == 0) is ok, errors.decode()
    return output


async def release_when_held(rig, address: UpstreamAddress) -> None:
    await rig.held()
    rig.upstream.release(address)
