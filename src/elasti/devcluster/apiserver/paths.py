"""Paths that are no resources: discovery, OpenAPI, health, version, and the dev endpoints."""

from __future__ import annotations

import ipaddress
from typing import TYPE_CHECKING

import msgspec

from elasti.devcluster.apiserver import status
from elasti.devcluster.apiserver.answers import Answer
from elasti.devcluster.apiserver.auth import refused
from elasti.devcluster.apiserver.faults import PATH as FAULTS

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aiohttp import web

    from elasti.devcluster.apiserver.auth import User
    from elasti.devcluster.apiserver.discovery import Discovery
    from elasti.devcluster.apiserver.faults import Faults
    from elasti.devcluster.apiserver.request import Attributes
    from elasti.devcluster.apiserver.schema.openapi import OpenApi

    PathHandler = Callable[[web.BaseRequest, Attributes, User], Awaitable[Answer]]

VERSION = {
    "major": "1",
    "minor": "36",
    "emulationMajor": "1",
    "emulationMinor": "36",
    "gitVersion": "v1.36.3+elasti-dev",
    "gitCommit": "",
    "gitTreeState": "clean",
    "buildDate": "1970-01-01T00:00:00Z",
    "goVersion": "",
    "compiler": "",
    "platform": "linux/python",
}
# kubectl looks a kind up here that version 3 does not have, and only in protobuf: an empty document
# (swagger "2.0", a title, a version) lets it say itself that there is no such kind.
_DOCUMENT_TYPE = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
_EMPTY_DOCUMENT = b"\n\x032.0\x12\x13\n\nKubernetes\x12\x05v1.36"
_HEALTH = ("/healthz", "/livez", "/readyz")


class Paths:
    """Answers everything that is not about objects."""

    def __init__(self, *, discovery: Discovery, openapi: OpenApi, faults: Faults) -> None:
        self._discovery = discovery
        self._openapi = openapi
        self._faults = faults
        self._more: dict[str, PathHandler] = {}

    def serve(self, path: str, handler: PathHandler) -> None:
        """Let a later layer answer one path, whatever the method."""
        self._more[path] = handler

    async def answer(self, request: web.BaseRequest, attributes: Attributes, user: User) -> Answer:
        """Answer a path; 404 where nothing is there."""
        path = attributes.path.rstrip("/") or "/"
        if path == FAULTS:
            return await self._fault(request, attributes, user)
        if path in self._more:
            return await self._more[path](request, attributes, user)
        if attributes.verb != "get":
            raise status.failure(
                405, "MethodNotAllowed", f"{request.method} is not served at {path}"
            )
        found = self._read(path, request)
        if found is None:
            raise status.no_such_path()
        return found

    def _read(self, path: str, request: web.BaseRequest) -> Answer | None:
        if path in _HEALTH:
            return _health(path, verbose="verbose" in request.query)
        if path == "/version":
            return Answer(body=msgspec.json.encode(VERSION))
        if path == "/":
            return Answer(body=msgspec.json.encode({"paths": ["/api", "/apis", "/openapi/v3"]}))
        if path.startswith("/openapi/"):
            return self._schema(path, request.headers.get("Accept", ""))
        accept = ",".join(request.headers.getall("Accept", ()))
        document = self._discovery.document(path, accept, request.host)
        if document is None:
            return None
        return Answer(body=msgspec.json.encode(document[0]), content_type=document[1])

    def _schema(self, path: str, accept: str) -> Answer | None:
        if path == "/openapi/v3":
            return Answer(body=msgspec.json.encode(self._openapi.index()))
        if path == "/openapi/v2":
            if "json" not in accept and "*/*" not in accept and accept:
                return Answer(body=_EMPTY_DOCUMENT, content_type=_DOCUMENT_TYPE)
            return Answer(body=self._openapi.v2())
        body = self._openapi.v3(path.removeprefix("/openapi/v3/"))
        return Answer(body=body) if body is not None else None

    async def _fault(self, request: web.BaseRequest, attributes: Attributes, user: User) -> Answer:
        check_private(request, attributes, user)
        body = await request.read() if attributes.verb == "post" else b""
        return Answer(body=msgspec.json.encode(self._faults.command(body)))


def _health(path: str, *, verbose: bool) -> Answer:
    text = f"[+]ping ok\n[+]storage ok\n{path[1:]} check passed\n" if verbose else "ok"
    return Answer(body=text.encode(), content_type="text/plain; charset=utf-8")


def check_private(request: web.BaseRequest, attributes: Attributes, user: User) -> None:
    """Refuse everybody but administrators on this machine."""
    if not user.is_admin or not _is_local(request.remote):
        raise refused(user, attributes)


def _is_local(address: str | None) -> bool:
    try:
        return ipaddress.ip_address(address or "").is_loopback
    except ValueError:
        return False
