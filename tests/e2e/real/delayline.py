"""A way to the API server on which everything that it says takes a while.

    python -m tests.e2e.real.delayline CONTROL LISTEN_HOST LISTEN_PORT HOST PORT

A service proxy that reaches the API server through this hears of every change late, in order, and
complete: the delay of endpoint propagation, the same for every kind of proxy, and without a knob in
any. What it asks is passed on at once. CONTROL is the path of a Unix socket: a line with a number sets
the delay in seconds, and the answer is the line `ok`. Bytes that wait already keep their time.
"""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from pathlib import Path

CHUNK = 64 * 1024
PATIENCE = 10.0


class DelayLine:
    """Relays connections; bytes from the far end wait for `delay` seconds."""

    def __init__(self, host: str, port: int) -> None:
        self._address = host, port
        self.delay = 0.0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Relay one connection to its end."""
        with contextlib.closing(writer), contextlib.suppress(OSError):
            far_reader, far_writer = await asyncio.open_connection(*self._address)
            with contextlib.closing(far_writer):
                done, pending = await asyncio.wait(
                    {
                        asyncio.create_task(_pump(reader, far_writer)),
                        asyncio.create_task(self._pump_late(far_reader, writer)),
                    },
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for task in pending:
                    task.cancel()
                await asyncio.gather(*done, *pending, return_exceptions=True)

    async def _pump_late(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        loop = asyncio.get_running_loop()
        waiting: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue()

        async def receive() -> None:
            data = b"-"
            while data:
                data = await reader.read(CHUNK)
                waiting.put_nowait((loop.time() + self.delay, data))

        async with asyncio.TaskGroup() as group:
            receiving = group.create_task(receive())
            while True:
                due, data = await waiting.get()
                await asyncio.sleep(due - loop.time())
                if not data:
                    break
                writer.write(data)
                await writer.drain()
            receiving.cancel()

    async def obey(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Take a new delay from the control socket."""
        with contextlib.closing(writer):
            self.delay = float(await reader.readline())
            writer.write(b"ok\n")
            await writer.drain()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()


def set_delay(control: Path, seconds: float) -> None:
    """Tell a running delay line; raises OSError where there is none."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.settimeout(PATIENCE)
        connection.connect(str(control))
        connection.sendall(f"{seconds}\n".encode())
        if connection.recv(16) != b"ok\n":
            raise ConnectionError(f"{control}: the delay was not taken")


async def main() -> None:
    control, listen_host, listen_port, host, port = sys.argv[1:]
    line = DelayLine(host, int(port))
    async with (
        await asyncio.start_server(line.serve, listen_host, int(listen_port)),
        # Last, since whoever finds it takes everything for ready.
        await asyncio.start_unix_server(line.obey, control),
    ):
        await asyncio.Event().wait()


if __name__ == "__main__":
    asyncio.run(main())
