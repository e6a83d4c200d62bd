"""The prober as a program.

    python -m tests.e2e.prober PLAN.json

It says `ready`, then obeys lines of its standard input: `rate N`; `stop`, which ends the sending; and
`abandon`, which also waits for no answer any more. It says `all sent` when a plan's limit is on the wire.
When every request has an outcome it writes them to the plan's file and ends. The end of the input means
`abandon`, so that no prober outlives its test.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import os
import resource
import sys
import time
from pathlib import Path

import msgspec
import uvloop

from tests.e2e.prober.plan import Plan, Summary
from tests.e2e.prober.sender import Sender


async def main(plan: Plan) -> None:
    began = time.monotonic()
    sender = Sender(plan)
    reader = asyncio.StreamReader()
    await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), sys.stdin
    )
    print("ready", flush=True)
    stop = asyncio.Event()
    tasks = [asyncio.create_task(_tell(sender)), asyncio.create_task(_obey(sender, reader, stop))]
    sender.set_rate(plan.rate)
    await stop.wait()
    await sender.finish()
    for task in tasks:
        task.cancel()
    _write(plan, sender, began)


async def _obey(sender: Sender, reader: asyncio.StreamReader, stop: asyncio.Event) -> None:
    while line := (await reader.readline()).decode().split():
        match line:
            case ["rate", number]:
                sender.set_rate(float(number))
            case ["stop"]:
                stop.set()
            case _:
                break
    stop.set()
    sender.abandon()


async def _tell(sender: Sender) -> None:
    await sender.all_sent.wait()
    print("all sent", flush=True)


def _write(plan: Plan, sender: Sender, began: float) -> None:
    used = resource.getrusage(resource.RUSAGE_SELF)
    summary = Summary(
        began=began,
        ended=time.monotonic(),
        cpu=used.ru_utime + used.ru_stime,
        sent=sender.sent,
    )
    encoder = msgspec.json.Encoder()
    lines = [encoder.encode(item) for item in (summary, *sender.records)]
    Path(plan.records).write_bytes(b"\n".join(lines))


if __name__ == "__main__":
    # Nothing here makes cycles worth collecting, and a pause would look like somebody else's delay.
    gc.disable()
    # It measures others: where it may, it goes before them.
    with contextlib.suppress(PermissionError):
        os.nice(-5)
    with (
        contextlib.suppress(KeyboardInterrupt),
        asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner,
    ):
        runner.run(main(msgspec.json.decode(Path(sys.argv[1]).read_bytes(), type=Plan)))
