"""Faults of the whole cluster on demand, for administrators on the machine itself.

    POST /_dev/controllers  {"pause": ["deployment"], "resume": []}
    POST /_dev/nodes        {"partition": ["node-1"], "heal": []}
    POST /_dev/proxy        {"delay": 2.0, "jitter": 1.0}

GET, and every POST, answers with what holds now. `/_dev/faults` is the API server's own.

A partitioned node's requests get no answer until the partition is healed, and the watches it had
are gone: as when a cable is pulled, and not as when a server says no.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

import msgspec

from devkube.apiserver import status
from devkube.apiserver.auth import RequestCredentials, UserInfo
from devkube.apiserver.core import NonResourcePaths, private
from devkube.apiserver.faults import FaultInjector, read_command
from devkube.auth.gate import NODE_PREFIX
from devkube.controllers.manager import ControllerManager
from devkube.serviceproxy.proxy import PropagationDelay
from kubeloop.objects.meta import JsonObject

CONTROLLERS, NODES, PROXY = "/_dev/controllers", "/_dev/nodes", "/_dev/proxy"


class ControllersCommand(msgspec.Struct, forbid_unknown_fields=True):
    """Which controllers to stop and start."""

    pause: list[str] = []
    resume: list[str] = []


class NodesCommand(msgspec.Struct, forbid_unknown_fields=True):
    """Which nodes to cut off and to let through."""

    partition: list[str] = []
    heal: list[str] = []


class ProxyCommand(msgspec.Struct, forbid_unknown_fields=True):
    """Seconds after which the service proxy sees changes; parameters left out stay."""

    delay: float | None = None
    jitter: float | None = None


@dataclasses.dataclass(eq=False, kw_only=True)
class ClusterFaults:
    """Answers the private paths."""

    controllers: ControllerManager
    partitions: NodePartitions
    nodes: Sequence[str]
    propagation: PropagationDelay

    def serve(self, paths: NonResourcePaths) -> None:
        """Answer from now on."""
        for path, handle in (
            (CONTROLLERS, self._set_controllers),
            (NODES, self._set_nodes),
            (PROXY, self._set_proxy),
        ):
            paths.serve(path, private(handle))

    def _set_controllers(self, body: bytes) -> JsonObject:
        command = read_command(body, ControllersCommand)
        try:
            for name in command.pause:
                self.controllers.pause(name)
            for name in command.resume:
                self.controllers.resume(name)
        except KeyError as error:
            raise status.bad_request(str(error.args[0])) from error
        states = {
            name: "paused" if self.controllers.is_paused(name) else "running"
            for name in self.controllers.names
        }
        return {"controllers": states}

    def _set_nodes(self, body: bytes) -> JsonObject:
        command = read_command(body, NodesCommand)
        for name in (*command.partition, *command.heal):
            if name not in self.nodes:
                known = ", ".join(self.nodes)
                raise status.bad_request(f"no node {name!r}; there are: {known}")
        for name in command.partition:
            self.partitions.cut(name)
        for name in command.heal:
            self.partitions.heal(name)
        cut = self.partitions.nodes
        return {"nodes": {n: "partitioned" if n in cut else "connected" for n in self.nodes}}

    def _set_proxy(self, body: bytes) -> JsonObject:
        command = read_command(body, ProxyCommand)
        for field in ("delay", "jitter"):
            value = getattr(command, field)
            if value is not None and value < 0:
                raise status.bad_request(f"{field}: {value} is negative; give seconds, 0 or more")
        if command.delay is not None:
            self.propagation.delay = command.delay
        if command.jitter is not None:
            self.propagation.jitter = command.jitter
        return {"delay": self.propagation.delay, "jitter": self.propagation.jitter}


class NodePartitions:
    """The first authenticator: authenticates no caller, and lets those of a partitioned node wait."""

    def __init__(self, faults: FaultInjector) -> None:
        self._faults = faults
        self._cut: dict[str, asyncio.Event] = {}

    @property
    def nodes(self) -> tuple[str, ...]:
        """The nodes that are cut off."""
        return tuple(self._cut)

    def cut(self, node: str) -> None:
        """Cut a node off from changes. Other clients' watches begin again."""
        if node not in self._cut:
            self._cut[node] = asyncio.Event()
            self._faults.drop_watches()

    def heal(self, node: str) -> None:
        """Let a node through again; what it asked meanwhile is answered now."""
        event = self._cut.pop(node, None)
        if event is not None:
            event.set()

    async def authenticate(self, credentials: RequestCredentials) -> UserInfo | None:
        """Return None, after as long as the caller is cut off."""
        while self._cut:
            healed = self._cut.get(_node_of(credentials))
            if healed is None:
                break
            await healed.wait()
        return None


def _node_of(credentials: RequestCredentials) -> str:
    subject = (credentials.certificate or {}).get("subject", ())
    names = [value for part in subject for key, value in part if key == "commonName"]
    name = names[0] if names else ""
    return name.removeprefix(NODE_PREFIX) if name.startswith(NODE_PREFIX) else ""
