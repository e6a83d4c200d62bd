"""Requests as they are on the wire, for what the client rightly hides: media types, headers, bodies."""

from __future__ import annotations

import base64
import contextlib
import io
import json
import ssl
import tempfile
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import aiohttp
import yaml
from multidict import CIMultiDictProxy

JSON = "application/json"
JSON_PATCH = "application/json-patch+json"
MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class Answer:
    """A whole answer, whatever its status."""

    status: int
    headers: CIMultiDictProxy[str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def warnings(self) -> list[str]:
        return self.headers.getall("Warning", [])

    def __str__(self) -> str:
        return f"{self.status} {self.body.decode(errors='replace')[:800]}"


class Raw:
    """Sends anything to one server."""

    def __init__(self, session: aiohttp.ClientSession, url: str) -> None:
        self._session = session
        self._url = url

    async def send(
        self,
        method: str,
        path: str,
        body: object = None,
        *,
        kind: str = JSON,
        accept: str = JSON,
        query: Mapping[str, str] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Answer:
        """Send one request. A body that is bytes goes as it is, any other as JSON."""
        given = {"Accept": accept, **(headers or {})}
        if body is not None:
            given["Content-Type"] = kind
        data = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        async with self._session.request(
            method,
            self._url + path,
            params=query,
            data=io.BytesIO(data) if data is not None else None,
            headers=given,
        ) as response:
            return Answer(response.status, response.headers, await response.read())

    async def get(self, path: str, *, accept: str = JSON, **query: str) -> Answer:
        return await self.send("GET", path, accept=accept, query=query)

    @contextlib.asynccontextmanager
    async def lines(
        self, path: str, *, accept: str = JSON, **query: str
    ) -> AsyncIterator[AsyncIterator[Any]]:
        """Open a watch; gives its events, as they are."""
        async with self._session.get(
            self._url + path, params={"watch": "1", **query}, headers={"Accept": accept}
        ) as response:
            assert response.status == 200, await response.text()
            yield _documents(response)


async def _documents(response: aiohttp.ClientResponse) -> AsyncIterator[Any]:
    async for line in response.content:
        yield json.loads(line)


@contextlib.asynccontextmanager
async def raw_for(url: str, tls: ssl.SSLContext | bool, token: str = "") -> AsyncIterator[Raw]:
    """Open connections to a server."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    connector = aiohttp.TCPConnector(ssl=tls)
    async with aiohttp.ClientSession(connector=connector, headers=headers) as session:
        yield Raw(session, url)


def tls_of_kubeconfig(path: Path, *, certificate: bool = True) -> ssl.SSLContext:
    """What a kubeconfig with everything inlined says about TLS."""
    config = yaml.safe_load(path.read_text())
    user = config["users"][0]["user"]
    authority = config["clusters"][0]["cluster"]["certificate-authority-data"]
    context = ssl.create_default_context(cadata=base64.b64decode(authority).decode())
    if certificate:
        with tempfile.TemporaryDirectory() as directory:
            pem = Path(directory, "client.pem")
            parts = (user["client-certificate-data"], user["client-key-data"])
            pem.write_bytes(b"\n".join(map(base64.b64decode, parts)))
            context.load_cert_chain(pem)
    return context
