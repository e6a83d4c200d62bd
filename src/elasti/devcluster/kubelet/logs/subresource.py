"""`pods/log` of the embedded API server: which container is meant, and which node has its log."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from aiohttp import web

from elasti.devcluster.kubelet.logs.queries import LogError, read_options
from elasti.devcluster.kubelet.logs.streaming import stream

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Mapping

    from elasti.devcluster.kubelet.logs.service import LogSource
    from kubeloop.aio.clock import Clock
    from kubeloop.objects.meta import JsonObject

_REASONS = {400: "BadRequest", 404: "NotFound"}


class LogCall(Protocol):
    """A request for a pod's log, as the API server hands it on."""

    @property
    def namespace(self) -> str:
        """The pod's namespace."""

    @property
    def name(self) -> str:
        """The pod's name."""

    @property
    def query(self) -> Mapping[str, str]:
        """The request's parameters."""


class PodLogs:
    """Answers requests for logs: `core.streams["pods", "log"] = PodLogs(...).answer`."""

    def __init__(
        self,
        *,
        find_pod: Callable[[str, str], JsonObject | None],
        node: Callable[[str], LogSource | None],
        clock: Clock,
    ) -> None:
        self._find_pod = find_pod
        self._node = node
        self._clock = clock

    async def answer(self, call: LogCall, request: web.BaseRequest) -> web.StreamResponse:
        """Send the log, or a Status that says why not."""
        try:
            pieces = self._open(call)
        except LogError as error:
            return _refusal(error)
        if pieces is None:
            return web.Response(body=b"", content_type="text/plain")
        return await stream(request, pieces)

    def _open(self, call: LogCall) -> AsyncIterator[bytes] | None:
        """Return the log; None for a pod that has no node yet. Raises LogError."""
        options = read_options(call.query, now=self._clock.now())
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


def _refusal(error: LogError) -> web.Response:
    document = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": str(error),
        "reason": _REASONS.get(error.code, "InternalError"),
        "code": error.code,
    }
    return web.json_response(document, status=error.code)
