"""The page «Start» as its reader follows it: every command, in its order, and what the page says of it."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "start.md").read_text().split("## Do it yourself")[1]
FENCE = re.compile(r"^```(\w+)\n(.*?)^```", re.DOTALL | re.MULTILINE)


@pytest.fixture
async def shell(tmp_path: Path) -> AsyncIterator[asyncio.subprocess.Process]:
    """A reader's second terminal; in the first one the cluster runs, on any free port."""
    (tmp_path / ".venv").symlink_to(Path(sys.prefix))
    environment = {**os.environ, "HOME": str(tmp_path)}
    pipe, both = asyncio.subprocess.PIPE, asyncio.subprocess.STDOUT
    dev = (sys.executable, "-m", "elasti", "dev", "--port=0")
    cluster = await asyncio.create_subprocess_exec(*dev, env=environment, stdout=pipe, stderr=both)
    assert cluster.stdout is not None
    while b"Ctrl-C stops it" not in (line := await cluster.stdout.readline()):
        assert line, "the cluster did not start"
    terminal = await asyncio.create_subprocess_exec(
        "bash", cwd=tmp_path, env=environment, stdin=pipe, stdout=pipe, stderr=both
    )
    yield terminal
    if terminal.returncode is None:
        terminal.kill()
    await terminal.communicate()
    cluster.send_signal(signal.SIGINT)
    await cluster.communicate()


async def typed(shell: asyncio.subprocess.Process, command: str) -> str:
    assert shell.stdin is not None
    assert shell.stdout is not None
    shell.stdin.write(f"{command}\necho «$?»\n".encode())
    said = ""
    while not (end := re.search(r"«(\d+)»", said)):
        line = (await shell.stdout.readline()).decode()
        assert line, said
        said += line
    assert end[1] == "0", f"{command}: {said}"
    return said


def shown(line: str) -> re.Pattern[str]:
    """A line that the page shows: its numbers and the width of its columns may differ."""
    words = (re.sub(r"\d+(\\.\d+)?", r"\\d+(\\.\\d+)?", re.escape(word)) for word in line.split())
    return re.compile(r"\s+".join(words))


@pytest.mark.timeout(240)
async def test_the_page_start_does_what_it_says(tmp_path: Path, shell: asyncio.subprocess.Process):
    blocks = FENCE.findall(PAGE)
    assert blocks.pop(0) == ("console", "$ . .venv/bin/activate\n$ elasti dev\n")
    said: dict[str, str] = {}
    command, shown_last = "", [""]
    for language, text in blocks:
        if language == "yaml":
            (tmp_path / "web.yaml").write_text(text)
            continue
        if language == "text":
            shown_last = text.splitlines()
            continue
        for line in text.splitlines():
            if line.startswith("$ "):
                command = line[2:].split(" http")[0]
                said[command] = await typed(shell, line[2:])
            else:
                assert shown(line).search(said[command]), f"{command}: {said[command]}"
    assert "asleep" in said["elasti get"]
    assert re.search(r"web +0/0", said["kubectl get deployment web"])
    assert "200 OK" in said["curl --silent --include"]
    assert "X-Elasti-Cold-Start" in said["curl --silent --include"]
    assert "elasti-hold;dur=" in said["curl --silent --include"]
    await typed(shell, "until elasti get | grep -q awake; do :; done")
    described = await typed(shell, "elasti describe web")
    assert all(shown(line).search(described) for line in shown_last)
