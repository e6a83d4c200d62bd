"""OpenTelemetry's own collector: it takes our spans and understands ids, parents, links and times."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

from elasti.authn.settings import AuthnSettings
from elasti.tracing import Tracer
from kubeloop.aio.tasks import finish
from tests.neighbours.programs import program
from tests.waiting import eventually

WAKE = "0123456789abcdef0123456789abcdef"
TRACE, PARENT = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
CONFIG = """
receivers: {{otlp: {{protocols: {{http: {{endpoint: 127.0.0.1:{port}}}}}}}}}
exporters: {{debug: {{verbosity: detailed}}}}
service:
  telemetry: {{metrics: {{level: none}}}}
  pipelines: {{traces: {{receivers: [otlp], exporters: [debug]}}}}
"""


@contextlib.asynccontextmanager
async def collector(log: Path, port: int) -> AsyncIterator[None]:
    command = [str(program("otel-collector")), f"--config=yaml:{CONFIG.format(port=port)}"]
    with log.open("wb") as output:
        process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output)
    try:
        await eventually(lambda: "Everything is ready" in log.read_text(), timeout=30)
        yield
    finally:
        process.terminate()
        await process.wait()


async def test_the_collector_reads_what_we_send(tmp_path: Path):
    log, port = tmp_path / "collector.log", 14318
    settings = AuthnSettings(otlp_endpoint=f"http://127.0.0.1:{port}")
    tracer = Tracer(settings, "elasti-resolver")
    async with collector(log, port):
        task = asyncio.create_task(tracer.run())
        tracer.wake("shop/web", WAKE, (1000.0, 1002.5), failed=False, cause="Request")
        now = asyncio.get_running_loop().time()
        parent = f"00-{TRACE}-{PARENT}-01".encode()
        tracer.held("shop/web", WAKE, parent, (now - 1, now), outcome="timeout")
        await eventually(lambda: tracer.counts["sent"] == 2, timeout=20)
        await eventually(lambda: "elasti.outcome" in log.read_text(), timeout=20)
        await finish([task])
    text = log.read_text()
    wake, hold = text.split("Span #1")
    for found, part in (
        (f"Trace ID       : {WAKE}", wake),
        ("Start time     : 1970-01-01 00:16:40 +0000 UTC", wake),
        ("End time       : 1970-01-01 00:16:42.5 +0000 UTC", wake),
        ("elasti.cause: Str(Request)", wake),
        ("service.name: Str(elasti-resolver)", wake),
        (f"Trace ID       : {TRACE}", hold),
        (f"Parent ID      : {PARENT}", hold),
        ("Kind           : Server", hold),
        ("Status code    : Error", hold),
        (f"-> Trace ID: {WAKE}", hold),
    ):
        assert found in part, text
