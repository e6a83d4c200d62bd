"""Real requests to a Service's own address, each accounted for."""

from __future__ import annotations

import asyncio
import dataclasses
import re

import aiohttp

_HELD = re.compile(r"elasti-hold;dur=([0-9.]+)")
_PATIENCE = 60.0


@dataclasses.dataclass(frozen=True, slots=True)
class Answer:
    """What became of one request; times in seconds, `held` 0 where a pod answered at once."""

    what: str
    ok: bool
    words: str
    took: float
    held: float = 0.0


async def http_burst(url: str, count: int) -> list[Answer]:
    """Send requests at the same moment, each over a connection of its own."""
    timeout = aiohttp.ClientTimeout(total=_PATIENCE)
    connector = aiohttp.TCPConnector(limit=0, force_close=True)
    async with aiohttp.ClientSession(timeout=timeout, connector=connector) as session:
        return await asyncio.gather(*(_get(session, f"{url}/{n}") for n in range(1, count + 1)))


async def _get(session: aiohttp.ClientSession, url: str) -> Answer:
    loop = asyncio.get_running_loop()
    began = loop.time()
    try:
        async with session.get(url) as response:
            await response.read()
            held = _HELD.search(response.headers.get("Server-Timing", ""))
            seconds = float(held[1]) / 1000 if held else 0.0
            took = loop.time() - began
            return Answer(f"GET {url}", response.status == 200, str(response.status), took, seconds)
    except (aiohttp.ClientError, TimeoutError) as error:
        return Answer(f"GET {url}", ok=False, words=repr(error), took=loop.time() - began)


async def tcp_exchange(host: str, port: int) -> Answer:
    """Connect, hear the greeting, have a line said back."""
    loop = asyncio.get_running_loop()
    began = loop.time()
    what = f"TCP {host}:{port}"
    try:
        async with asyncio.timeout(_PATIENCE):
            reader, writer = await asyncio.open_connection(host, port)
            greeting = await reader.readline()
            took = loop.time() - began
            writer.write(b"anybody there?\n")
            said = await reader.readline()
            writer.close()
            await writer.wait_closed()
        good = greeting.startswith(b"hello") and said == b"anybody there?\n"
        return Answer(what, good, greeting.decode().strip(), took, took)
    except (OSError, TimeoutError) as error:
        return Answer(what, ok=False, words=repr(error), took=loop.time() - began)
