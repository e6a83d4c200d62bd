"""A running API server and a small client for it, for tests."""

from __future__ import annotations

import contextlib
import io
import json
import ssl
import tempfile
from pathlib import Path
from typing import Any

import aiohttp

from devkube.apiserver import ApiServer

MERGE = "application/merge-patch+json"
JSON_PATCH = "application/json-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
APPLY = "application/apply-patch+yaml"
DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
CONFIG_MAPS = "/api/v1/namespaces/default/configmaps"
DEFINITIONS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
WIDGETS = "/apis/example.com/v1/namespaces/default/widgets"


class Reply:
    """A response, read."""

    def __init__(self, code: int, body: Any, headers: Any) -> None:
        self.code = code
        self.body = body
        self.headers = headers

    def __getitem__(self, key: str) -> Any:
        return self.body[key]

    def __repr__(self) -> str:
        return f"{self.code} {json.dumps(self.body)[:600]}"


class Kube:
    """Requests to one server, as one user."""

    def __init__(self, server: ApiServer, session: aiohttp.ClientSession) -> None:
        self.server = server
        self.session = session

    async def send(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        kind: str = "application/json",
        accept: str = "application/json",
        token: str = "",
        **query: str,
    ) -> Reply:
        raw = body if isinstance(body, bytes) or body is None else json.dumps(body).encode()
        data = io.BytesIO(raw) if raw is not None else None
        headers = {"Content-Type": kind, "Accept": accept, "User-Agent": "test/1.0"}
        if token:
            headers["Authorization"] = f"Bearer {token}"
        async with self.session.request(
            method, self.server.url + path, data=data, headers=headers, params=query or None
        ) as response:
            raw = await response.read()
            decoded = json.loads(raw) if "json" in response.content_type else raw.decode()
            return Reply(response.status, decoded, response.headers)

    async def get(self, path: str, **query: str) -> Reply:
        return await self.send("GET", path, **query)

    async def create(self, path: str, body: Any, **query: str) -> Reply:
        return await self.send("POST", path, body, **query)

    async def update(self, path: str, body: Any, **query: str) -> Reply:
        return await self.send("PUT", path, body, **query)

    async def merge(self, path: str, body: Any, **query: str) -> Reply:
        return await self.send("PATCH", path, body, kind=MERGE, **query)

    async def apply(self, path: str, body: Any, *, manager: str, **query: str) -> Reply:
        return await self.send("PATCH", path, body, kind=APPLY, fieldManager=manager, **query)

    async def delete(self, path: str, body: Any = None, **query: str) -> Reply:
        return await self.send("DELETE", path, body, **query)

    @contextlib.asynccontextmanager
    async def watch(self, path: str, *, accept: str = "application/json", **query: str):
        async with self.session.get(
            self.server.url + path, params={"watch": "1", **query}, headers={"Accept": accept}
        ) as response:
            yield Events(response)


class Events:
    """The events of an open watch."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.code = response.status
        self.response = response
        self._buffer = b""

    async def next(self) -> dict[str, Any]:
        while b"\n" not in self._buffer:
            chunk = await self.response.content.readany()
            if not chunk:
                raise EOFError
            self._buffer += chunk
        line, _, self._buffer = self._buffer.partition(b"\n")
        return json.loads(line)

    async def take(self, count: int) -> list[tuple[str, str]]:
        events = [await self.next() for _ in range(count)]
        return [(event["type"], event["object"]["metadata"].get("name", "")) for event in events]

    async def rest(self) -> list[dict[str, Any]]:
        found = []
        with contextlib.suppress(EOFError):
            while True:
                found.append(await self.next())
        return found


def tls(server: ApiServer, user: str = "admin", groups: tuple[str, ...] = ("system:masters",)):
    context = ssl.create_default_context(cadata=server.ca_pem.decode())
    if user:
        pair = server.client_certificate(user, groups)
        with tempfile.TemporaryDirectory() as directory:
            certificate, key = Path(directory, "c"), Path(directory, "k")
            certificate.write_bytes(pair.certificate)
            key.write_bytes(pair.key)
            context.load_cert_chain(certificate, key)
    return context


@contextlib.asynccontextmanager
async def connected(
    server: ApiServer, user: str = "admin", groups: tuple[str, ...] = ("system:masters",)
):
    connector = aiohttp.TCPConnector(ssl=tls(server, user, groups), limit=0)
    timeout = aiohttp.ClientTimeout(total=50)
    async with aiohttp.ClientSession(connector=connector, timeout=timeout) as session:
        yield Kube(server, session)


@contextlib.asynccontextmanager
async def running(**options: Any):
    async with ApiServer(**options) as server, connected(server) as kube:
        yield kube


def deployment(name: str = "web", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "labels": {"app": name}},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": name}},
            "template": {
                "metadata": {"labels": {"app": name}},
                "spec": {
                    "containers": [
                        {"name": "web", "image": "nginx:1", "ports": [{"containerPort": 80}]}
                    ]
                },
            },
            **spec,
        },
    }


def config_map(name: str, labels: dict[str, str] | None = None, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name, "labels": labels or {}}, "data": data}


def pod(name: str, **spec: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name},
        "spec": {"containers": [{"name": "main", "image": "app:1"}], **spec},
    }


def definition(**version: Any) -> dict[str, Any]:
    schema = {
        "type": "object",
        "required": ["spec"],
        "properties": {
            "spec": {
                "type": "object",
                "required": ["size"],
                "properties": {
                    "size": {"type": "string", "enum": ["small", "large"]},
                    "replicas": {"type": "integer", "default": 1, "minimum": 0},
                    "port": {"x-kubernetes-int-or-string": True},
                    "note": {"type": "string", "nullable": True, "maxLength": 5},
                    "extra": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                    "nested": {
                        "type": "object",
                        "default": {},
                        "properties": {"mode": {"type": "string", "default": "auto"}},
                    },
                    "items": {
                        "type": "array",
                        "x-kubernetes-list-type": "map",
                        "x-kubernetes-list-map-keys": ["name"],
                        "items": {
                            "type": "object",
                            "required": ["name"],
                            "properties": {"name": {"type": "string"}, "value": {"type": "string"}},
                        },
                    },
                    "tags": {
                        "type": "array",
                        "x-kubernetes-list-type": "set",
                        "items": {"type": "string"},
                    },
                },
            },
            "status": {
                "type": "object",
                "properties": {"replicas": {"type": "integer"}, "selector": {"type": "string"}},
            },
        },
    }
    first = {
        "name": "v1",
        "served": True,
        "storage": True,
        "schema": {"openAPIV3Schema": schema},
        "subresources": {
            "status": {},
            "scale": {
                "specReplicasPath": ".spec.replicas",
                "statusReplicasPath": ".status.replicas",
                "labelSelectorPath": ".status.selector",
            },
        },
        "additionalPrinterColumns": [
            {"name": "Size", "type": "string", "jsonPath": ".spec.size"},
            {"name": "First", "type": "string", "jsonPath": ".spec.items[0].value", "priority": 1},
        ],
        **version,
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": "widgets.example.com"},
        "spec": {
            "group": "example.com",
            "scope": "Namespaced",
            "names": {"plural": "widgets", "kind": "Widget", "shortNames": ["wd"]},
            "versions": [first],
        },
    }


def widget(name: str = "w", **spec: Any) -> dict[str, Any]:
    return {
        "apiVersion": "example.com/v1",
        "kind": "Widget",
        "metadata": {"name": name},
        "spec": {"size": "small", **spec},
    }
