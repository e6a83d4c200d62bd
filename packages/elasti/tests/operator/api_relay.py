"""A relay between an operator and its API server, which sees every request, and may end the caller.

It speaks plain HTTP to the operator, over which nobody sends a token, and the server's own TLS to the
server, with the operator's token. `before` and `after` are called around every write: after the server
has answered and before the operator knows, which is where a crash is the hardest.

Where the server takes no loopback addresses, `translate` lets the operator see resolvers at loopback
ones that stand in the server's objects as others: pairs of equal length, of theirs and ours.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import dataclasses
import ssl
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from pathlib import Path

import aiohttp
import yaml
from aiohttp import web

_WRITES = frozenset({"POST", "PUT", "PATCH", "DELETE"})
_UNCOUNTED = ("/leases", "/events", "/tokenreviews", "/selfsubjectaccessreviews")
_HOP = frozenset({"connection", "transfer-encoding", "content-length", "host", "keep-alive"})


@dataclasses.dataclass(frozen=True, slots=True)
class Call:
    """A request that went through, and what the server said."""

    method: str
    path: str
    query: str = ""
    status: int = 0

    @property
    def is_write(self) -> bool:
        """Whether it changes the objects that a test is about."""
        plural = any(part in self.path for part in _UNCOUNTED)
        return self.method in _WRITES and not plural

    def __str__(self) -> str:
        return f"{self.method} {self.path}"


class Cut(Exception):
    """The operator hears nothing more of this request."""


@dataclasses.dataclass
class ApiRelay:
    """Relays while `running`; `calls` are those that were answered, watches when they began."""

    server: str
    tls: ssl.SSLContext
    token: str
    translate: Sequence[tuple[bytes, bytes]] = ()
    before: Callable[[Call], None] = lambda _call: None
    after: Callable[[Call], None] = lambda _call: None
    calls: list[Call] = dataclasses.field(default_factory=list)
    url: str = ""
    _streams: int = 0
    _frozen: int = 0

    @classmethod
    def to(
        cls, kubeconfig: Path, *, token: str, translate: Sequence[tuple[bytes, bytes]] = ()
    ) -> ApiRelay:
        """A relay to the server of a kubeconfig, for the bearer of a token."""
        for theirs, ours in translate:
            assert len(theirs) == len(ours), (theirs, ours)
        (entry,) = yaml.safe_load(kubeconfig.read_text())["clusters"]
        cluster = entry["cluster"]
        context = ssl.create_default_context()
        context.load_verify_locations(cadata=_pem(cluster["certificate-authority-data"]))
        return cls(cluster["server"], context, token, translate)

    @property
    def writes(self) -> list[Call]:
        return [call for call in self.calls if call.is_write]

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[ApiRelay]:
        app = web.Application(client_max_size=64 * 1024 * 1024)
        app.router.add_route("*", "/{path:.*}", self._serve)
        runner = web.AppRunner(
            app, access_log=None, shutdown_timeout=0.1, handler_cancellation=True
        )
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        self.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
        connector = aiohttp.TCPConnector(ssl=self.tls, limit=0)
        try:
            async with aiohttp.ClientSession(
                connector=connector,
                auto_decompress=False,
                timeout=aiohttp.ClientTimeout(total=None),
            ) as self._session:
                yield self
        finally:
            await runner.cleanup()

    def freeze(self) -> None:
        """Let every stream that is open now be silent for ever, as behind a dead router."""
        self._frozen = self._streams

    def kubeconfig(self, path: Path) -> Path:
        """Write the way through this relay."""
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "relay",
            "contexts": [{"name": "relay", "context": {"cluster": "relay", "user": "relay"}}],
            "clusters": [{"name": "relay", "cluster": {"server": self.url}}],
            "users": [{"name": "relay", "user": {}}],
        }
        path.write_text(yaml.safe_dump(document))
        return path

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        call = Call(request.method, request.path, request.query_string)
        body = self._outward(await request.read())
        try:
            if call.is_write:
                self.before(call)
            async with self._session.request(
                request.method,
                self.server + str(request.rel_url),
                headers=[
                    *_passed(request.headers.items()),
                    ("Authorization", f"Bearer {self.token}"),
                ],
                data=body or None,
                skip_auto_headers=("Content-Type", "Accept", "User-Agent"),
                allow_redirects=False,
            ) as answer:
                call = dataclasses.replace(call, status=answer.status)
                self.calls.append(call)
                if call.is_write:
                    data = await answer.read()
                    self.after(call)
                    return self._whole(answer, data)
                if "watch" in request.query:
                    return await self._stream(request, answer)
                return self._whole(answer, await answer.read())
        except (Cut, aiohttp.ClientError, ConnectionError):
            if request.transport is not None:
                request.transport.abort()
            raise asyncio.CancelledError from None

    def _whole(self, answer: aiohttp.ClientResponse, data: bytes) -> web.Response:
        return web.Response(
            status=answer.status, body=self._inward(data), headers=_passed(answer.headers.items())
        )

    async def _stream(
        self, request: web.Request, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        out = web.StreamResponse(status=answer.status, headers=_passed(answer.headers.items()))
        await out.prepare(request)
        self._streams += 1
        number, rest = self._streams, b""
        async for chunk in answer.content.iter_any():
            if number <= self._frozen:
                await asyncio.get_running_loop().create_future()
            lines, newline, rest = (rest + chunk).rpartition(b"\n")
            if newline:
                await out.write(self._inward(lines + newline))
        await out.write_eof(self._inward(rest))
        return out

    def _inward(self, data: bytes) -> bytes:
        for theirs, ours in self.translate:
            data = data.replace(theirs, ours)
        return data

    def _outward(self, data: bytes) -> bytes:
        for theirs, ours in self.translate:
            data = data.replace(ours, theirs)
        return data


def _passed(headers: Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    return [(name, value) for name, value in headers if name.lower() not in _HOP]


def _pem(data: str) -> str:
    return base64.b64decode(data).decode()
