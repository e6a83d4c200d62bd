"""From HTTP to calls and back: the one handler of every request.

Order: faults, identity, authorisation, then what the path names. Whatever goes wrong becomes a
`Status`; an unexpected error is logged with its trace and answered 500, and the tests treat one as a
defect.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from typing import Any

import msgspec
from aiohttp import web

from devkube.apiserver import status
from devkube.apiserver.auth import RequestCredentials, UserInfo
from devkube.apiserver.calls import (
    ApiResponse,
    Attributes,
    Call,
    WatchResponse,
    read_attributes,
    refusal,
)
from devkube.apiserver.core import Core
from devkube.apiserver.registry.list_watch import Watch
from devkube.apiserver.registry.serialization import negotiate
from devkube.apiserver.schema import protobuf
from devkube.apiserver.storage import StorageFailed

BODY_LIMIT = 3 * 1024 * 1024
_log = logging.getLogger("devkube.apiserver")
_READS = ("get", "list", "watch")


class RequestHandler:
    """The server's request handler."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._protobuf = protobuf.ProtobufReader()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        try:
            return await self._answer(request)
        except status.StatusError as error:
            return _response(refusal(error))
        except web.HTTPRequestEntityTooLarge:
            text = f"Request entity too large: limit is {BODY_LIMIT}"
            return _response(refusal(status.failure(413, "RequestEntityTooLarge", text)))
        except (asyncio.CancelledError, ConnectionError):
            raise
        except StorageFailed as error:
            return _response(refusal(status.failure(500, "InternalError", str(error))))
        except Exception as error:  # noqa: BLE001 - the last line of defence: logged, answered 500
            _log.exception("request failed", extra={"path": request.path})
            text = f"Internal error occurred: {type(error).__name__}: {error}"
            return _response(refusal(status.failure(500, "InternalError", text)))

    async def _answer(self, request: web.BaseRequest) -> web.StreamResponse:
        core = self._core
        attributes = read_attributes(request.method, request.rel_url.raw_path, request.query)
        await core.faults.inject(attributes)
        user = await core.gate.identify(_credentials(request))
        await core.gate.admit(user, attributes)
        if not attributes.is_resource:
            return _response(await core.paths.answer(request, attributes, user))
        call = await self._call(request, attributes, user)
        special = core.subresource(call)
        if special is not None:
            return await special(call, request)
        review = core.reviews.get(call.resource.kind)
        if review is not None and not call.resource.custom:
            return _response(await review(call))
        while True:
            answer = core.answer(call)
            if isinstance(answer, WatchResponse):
                return await self._stream(request, answer.watch, call.served.warning)
            try:
                await core.store.settled()
            except StorageFailed:
                if attributes.verb not in _READS:
                    raise
                # The failed write may be the one that was read, and it is undone: read again.
                continue
            if call.served.warning:
                warnings = [call.served.warning, *answer.warnings]
                answer = dataclasses.replace(answer, warnings=warnings)
            return _response(answer)

    async def _call(self, request: web.BaseRequest, attributes: Attributes, user: UserInfo) -> Call:
        resource, served = self._core.registry.find(
            attributes.group, attributes.version, attributes.resource
        )
        body = await request.read() if request.method != "GET" else b""
        media = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if media == protobuf.MEDIA_TYPE and body:
            body, media = msgspec.json.encode(self._protobuf.decode(body)), "application/json"
        return Call(
            attributes=attributes,
            resource=resource,
            served=served,
            query=request.query,
            user=user,
            accepted=negotiate(",".join(request.headers.getall("Accept", ()))),
            body=body,
            content_type=media,
            agent=request.headers.get("User-Agent", ""),
        )

    async def _stream(
        self, request: web.BaseRequest, watch: Watch, warning: str
    ) -> web.StreamResponse:
        head = ApiResponse(body=b"", warnings=[warning] if warning else [])
        response = web.StreamResponse(headers=dict(head.headers()))
        response.enable_chunked_encoding()
        # A watch shows only what is durable; a write that fails meanwhile is not its affair.
        with contextlib.suppress(StorageFailed):
            await self._core.store.settled()
        # A client that leaves in the middle of a write only ends its own watch.
        with contextlib.suppress(ConnectionError), self._core.faults.watching() as stop:
            await response.prepare(request)
            async with contextlib.aclosing(watch.batches(stop)) as batches:
                async for lines in batches:
                    await response.write(lines)
            await response.write_eof()
        return response


def _credentials(request: web.BaseRequest) -> RequestCredentials:
    header = request.headers.get("Authorization", "")
    scheme, _, token = header.partition(" ")
    transport = request.transport
    return RequestCredentials(
        certificate=transport.get_extra_info("peercert") if transport is not None else None,
        token=token.strip() if scheme.lower() == "bearer" else "",
        remote=request.remote or "",
        impersonation=[
            (name, value)
            for name, value in request.headers.items()
            if name[:12].lower() == "impersonate-"
        ],
    )


def _response(answer: ApiResponse) -> web.Response:
    return web.Response(body=answer.body, status=answer.code, headers=answer.headers())


def make_request(head: Any, body: Any, protocol: Any, writer: Any, task: Any) -> web.BaseRequest:
    """Build a request that may be as large as an object may be."""
    loop = asyncio.get_running_loop()
    return web.BaseRequest(head, body, protocol, writer, task, loop, client_max_size=BODY_LIMIT)
