"""Examples as their readers run them: a process, a kubeconfig, lines to read."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import sys
from collections.abc import AsyncIterator
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"


def write_kubeconfig(path: Path, server: str) -> None:
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "test",
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "clusters": [{"name": "test", "cluster": {"server": server}}],
        "users": [{"name": "test", "user": {}}],
    }
    path.write_text(json.dumps(config))


@contextlib.asynccontextmanager
async def started(
    example: str, kubeconfig: Path, *, wrapper: str = ""
) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run an example; or a program that is told its path and runs it in some other way."""
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *(("-c", wrapper) if wrapper else ()),
        EXAMPLES / example,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        env={**os.environ, "KUBECONFIG": str(kubeconfig)},
    )
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def next_line(process: asyncio.subprocess.Process) -> str:
    assert process.stdout is not None
    line = (await process.stdout.readline()).decode().strip()
    return line.split(" ", 2)[2] if line else ""
