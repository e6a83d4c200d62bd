"""A real Prometheus for an environment, and a metric that the test sets.

    async with prometheus(environment, directory) as server:
        await server.set(5)                # returns when queries see it
        server.trigger("case_requests")

Both run where pods can reach them, on a loopback address of their own. The series have the label
`container="foo"`, by which triggers ask whether it was up.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import shutil
import subprocess
import sys
from asyncio.subprocess import Process
from collections.abc import AsyncIterator
from pathlib import Path

from tests.operator.fakes import loopback

from kubeloop.objects.meta import JsonObject
from tests.e2e.environment import Environment

METRIC = "case_requests"
UP = 'container="foo"'
_PORT, _SOURCE_PORT = 9090, 9091
_CONFIGURATION = """
global: {{scrape_interval: 500ms, scrape_timeout: 400ms, evaluation_interval: 1s}}
scrape_configs:
  - job_name: case
    static_configs: [{{targets: ["{source}"], labels: {{container: foo}}}}]
"""
# Serves the file that the test writes, as a pushgateway serves what it is sent.
_SOURCE = """
import http.server, sys
class Metrics(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        with open(sys.argv[3], "rb") as file:
            body = file.read()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def log_message(self, *_):
        pass
http.server.ThreadingHTTPServer((sys.argv[1], int(sys.argv[2])), Metrics).serve_forever()
"""
_QUERY = """
import sys, urllib.parse, urllib.request
query = urllib.parse.urlencode({"query": sys.argv[2]})
print(urllib.request.urlopen(f"{sys.argv[1]}/api/v1/query?{query}", timeout=10).read().decode())
"""


def binary() -> str | None:
    """Where Prometheus is, if it is."""
    return shutil.which("prometheus")


class Prometheus:
    """See the module."""

    def __init__(self, environment: Environment, address: str, exposed: Path) -> None:
        self.url = f"http://{address}:{_PORT}"
        self._environment = environment
        self._exposed = exposed

    def trigger(self, query: str, threshold: float = 0.5) -> JsonObject:
        """Return a trigger that asks it."""
        metadata = {
            "serverAddress": self.url,
            "query": query,
            "threshold": threshold,
            "uptimeFilter": UP,
        }
        return {"type": "prometheus", "metadata": metadata}

    async def set(self, value: float) -> None:
        """Let the metric be that, and return when it is seen."""
        draft = self._exposed.with_suffix(".new")
        await asyncio.to_thread(draft.write_text, f"{METRIC} {value}\n")
        await asyncio.to_thread(draft.replace, self._exposed)

        async def seen() -> bool:
            return await self.ask(METRIC) == [value]

        await self._environment.until(seen, f"Prometheus knows {METRIC} {value}")

    async def ask(self, query: str) -> list[float]:
        """Return the values that a query has now."""
        argv = [sys.executable, "-c", _QUERY, self.url, query]
        process = await self._environment.testbed.spawn(
            argv, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
        )
        output, _ = await process.communicate()
        if process.returncode:
            return []
        result = json.loads(output)["data"]["result"]
        return [float(series["value"][1]) for series in result]


@contextlib.asynccontextmanager
async def prometheus(environment: Environment, directory: Path) -> AsyncIterator[Prometheus]:
    """Run one during the block."""
    address = loopback()
    exposed = _prepare(directory, address)
    source = [sys.executable, "-c", _SOURCE, address, str(_SOURCE_PORT), str(exposed)]
    program = binary()
    assert program is not None, "no prometheus: apt-get install prometheus"
    server = [
        program,
        f"--config.file={directory / 'prometheus.yml'}",
        f"--storage.tsdb.path={directory / 'data'}",
        f"--web.listen-address={address}:{_PORT}",
        "--storage.tsdb.retention.time=1h",
    ]
    async with _running(environment, source, directory), _running(environment, server, directory):
        yield Prometheus(environment, address, exposed)


def _prepare(directory: Path, address: str) -> Path:
    """Write what both read; returns where the metric is."""
    directory.mkdir()
    configuration = _CONFIGURATION.format(source=f"{address}:{_SOURCE_PORT}")
    (directory / "prometheus.yml").write_text(configuration)
    exposed = directory / "metrics"
    exposed.write_text(f"{METRIC} 0\n")
    return exposed


@contextlib.asynccontextmanager
async def _running(
    environment: Environment, argv: list[str], directory: Path
) -> AsyncIterator[Process]:
    with (directory / f"{Path(argv[0]).name}.log").open("ab") as log:
        process = await environment.testbed.spawn(
            argv, stdin=subprocess.DEVNULL, stdout=log.fileno(), stderr=log.fileno()
        )
        try:
            yield process
        finally:
            with contextlib.suppress(ProcessLookupError):
                process.terminate()
            await process.wait()
