"""Starts programs on uvloop while threads open and close files: exits with 1 if a file of theirs was closed for them."""

from __future__ import annotations

import asyncio
import contextlib
import os
import threading

import uvloop

from devkube.kubelet.supervisor.processes import Processes, StartError
from devkube.kubelet.supervisor.spec import ProcessSpec

_STARTS = 300
_over = threading.Event()
_closed: list[str] = []


def _open_and_close() -> None:
    while not _over.is_set():
        try:
            descriptor = os.open(os.devnull, os.O_RDONLY)
            os.fstat(descriptor)
            os.close(descriptor)
        except OSError as error:
            _closed.append(str(error))


async def _start(output: int) -> None:
    async with Processes() as processes:
        for _ in range(_STARTS):
            with contextlib.suppress(StartError):
                await processes.start(ProcessSpec(argv=("/no/such",), env={}), output=output)


if __name__ == "__main__":
    threads = [threading.Thread(target=_open_and_close, daemon=True) for _ in range(3)]
    for thread in threads:
        thread.start()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(_start(os.open(os.devnull, os.O_WRONLY)))
    _over.set()
    raise SystemExit(bool(_closed))
