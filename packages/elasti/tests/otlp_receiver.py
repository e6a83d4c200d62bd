"""An OTLP receiver for tests: it keeps the spans that it is sent."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator
from typing import Any

from aiohttp import web

from elasti.authn.settings import AuthnSettings
from tests.waiting import eventually
from tests.web_server import web_server


@dataclasses.dataclass
class Receiver:
    """What came, and what it answers."""

    url: str = ""
    status: int = 200
    spans: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    resources: list[dict[str, str]] = dataclasses.field(default_factory=list)
    headers: list[dict[str, str]] = dataclasses.field(default_factory=list)

    @property
    def settings(self) -> AuthnSettings:
        return AuthnSettings(otlp_endpoint=self.url)

    async def has(self, count: int) -> list[dict[str, Any]]:
        """Wait for so many spans."""
        await eventually(lambda: len(self.spans) >= count, timeout=10)
        return self.spans

    async def take(self, request: web.Request) -> web.Response:
        found = await request.json()
        self.headers.append(dict(request.headers))
        if self.status == 200:
            for resource in found["resourceSpans"]:
                self.resources.append(plain(resource["resource"]["attributes"]))
                for scope in resource["scopeSpans"]:
                    self.spans += scope["spans"]
        return web.json_response({}, status=self.status)


def plain(attributes: list[dict[str, Any]]) -> dict[str, str]:
    """Return attributes as a dictionary."""
    return {one["key"]: one["value"]["stringValue"] for one in attributes}


@contextlib.asynccontextmanager
async def receiver() -> AsyncIterator[Receiver]:
    made = Receiver()
    async with web_server(web.post("/v1/traces", made.take)) as made.url:
        yield made
