"""From HTTP to calls and back: the one handler of every request.

Order: faults, identity, authorisation, then what the path names. Whatever goes wrong becomes a
`Status`; an unexpected error is logged with its trace and answered 500, and the tests treat one as a
defect.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING

import msgspec
from aiohttp import web

from elasti.devcluster.apiserver import lean_tls, protobuf, status
from elasti.devcluster.apiserver.answers import Answer, Streaming, finished, refusal
from elasti.devcluster.apiserver.auth import Credentials
from elasti.devcluster.apiserver.calls import Call
from elasti.devcluster.apiserver.negotiation import negotiate
from elasti.devcluster.apiserver.request import read_attributes

if TYPE_CHECKING:
    from elasti.devcluster.apiserver.auth import User
    from elasti.devcluster.apiserver.core import Core
    from elasti.devcluster.apiserver.request import Attributes
    from elasti.devcluster.apiserver.watches import Watch

BODY_LIMIT = 3 * 1024 * 1024
_log = logging.getLogger("elasti.devcluster.apiserver")


class Handler:
    """The server's request handler."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._protobuf = protobuf.ProtobufReader()

    async def handle(self, request: web.BaseRequest) -> web.StreamResponse:
        """Answer one request."""
        lean_tls.slim(request.transport)
        try:
            return await self._answer(request)
        except status.StatusError as error:
            return _response(refusal(error))
        except web.HTTPRequestEntityTooLarge:
            text = f"Request entity too large: limit is {BODY_LIMIT}"
            return _response(refusal(status.failure(413, "RequestEntityTooLarge", text)))
        except (asyncio.CancelledError, ConnectionError):
            raise
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
        if core.reviews.covers(call):
            return _response(await core.reviews.answer(call))
        answer = core.answer(call)
        if isinstance(answer, Streaming):
            return await self._stream(request, answer.watch, call.served.warning)
        await core.store.settled()
        return _response(finished(call, answer))

    async def _call(self, request: web.BaseRequest, attributes: Attributes, user: User) -> Call:
        resource, served = self._core.registry.find(
            attributes.group, attributes.version, attributes.resource
        )
        body = await request.read() if request.method != "GET" else b""
        media = request.headers.get("Content-Type", "").partition(";")[0].strip().lower()
        if media == protobuf.MEDIA_TYPE and body:
            body, media = encode(self._protobuf.decode(body)), "application/json"
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
        head = Answer(body=b"", warnings=[warning] if warning else [])
        response = web.StreamResponse(headers=dict(head.headers()))
        response.enable_chunked_encoding()
        await self._core.store.settled()
        stop = self._core.faults.watch_ended()
        # A client that leaves while it is written to has ended its watch, no more.
        with contextlib.suppress(ConnectionError):
            await response.prepare(request)
            async with contextlib.aclosing(watch.batches(stop)) as batches:
                async for lines in batches:
                    await response.write(lines)
            await response.write_eof()
        return response


def _credentials(request: web.BaseRequest) -> Credentials:
    header = request.headers.get("Authorization", "")
    scheme, _, token = header.partition(" ")
    transport = request.transport
    return Credentials(
        certificate=transport.get_extra_info("peercert") if transport is not None else None,
        token=token.strip() if scheme.lower() == "bearer" else "",
        remote=request.remote or "",
        impersonation=[
            (name, value)
            for name, value in request.headers.items()
            if name[:12].lower() == "impersonate-"
        ],
    )


def _response(answer: Answer) -> web.Response:
    response = web.Response(body=answer.body, status=answer.code)
    for name, value in answer.headers():
        if name == "Warning":
            response.headers.add(name, value)
        else:
            response.headers[name] = value
    return response


def make_request(*arguments: object) -> web.BaseRequest:
    """Build a request that may be as large as an object may be."""
    message, payload, protocol, writer, task = arguments
    return web.BaseRequest(
        message,  # type: ignore[arg-type]  # aiohttp hands the factory's arguments over untyped
        payload,  # type: ignore[arg-type]
        protocol,  # type: ignore[arg-type]
        writer,  # type: ignore[arg-type]
        task,  # type: ignore[arg-type]
        asyncio.get_running_loop(),
        client_max_size=BODY_LIMIT,
    )


def encode(document: object) -> bytes:
    """Encode a document as JSON."""
    return msgspec.json.encode(document)
