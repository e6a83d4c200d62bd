"""One Lease as an API server keeps it: versions, conflicts, and faults on order."""

from __future__ import annotations

import asyncio
import copy
import dataclasses
import threading
from collections.abc import Callable
from typing import Any

from kubeloop.client.errors import AlreadyExists, Conflict, NotFound, Status, TransportError

Json = dict[str, Any]


@dataclasses.dataclass(frozen=True)
class Fault:
    """What happens to one request; times in seconds."""

    before: float = 0.0
    refused: bool = False
    after: float = 0.0
    answer_lost: bool = False


NO_FAULT = Fault()


class LeaseServer:
    """Thread safe, so that elections on other threads may share it."""

    def __init__(self, lease: Json | None = None) -> None:
        self._lock = threading.Lock()
        self._version = 0
        self.lease: Json | None = None
        self.log: list[str] = []
        if lease is not None:
            self.put(lease)

    def put(self, lease: Json | None) -> None:
        """Store without questions, as somebody else's write."""
        with self._lock:
            self._store(lease)

    def client(self, faults: Callable[[str], Fault] = lambda _verb: NO_FAULT) -> LeaseClient:
        return LeaseClient(self, faults)

    @property
    def holder(self) -> str:
        return self.lease["spec"]["holderIdentity"] if self.lease else ""

    def apply(self, verb: str, body: Json | None) -> Json:
        with self._lock:
            self.log.append(verb)
            if verb == "create" and self.lease is not None:
                raise AlreadyExists(Status(code=409, reason="AlreadyExists"))
            if verb != "create" and self.lease is None:
                raise NotFound(Status(code=404, reason="NotFound"))
            if verb == "update":
                self._check_version(body)
            if body is not None:
                self._store(body)
            return copy.deepcopy(self.lease or {})

    def _check_version(self, body: Json | None) -> None:
        assert body is not None
        assert self.lease is not None
        if body["metadata"]["resourceVersion"] != self.lease["metadata"]["resourceVersion"]:
            raise Conflict(Status(code=409, reason="Conflict", message="changed meanwhile"))

    def _store(self, lease: Json | None) -> None:
        self._version += 1
        self.lease = copy.deepcopy(lease)
        if self.lease is not None:
            self.lease.setdefault("metadata", {})["resourceVersion"] = str(self._version)


class LeaseClient:
    def __init__(self, server: LeaseServer, faults: Callable[[str], Fault]) -> None:
        self.server = server
        self.faults = faults

    async def get(self) -> Json:
        return await self._request("get", None)

    async def create(self, lease: Json) -> Json:
        return await self._request("create", lease)

    async def update(self, lease: Json) -> Json:
        return await self._request("update", lease)

    async def _request(self, verb: str, body: Json | None) -> Json:
        fault = self.faults(verb)
        # Sent is sent: like a real request, it arrives even if its sender gave up waiting.
        answer = asyncio.ensure_future(self._transfer(verb, body, fault))
        try:
            return await asyncio.shield(answer)
        finally:
            answer.add_done_callback(lambda done: done.cancelled() or done.exception())

    async def _transfer(self, verb: str, body: Json | None, fault: Fault) -> Json:
        if fault.before:
            await asyncio.sleep(fault.before)
        if fault.refused:
            raise TransportError("connection refused")
        result = self.server.apply(verb, body)
        if fault.after:
            await asyncio.sleep(fault.after)
        if fault.answer_lost:
            raise TransportError("connection reset")
        return result


def lease(holder: str, *, duration: int = 15, renewed: str = "r0", **spec: Any) -> Json:
    """A Lease as some other program left it."""
    return {
        "metadata": {"namespace": "ns", "name": "lead", "labels": {"theirs": "kept"}},
        "spec": {
            "holderIdentity": holder,
            "leaseDurationSeconds": duration,
            "acquireTime": "a0",
            "renewTime": renewed,
            "leaseTransitions": 3,
            **spec,
        },
    }
