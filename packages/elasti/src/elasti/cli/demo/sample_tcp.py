"""A TCP service to put to sleep: says hello first, then echoes lines; counts its connections.

POD_IP=127.0.0.1 PORT=7000 METRICS_PORT=7001 python -m elasti.cli.demo.sample_tcp
"""

from __future__ import annotations

import asyncio
import os
import signal


class SampleEcho:
    """Speaks first, as mail and database servers do."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._connections = 0

    async def converse(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Greet, then say every line back."""
        self._connections += 1
        writer.write(f"hello from {self._name}\n".encode())
        while line := await reader.readline():
            writer.write(line)
        writer.close()

    async def metrics(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Tell how often it was used, to whoever asks by HTTP."""
        await reader.readuntil(b"\r\n\r\n")
        body = f"# TYPE tcp_connections_total counter\ntcp_connections_total {self._connections}\n"
        head = f"HTTP/1.1 200 OK\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n"
        writer.write((head + body).encode())
        writer.close()


async def main() -> None:
    """Start late, serve until SIGTERM, linger, end."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, stop.set)
    await asyncio.sleep(float(os.environ.get("START_SECONDS", "1")))
    echo = SampleEcho(os.environ.get("POD_NAME", "sample"))
    host = os.environ.get("POD_IP", "127.0.0.1")
    port, metrics = int(os.environ.get("PORT", "7000")), int(os.environ.get("METRICS_PORT", "7001"))
    async with (
        await asyncio.start_server(echo.converse, host, port),
        await asyncio.start_server(echo.metrics, host, metrics),
    ):
        await stop.wait()
        await asyncio.sleep(float(os.environ.get("LINGER_SECONDS", "5")))


if __name__ == "__main__":
    asyncio.run(main())
