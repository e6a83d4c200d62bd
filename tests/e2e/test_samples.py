from __future__ import annotations

import asyncio
import os
import signal
import sys
import urllib.request

APP = "elasti.cli.demo.sample_apps"


async def fetch(port: int, path: str) -> str:
    def read() -> str:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=5) as answer:
            return answer.read().decode()

    return await asyncio.to_thread(read)


async def test_the_app_counts_its_use_and_serves_on_after_sigterm(unused_tcp_port):
    settings = {"PORT": str(unused_tcp_port), "START_SECONDS": "0.05", "LINGER_SECONDS": "0.5"}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        "-m",
        APP,
        "http",
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, **settings},
    )
    try:
        assert process.stdout is not None
        assert b"serving" in await process.stdout.readline()
        assert '"path": "/hello"' in await fetch(unused_tcp_port, "/hello")
        await fetch(unused_tcp_port, "/healthz")
        assert "http_requests_total 1\n" in await fetch(unused_tcp_port, "/metrics")
        process.send_signal(signal.SIGTERM)
        assert '"answered": 2' in await fetch(unused_tcp_port, "/again")
        assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()
