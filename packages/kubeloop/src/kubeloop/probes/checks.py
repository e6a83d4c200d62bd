"""HTTP and TCP health checks, and their results.

What is checked is not trusted: a check reads a bounded number of bytes in bounded time, whatever
comes back. Certificates are not verified, as the kubelet does not: the check finds out whether the
server serves, and sends it no secret. Messages are worded as the kubelet words them.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import functools
import os
import re
import ssl
from typing import TYPE_CHECKING
from urllib.parse import SplitResult, urljoin, urlsplit

from kubeloop.objects.names import url_host

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Mapping

    from kubeloop.objects.core import HttpGetAction

_REDIRECTS = 10
_FOLLOWED = frozenset((301, 302, 303, 307, 308))
_LONGEST_HEAD = 16 * 1024
_LONGEST_BODY = 10 * 1024
_STATUS = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)[ \r\n]")
_LOCATION = re.compile(rb"\nlocation:[ \t]*([^\r\n]*)", re.IGNORECASE)
_LENGTH = re.compile(rb"\ncontent-length:[ \t]*(\d{1,9})[ \t]*\r?\n", re.IGNORECASE)
_UNSENDABLE = re.compile(r"[\x00-\x20\x7f]")
_CONTROL = re.compile(r"[\x00-\x1f\x7f]")


@dataclasses.dataclass(frozen=True, slots=True)
class ProbeOutcome:
    """Healthy or not, and the reason; a `warning` is healthy with something to report."""

    healthy: bool
    message: str = ""
    warning: bool = False


async def tcp_connect(host: str, port: int, *, timeout: float) -> ProbeOutcome:
    """Connect once; the connection is closed at once."""
    try:
        async with asyncio.timeout(timeout), connection(host, port):
            return ProbeOutcome(healthy=True)
    except TimeoutError:
        return ProbeOutcome(healthy=False, message=f"dial tcp {host}:{port}: i/o timeout")
    except OSError as error:
        return ProbeOutcome(healthy=False, message=f"dial tcp {host}:{port}: {explain(error)}")


async def http_get(
    action: HttpGetAction, host: str, port: int, *, timeout: float, agent: str
) -> ProbeOutcome:
    """Send a GET and follow redirects to the same host; 2xx and 3xx are healthy."""
    url, headers = _url(action, host, port), _headers(action, agent)
    try:
        async with asyncio.timeout(timeout):
            return await _follow(url, headers)
    except TimeoutError:
        why = "context deadline exceeded (Client.Timeout exceeded while awaiting headers)"
    except OSError as error:
        why = f"dial tcp {host}:{port}: {explain(error)}"
    except (EOFError, ValueError) as error:
        why = str(error) or "EOF"
    return ProbeOutcome(healthy=False, message=f'Get "{url}": {why}')


def probe_request(action: HttpGetAction, host: str, port: int, *, agent: str) -> bytes:
    """Return the request of a probe. Raises ValueError for a path or header that would be another request."""
    return _request(urlsplit(_url(action, host, port)), _headers(action, agent))


def _url(action: HttpGetAction, host: str, port: int) -> str:
    path = action.path if action.path.startswith("/") else f"/{action.path}"
    return f"{action.scheme.lower()}://{url_host(host)}:{port}{path}"


def _headers(action: HttpGetAction, agent: str) -> dict[str, tuple[str, str]]:
    headers = {
        "host": ("Host", ""),
        "user-agent": ("User-Agent", agent),
        "accept": ("Accept", "*/*"),
    }
    headers |= {item.name.lower(): (item.name, item.value) for item in action.http_headers}
    if not headers["accept"][1]:
        del headers["accept"]
    return headers


async def _follow(url: str, headers: Mapping[str, tuple[str, str]]) -> ProbeOutcome:
    host = urlsplit(url).hostname
    for _ in range(_REDIRECTS):
        status, location, body = await _get(urlsplit(url), headers)
        if status in _FOLLOWED and location:
            url = urljoin(url, location)
            if urlsplit(url).hostname == host:
                continue
        if not 200 <= status < 400:
            return ProbeOutcome(
                healthy=False, message=f"HTTP probe failed with statuscode: {status}"
            )
        if status >= 300:
            message = f"Probe terminated redirects, Response body: {body}"
            return ProbeOutcome(healthy=True, message=message, warning=True)
        return ProbeOutcome(healthy=True, message=body)
    return ProbeOutcome(healthy=False, message=f'Get "{url}": stopped after 10 redirects')


async def _get(url: SplitResult, headers: Mapping[str, tuple[str, str]]) -> tuple[int, str, str]:
    """Return status, Location and the beginning of the body."""
    request = _request(url, headers)
    secure = url.scheme == "https"
    tls = _unverified() if secure else None
    port = url.port or (443 if secure else 80)
    async with connection(url.hostname or "", port, tls=tls) as (reader, writer):
        writer.write(request)
        try:
            head = await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError as error:
            # A server that ends after the head may leave out the empty line.
            head = error.partial
        except asyncio.LimitOverrunError as error:
            raise ValueError(f"the response's head is longer than {_LONGEST_HEAD} bytes") from error
        found = _STATUS.match(head)
        if found is None:
            raise ValueError("EOF" if not head else "malformed HTTP response")
        location, length = _LOCATION.search(head), _LENGTH.search(head)
        # A body of unknown length is not waited for: only its beginning is ever shown.
        size = min(int(length[1]), _LONGEST_BODY) if length else 0
        body = await reader.readexactly(size)
        target = location[1].decode("latin-1").strip() if location else ""
        return int(found[1]), target, body.decode(errors="replace")


def _request(url: SplitResult, headers: Mapping[str, tuple[str, str]]) -> bytes:
    """Return the request. Raises ValueError for a path or header that would be another request."""
    target = (url.path or "/") + (f"?{url.query}" if url.query else "")
    fields = {**headers, "connection": ("Connection", "close")}
    fields["host"] = ("Host", headers["host"][1] or url.netloc)
    lines = [f"{name}: {value}" for name, value in fields.values()]
    if _UNSENDABLE.search(target) or any(_CONTROL.search(line) for line in lines):
        raise ValueError("the probe's path or headers cannot be sent")
    return "\r\n".join((f"GET {target} HTTP/1.1", *lines, "", "")).encode()


@contextlib.asynccontextmanager
async def connection(
    host: str, port: int, *, tls: ssl.SSLContext | None = None
) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
    """Open a connection for one check."""
    reader, writer = await asyncio.open_connection(host, port, ssl=tls, limit=_LONGEST_HEAD)
    try:
        yield reader, writer
    finally:
        # Nothing that was sent still matters, and a graceful end would only keep a socket.
        writer.transport.abort()


def explain(error: OSError) -> str:
    """Say why a connection failed as Kubernetes does."""
    if error.errno is None or error.errno < 0:
        return str(error).lower()
    return f"connect: {os.strerror(error.errno).lower()}"


@functools.cache
def _unverified() -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    return context
