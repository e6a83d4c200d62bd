"""Faults of the whole cluster on demand, for administrators on the machine itself.

    POST /_dev/controllers  {"pause": ["deployment"], "resume": []}
    POST /_dev/nodes        {"partition": ["node-1"], "heal": []}
    POST /_dev/proxy        {"delay": 2.0, "jitter": 1.0}

GET, and every POST, answers with what holds now. `/_dev/faults` is the API server's own.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol, TypeVar

import msgspec

from elasti.devcluster.apiserver import status
from elasti.devcluster.apiserver.answers import Answer
from elasti.devcluster.apiserver.paths import check_private

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from aiohttp import web

    from elasti.devcluster.apiserver.auth import User
    from elasti.devcluster.apiserver.paths import Paths
    from elasti.devcluster.apiserver.request import Attributes
    from elasti.devcluster.partitions import Partitions
    from elasti.devcluster.serviceproxy.propagation import Propagation
    from kubeloop.objects.meta import JsonObject

CONTROLLERS, NODES, PROXY = "/_dev/controllers", "/_dev/nodes", "/_dev/proxy"
C = TypeVar("C", bound=msgspec.Struct)


class Pausing(Protocol):
    """Controllers that can be told to stand still."""

    @property
    def names(self) -> Sequence[str]:
        """What there is to pause."""

    def pause(self, name: str) -> None:
        """Let one stand still. Raises KeyError."""

    def resume(self, name: str) -> None:
        """Let it go on. Raises KeyError."""

    def is_paused(self, name: str) -> bool:
        """Whether it stands still."""


class ControllersCommand(msgspec.Struct, forbid_unknown_fields=True):
    """Which controllers to stop and start."""

    pause: list[str] = []
    resume: list[str] = []


class NodesCommand(msgspec.Struct, forbid_unknown_fields=True):
    """Which nodes to cut off and to let through."""

    partition: list[str] = []
    heal: list[str] = []


class ProxyCommand(msgspec.Struct, forbid_unknown_fields=True):
    """How late the service proxy hears of changes, in seconds; what is left out stays."""

    delay: float | None = None
    jitter: float | None = None


class Knobs:
    """Answers the private paths."""

    def __init__(
        self,
        *,
        controllers: Pausing,
        partitions: Partitions,
        nodes: Sequence[str],
        propagation: Propagation,
    ) -> None:
        self._controllers = controllers
        self._partitions = partitions
        self._nodes = nodes
        self._propagation = propagation

    def serve(self, paths: Paths) -> None:
        """Answer from now on."""
        for path, turn in (
            (CONTROLLERS, self._turn_controllers),
            (NODES, self._turn_nodes),
            (PROXY, self._turn_proxy),
        ):
            paths.serve(path, _Private(turn).answer)

    def _turn_controllers(self, body: bytes) -> JsonObject:
        command = _read(body, ControllersCommand)
        try:
            for name in command.pause:
                self._controllers.pause(name)
            for name in command.resume:
                self._controllers.resume(name)
        except KeyError as error:
            raise status.bad_request(str(error.args[0])) from error
        states = {
            name: "paused" if self._controllers.is_paused(name) else "running"
            for name in self._controllers.names
        }
        return {"controllers": states}

    def _turn_nodes(self, body: bytes) -> JsonObject:
        command = _read(body, NodesCommand)
        for name in (*command.partition, *command.heal):
            if name not in self._nodes:
                known = ", ".join(self._nodes)
                raise status.bad_request(f"no node {name!r}; there are: {known}")
        for name in command.partition:
            self._partitions.cut(name)
        for name in command.heal:
            self._partitions.heal(name)
        cut = self._partitions.nodes
        return {"nodes": {n: "partitioned" if n in cut else "connected" for n in self._nodes}}

    def _turn_proxy(self, body: bytes) -> JsonObject:
        command = _read(body, ProxyCommand)
        for field in ("delay", "jitter"):
            value = getattr(command, field)
            if value is not None and value < 0:
                raise status.bad_request(f"{field}: {value} is negative; give seconds, 0 or more")
        if command.delay is not None:
            self._propagation.delay = command.delay
        if command.jitter is not None:
            self._propagation.jitter = command.jitter
        return {"delay": self._propagation.delay, "jitter": self._propagation.jitter}


class _Private:
    """One knob behind the check that keeps others away from it."""

    def __init__(self, turn: Callable[[bytes], JsonObject]) -> None:
        self._turn = turn

    async def answer(self, request: web.BaseRequest, attributes: Attributes, user: User) -> Answer:
        check_private(request, attributes, user)
        body = await request.read() if attributes.verb == "post" else b""
        return Answer(body=msgspec.json.encode(self._turn(body)))


def _read(body: bytes, kind: type[C]) -> C:
    try:
        return msgspec.json.decode(body or b"{}", type=kind)
    except msgspec.MsgspecError as error:
        raise status.bad_request(f"the command cannot be read: {error}") from error
