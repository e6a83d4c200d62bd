"""Sleeping Services before a browser: a real `elasti resolver`, an API server, and an app of the test's own.

The test is the operator and the kubelet: it says when a pod has an address, when it is ready, and what is
wrong with it.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import shutil
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web
from tests.resolver.installation import Installation, Running, installation
from tests.resolver.support import free_port

from elasti.api.names import PAGE_CONFIG_MAP
from elasti.api.wire import WakePart
from kubeloop.client.errors import NotFound
from tests.browser.conftest import missing
from tests.web_server import web_server

NAMESPACE = "default"


class App:
    """What sleeps: it keeps every request that reached it."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, str]] = []
        self.headers: list[dict[str, str]] = []
        self.port = 0

    def asked(self, method: str) -> list[str]:
        return [path for asked, path in self.requests if asked == method]

    async def answer(self, request: web.Request) -> web.Response:
        body = (await request.read()).decode()
        self.requests.append((request.method, request.path_qs))
        self.headers.append({name.lower(): value for name, value in request.headers.items()})
        text = (
            f"<title>The app</title><h1>The app</h1><p>{request.method} {request.path} {body}</p>"
        )
        return web.Response(text=text, content_type="text/html")

    @contextlib.asynccontextmanager
    async def running(self) -> AsyncIterator[App]:
        async with web_server(web.route("*", "/{path:.*}", self.answer)) as url:
            self.port = int(url.rpartition(":")[2])
            yield self


class Sleeper:
    """One Service that sleeps, at a port of the resolver."""

    def __init__(self, cluster: Installation, resolver: Running, app: App, name: str) -> None:
        self.cluster, self.resolver, self.app, self.name = cluster, resolver, app, name
        self.port = free_port()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def place(self, pod: str = "") -> None:
        """A pod gets an address; it is not ready."""
        await self.cluster.endpoint(self.name, self.app.port, ready=False, pod=pod)

    async def wake(self) -> None:
        """The pod is ready."""
        await self.cluster.endpoint(self.name, self.app.port)

    async def break_pod(self, reason: str) -> None:
        """A pod gets an address, and its container cannot start."""
        name = f"{self.name}-pod"
        await self.cluster.pod(name, {"containers": [{"name": "app", "image": "app"}]})
        state = {"waiting": {"reason": reason, "message": "secret-registry.example.com: no"}}
        pods = self.cluster._client.resource("v1/pods", namespace=NAMESPACE)
        made = await pods.get(name)
        status = {"containerStatuses": [{"name": "app", "state": state, "ready": False}]}
        await pods.subresource("status").replace(made | {"status": status})
        await self.place(name)

    async def was_woken(self) -> bool:
        """Whether the operator was asked to wake it, since the last call."""
        found = False
        while not self.cluster.woken.empty():
            found |= self.cluster.woken.get_nowait() == self.name
        return found


class Bed:
    """Makes sleeping Services."""

    def __init__(self, cluster: Installation, resolver: Running, app: App) -> None:
        self._cluster, self.resolver, self._app = cluster, resolver, app
        self._numbers = itertools.count(1)

    async def sleeper(self, *, title: str = "Shop", wake: Any = None, **page: Any) -> Sleeper:
        """Let a Service sleep, with a page after a second unless told otherwise."""
        made = Sleeper(self._cluster, self.resolver, self._app, f"web-{next(self._numbers)}")
        self._app.requests.clear()
        self._app.headers.clear()
        spec = {"mode": "Auto", "after": "1s", "title": title} | page
        settings = {"probe": "Ready", "page": spec} | (wake or {})
        await self._cluster.service(made.name, made.port, **settings)
        await self._cluster.publish(made.name, {"http": made.port}, "127.0.0.1")
        await _listening(made.port)
        return made

    async def dependent(self, **page: Any) -> tuple[Sleeper, Sleeper]:
        """Let a Service sleep that needs another one, which is named postgres; returns both."""
        needed, made = await self.sleeper(), await self.sleeper(**page)
        parts = WakePart("postgres", needed.name), WakePart("shop", made.name, (0,))
        self._cluster.parts[made.name] = parts
        return made, needed

    async def template(self, key: str, text: str) -> None:
        """Write a page into the ConfigMap for pages."""
        maps = self._cluster._client.resource("v1/configmaps", namespace=NAMESPACE)
        try:
            found = await maps.get(PAGE_CONFIG_MAP)
        except NotFound:
            meta = {"name": PAGE_CONFIG_MAP}
            body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": meta}
            found = await maps.create(body)
        await maps.replace(found | {"data": found.get("data", {}) | {key: text}})


async def _listening(port: int) -> None:
    for _ in range(400):
        with contextlib.suppress(OSError):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            return
        await asyncio.sleep(0.02)
    raise AssertionError(f"nothing listens on {port}")


@contextlib.asynccontextmanager
async def bed(folder: Path) -> AsyncIterator[Bed]:
    """A resolver before an API server, and an app, for many Services."""
    async with installation(folder) as cluster, App().running() as app:
        async with cluster.resolver() as resolver:
            yield Bed(cluster, resolver, app)


@contextlib.asynccontextmanager
async def prefixed(target: str, folder: Path) -> AsyncIterator[str]:
    """An nginx as ingresses are, with its defaults: it takes the prefix /shop away."""
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if nginx is None:
        missing("apt-get install nginx-light")
    port, own = free_port(), folder / "nginx"
    own.mkdir(exist_ok=True)
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    temporary = " ".join(f"{kind}_temp_path {own};" for kind in kinds)
    (own / "nginx.conf").write_text(
        f"daemon off; master_process off; pid {own}/pid; error_log stderr; events {{}}"
        f" http {{ access_log off; {temporary} server {{ listen 127.0.0.1:{port};"
        f" location /shop/ {{ proxy_pass {target}/; }} }} }}"
    )
    command = (nginx, "-p", str(own), "-c", "nginx.conf", "-e", "stderr")
    process = await asyncio.create_subprocess_exec(*command)
    try:
        await _listening(port)
        yield f"http://127.0.0.1:{port}/shop"
    finally:
        process.terminate()
        await process.wait()
