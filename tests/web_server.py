"""A web server for a test: an aiohttp application at a free port of this machine, while a block lasts."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

from aiohttp import web


@contextlib.asynccontextmanager
async def web_server(*routes: web.AbstractRouteDef, host: str = "127.0.0.1") -> AsyncIterator[str]:
    """Serve routes (`web.get("/metrics", answer)`); yields the URL."""
    app = web.Application()
    app.add_routes(routes)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    try:
        await web.TCPSite(runner, host, 0).start()
        yield f"http://{host}:{runner.addresses[0][1]}"
    finally:
        await runner.cleanup()
