"""`pods/log` of the API server: which container is meant, and which node of this process has its log."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Callable

from aiohttp import web

from devkube.apiserver import status
from devkube.apiserver.calls import Call
from devkube.kubelet.logs.reading import LogError, NodeLogs, read_log_options
from kubeloop.aio.clock import Clock
from kubeloop.objects.meta import JsonObject

_REASONS = {400: "BadRequest", 404: "NotFound"}


async def stream_log(request: web.BaseRequest, pieces: AsyncIterator[bytes]) -> web.StreamResponse:
    """Send a log as it comes; ends with it, or when the reader goes."""
    response = web.StreamResponse(headers={"Content-Type": "text/plain"})
    response.enable_chunked_encoding()
    await response.prepare(request)
    async with contextlib.aclosing(pieces) as opened:  # type: ignore[type-var]  # generators, all of them
        async for piece in opened:
            if piece:
                await response.write(piece)
    await response.write_eof()
    return response


class PodLogs:
    """Answers requests for logs: `core.streams["pods", "log"] = PodLogs(...).answer`."""

    def __init__(
        self,
        *,
        find_pod: Callable[[str, str], JsonObject | None],
        node: Callable[[str], NodeLogs | None],
        clock: Clock,
    ) -> None:
        self._find_pod = find_pod
        self._node = node
        self._clock = clock

    async def answer(self, call: Call, request: web.BaseRequest) -> web.StreamResponse:
        """Send the log. Raises StatusError that says why not."""
        try:
            pieces = self._open(call)
        except LogError as error:
            reason = _REASONS.get(error.code, "InternalError")
            raise status.failure(error.code, reason, str(error)) from error
        if pieces is None:
            return web.Response(body=b"", content_type="text/plain")
        return await stream_log(request, pieces)

    def _open(self, call: Call) -> AsyncIterator[bytes] | None:
        """Return the log; None for a pod that has no node yet. Raises LogError."""
        options = read_log_options(call.query, now=self._clock.now())
        pod = self._find_pod(call.namespace, call.name)
        if pod is None:
            raise LogError(f'pods "{call.name}" not found', code=404)
        container = choose_container(pod, call.query.get("container", ""))
        source = self._node((pod.get("spec") or {}).get("nodeName", ""))
        if source is None:
            return None
        return source.open(call.namespace, call.name, container, options)


def choose_container(pod: JsonObject, wanted: str) -> str:
    """Return the container that is meant. Raises LogError."""
    spec, name = pod.get("spec") or {}, pod["metadata"]["name"]
    names = [c["name"] for c in spec.get("containers") or ()]
    init = [c["name"] for c in spec.get("initContainers") or ()]
    if wanted:
        if wanted not in (*names, *init):
            raise LogError(f"container {wanted} is not valid for pod {name}")
        return wanted
    if len(names) == 1:
        return str(names[0])
    choice = f"choose one of: [{' '.join(names)}]"
    if init:
        choice += f" or one of the init containers: [{' '.join(init)}]"
    raise LogError(f"a container name must be specified for pod {name}, {choice}")
