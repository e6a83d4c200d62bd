"""One request on its way: from its head to the end of its answer.

An exchange owns the request's bytes until a pod has them, knows whether they may be sent again, and
pairs the client's side with a pod's. Nothing is sent twice: a request that reached a pod is repeated
only when nothing of the answer was seen, its method is idempotent, and its body is still here.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Protocol

from elasti.resolver.proxy.framing import Body, ChunkedBody, LengthBody, NoBody
from elasti.resolver.proxy.heads import Framing, RequestHead, ResponseHead
from elasti.resolver.proxy.target import Address, Refusal, Target

if TYPE_CHECKING:
    from elasti.resolver.proxy.pod import PodConnection
    from elasti.resolver.proxy.pool import Pool

_IDEMPOTENT = frozenset((b"GET", b"HEAD", b"OPTIONS", b"PUT", b"DELETE", b"TRACE"))
# How much of a held request's body is read; beyond it TCP pushes back.
BODY_WHILE_HELD = 64 * 1024
_MAX_TRIES = 4


class ClientSide(Protocol):
    """What an exchange needs of the client's connection."""

    def exchange_interim(self, raw: bytes) -> None:
        """Send a 1xx response."""

    def exchange_head(self, head: ResponseHead, body: bytes) -> None:
        """Send the final head and the first bytes of the body."""

    def exchange_body(self, data: bytes) -> None:
        """Send more of the body."""

    def exchange_done(self, *, keep: bool) -> None:
        """The answer is complete; `keep` where the client's connection may go on."""

    def exchange_switched(self, pod: PodConnection, head: ResponseHead, rest: bytes) -> None:
        """Both sides are bytes from here on."""

    def exchange_refused(self, refusal: Refusal) -> None:
        """No pod will answer."""

    def exchange_broken(self) -> None:
        """The answer ended in the middle: the client must see that it did."""

    def exchange_flow(self, *, flowing: bool) -> None:
        """Read more of the client's bytes, or none for now."""


def body_of(head: RequestHead) -> Body:
    """Return the reader for the request's body."""
    match head.framing:
        case Framing.LENGTH:
            return LengthBody(head.length)
        case Framing.CHUNKED:
            return ChunkedBody()
        case _:
            return NoBody()


class Exchange:
    """A request, its wait, its pod and its answer."""

    __slots__ = (
        "_client", "_connecting", "_pool", "_sent", "_target", "_tries", "_waiting", "_wire",
        "body", "head", "held_since", "pod",
    )  # fmt: skip

    def __init__(
        self, *, client: ClientSide, target: Target, pool: Pool, head: RequestHead, wire: bytes
    ) -> None:
        self._client = client
        self._target = target
        self._pool = pool
        self.head = head
        self.body = body_of(head)
        self.held_since: float | None = None
        self.pod: PodConnection | None = None
        # The head and the body so far; dropped once it may not be sent again.
        self._wire: bytes | None = wire
        self._sent = False
        self._tries = 0
        self._waiting = False
        self._connecting: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Go to a pod that answers, or wait for one."""
        address = self._target.pick()
        if address is None:
            self._wait(first=False)
        else:
            self.admit(address)

    def feed(self, data: bytes) -> int:
        """Take what belongs to the request's body; return how many bytes that was."""
        end = self.body.take(data)
        if end == 0:
            return 0
        if self.pod is not None and self._sent:
            self._wire = None
            self.pod.write(data[:end])
        elif self._wire is not None:
            self._wire += data[:end]
            self._client.exchange_flow(flowing=len(self._wire) < BODY_WHILE_HELD)
        return end

    def abandon(self) -> None:
        """The client went away: free the place in the queue, the pod and the connection attempt."""
        if self._waiting:
            self._waiting = False
            self._target.leave(self)
        if self._connecting is not None:
            self._connecting.cancel()
        if self.pod is not None:
            self.pod.drop()
            self.pod = None

    # Waiter

    def admit(self, address: Address) -> None:
        """A pod answers: go there, over a kept connection where there is one."""
        self._waiting = False
        pod = self._pool.take(address)
        if pod is not None:
            self._send(pod)
        else:
            self._connecting = asyncio.get_running_loop().create_task(self._connect(address))

    def give_up(self, refusal: Refusal) -> None:
        """No pod will come."""
        self._waiting = False
        self._client.exchange_refused(refusal)

    def _wait(self, *, first: bool) -> None:
        if self.held_since is None:
            self.held_since = asyncio.get_running_loop().time()
        refusal = self._target.wait(self, first=first)
        if refusal is None:
            self._waiting = True
        else:
            self._client.exchange_refused(refusal)

    async def _connect(self, address: Address) -> None:
        try:
            pod = await self._pool.connect(address)
        except (OSError, TimeoutError):
            self._connecting = None
            self._target.refused(address)
            self._again()
        else:
            self._connecting = None
            self._send(pod)

    def _again(self) -> None:
        """Nothing was sent, or it may be sent again: another pod, or the head of the queue."""
        self._tries += 1
        address = self._target.pick() if self._tries < _MAX_TRIES else None
        if address is not None:
            self.admit(address)
        else:
            self._wait(first=True)

    def _send(self, pod: PodConnection) -> None:
        assert self._wire is not None
        self.pod, self._sent = pod, True
        pod.ask(self, self._wire, self.head.method)
        if not self._may_repeat():
            self._wire = None
        self._client.exchange_flow(flowing=True)

    def _may_repeat(self) -> bool:
        return self.head.method in _IDEMPOTENT and self.body.done

    # Asker

    def pod_interim(self, raw: bytes) -> None:
        """A 1xx response came."""
        self._client.exchange_interim(raw)

    def pod_head(self, head: ResponseHead, body: bytes) -> None:
        """The final head came."""
        self._wire = None
        self._client.exchange_head(head, body)

    def pod_body(self, data: bytes) -> None:
        """More of the body came."""
        self._client.exchange_body(data)

    def pod_done(self, *, reusable: bool) -> None:
        """The answer is complete; the pod's connection is kept where the request is, too."""
        pod, self.pod = self.pod, None
        complete = self.body.done
        if pod is not None:
            if reusable and complete:
                pod.release()
            else:
                pod.drop()
        self._client.exchange_done(keep=complete)

    def pod_switched(self, head: ResponseHead, rest: bytes) -> None:
        """The pod switched protocols."""
        pod, self.pod = self.pod, None
        assert pod is not None
        self._client.exchange_switched(pod, head, rest)

    def pod_lost(self, *, answered: bool, clean: bool) -> None:
        """The pod went away in the middle."""
        pod, self.pod = self.pod, None
        if answered:
            self._client.exchange_broken()
        elif self._wire is not None and self._tries < _MAX_TRIES:
            # A kept connection that the pod closed as we wrote is nobody's fault.
            if pod is not None and not (pod.used and clean):
                self._target.refused(pod.address)
            self._sent = False
            self._again()
        else:
            self._client.exchange_refused(Refusal.UNREACHABLE)

    def pod_writable(self, *, writable: bool) -> None:
        """The pod takes more bytes, or wants none for now."""
        self._client.exchange_flow(flowing=writable)
