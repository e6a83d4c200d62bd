"""HTTP probes: a GET that must be answered with 2xx or 3xx."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING

import aiohttp
from multidict import CIMultiDict
from yarl import URL

from elasti.devcluster.kubelet.probes.outcome import Outcome, port_number
from elasti.devcluster.kubelet.probes.tcp import explain

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from elasti.devcluster.kubelet.objects.containers import Container, HttpGet

_REDIRECTS = 10
_LONGEST_BODY = 10 * 1024
_FOLLOWED = (301, 302, 303, 307, 308)


@contextlib.asynccontextmanager
async def http_session() -> AsyncIterator[aiohttp.ClientSession]:
    """Open what probes are sent with: no cookies, no kept connections, any certificate."""
    connector = aiohttp.TCPConnector(ssl=False, force_close=True, limit=0)
    async with aiohttp.ClientSession(
        connector=connector, cookie_jar=aiohttp.DummyCookieJar(), auto_decompress=False
    ) as session:
        yield session


async def get(
    session: aiohttp.ClientSession,
    action: HttpGet,
    container: Container,
    *,
    address: str,
    timeout: float,
    agent: str,
) -> Outcome:
    """Send one GET. Raises ProbeError where the port has no number."""
    url = _url(action, action.host or address, port_number(action.port, container))
    limit = aiohttp.ClientTimeout(total=timeout)
    try:
        return await _follow(session, url, headers=_headers(action, agent), limit=limit)
    except TimeoutError:
        text = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
        return Outcome(healthy=False, message=f'Get "{url}": {text}')
    except (aiohttp.ClientError, ValueError) as error:
        return Outcome(healthy=False, message=f'Get "{url}": {_explain(error, url)}')


async def _follow(
    session: aiohttp.ClientSession,
    url: URL,
    *,
    headers: CIMultiDict[str],
    limit: aiohttp.ClientTimeout,
) -> Outcome:
    host = url.host
    for _ in range(_REDIRECTS):
        async with session.get(
            url, headers=headers, timeout=limit, allow_redirects=False
        ) as answer:
            place = answer.headers.get("Location", "")
            if answer.status in _FOLLOWED and place:
                url = url.join(URL(place))
                if url.host == host:
                    continue
            return await _judge(answer)
    return Outcome(healthy=False, message=f'Get "{url}": stopped after 10 redirects')


async def _judge(answer: aiohttp.ClientResponse) -> Outcome:
    if not 200 <= answer.status < 400:
        return Outcome(healthy=False, message=f"HTTP probe failed with statuscode: {answer.status}")
    body = await answer.content.read(_LONGEST_BODY)
    text = body.decode(errors="replace")
    if answer.status >= 300:
        message = f"Probe terminated redirects, Response body: {text}"
        return Outcome(healthy=True, message=message, warning=True)
    return Outcome(healthy=True, message=text)


def _url(action: HttpGet, host: str, port: int) -> URL:
    path = action.path if action.path.startswith("/") else f"/{action.path}"
    shown = f"[{host}]" if ":" in host else host
    return URL(f"{action.scheme.lower()}://{shown}:{port}{path}", encoded=True)


def _headers(action: HttpGet, agent: str) -> CIMultiDict[str]:
    headers: CIMultiDict[str] = CIMultiDict((item.name, item.value) for item in action.http_headers)
    headers.setdefault("User-Agent", agent)
    headers.setdefault("Accept", "*/*")
    if not headers["Accept"]:
        del headers["Accept"]
    return headers


def _explain(error: Exception, url: URL) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return f"dial tcp {url.host}:{url.port}: {explain(error.os_error)}"
    if isinstance(error, aiohttp.ServerDisconnectedError):
        return "EOF"
    return str(error) or type(error).__name__
