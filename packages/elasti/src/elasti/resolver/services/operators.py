"""Calls the operator: every replica by its own address, hedged.

When a node is lost with an operator on it, the Service's address leads there for most of a minute, and connections
to it are never answered. So the resolver reads the replicas' addresses from the EndpointSlices of the operator's
Service, and sends a request that is not answered within half a second to the next replica as well. After a
refusal, or if a replica cannot act, the next one is asked at once. The first replica that acts wins, and the next
request starts with it. A replica that acts but does not lead has to write a note of the wake-up, so the next
request starts with another one, unless a replica failed to answer recently. A wake request may reach two
replicas: the second finds the target already scaled up.

If the slices cannot be read (an older installation's permissions) or are not known yet, the Service's address
is called in the same way: each new connection may reach another replica.
"""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Self

import msgspec

from elasti.api.wire import INCOMING_PATH, IncomingReply, IncomingRequest, WakeOutcome
from elasti.authn.tls import PeerTls
from elasti.logger import get_logger
from elasti.resolver.projections import ServiceKey, SliceView
from elasti.resolver.services.wake import OperatorUnreachable
from kubeloop.aio.tasks import finish
from kubeloop.http.client import AnswerTooLong, HttpClient
from kubeloop.http.framing import FramingError
from kubeloop.informer import SharedInformerFactory
from kubeloop.informer.factory import ResourceClient
from kubeloop.objects.core import SERVICE_LABEL, SLICES
from kubeloop.objects.names import url_host

# After this time the next replica is asked as well. A wake-up takes some ten milliseconds.
HEDGE = 0.5
# How often one request tries the Service's address if it is the only one.
_TRIES = 3
# After a replica did not answer, do not look for the leader for this long: it may be that replica.
_STAY = 60.0
_LONGEST_REPLY = 64 * 1024

_log = get_logger(__name__)


class OperatorReplicas:
    """The URLs of the operator's replicas, from a watch of their Service's slices.

    It has its own informer factory: a resolver without permission to read these slices still works, so nothing
    waits for this watch, and it retries with the library's long pauses.
    """

    def __init__(self, client: ResourceClient, *, namespace: str, service: str) -> None:
        self.factory = SharedInformerFactory(client, namespace=namespace)
        self._slices = self.factory.informer(
            SLICES, SliceView, label_selector=f"{SERVICE_LABEL}={service}"
        )
        self._reported = False
        self._slices.set_error_handler(self._warn_once)

    def urls(self) -> list[str]:
        """Return the ready replicas; all of them if none is ready."""
        found: dict[str, bool] = {}
        for endpoint_slice in self._slices.store.list():
            number = next((port.port for port in endpoint_slice.ports or () if port.port), None)
            for endpoint in endpoint_slice.endpoints or ():
                if number is None or endpoint.conditions.terminating or not endpoint.addresses:
                    continue
                host = url_host(endpoint.addresses[0])
                found[f"http://{host}:{number}"] = endpoint.conditions.ready is not False
        return sorted(url for url, ready in found.items() if ready or not any(found.values()))

    def _warn_once(self, error: Exception) -> None:
        level = _log.debug if self._reported else _log.warning
        level("cannot read operator replicas; calling their Service", error=str(error))
        self._reported = True


class OperatorClient:
    """Calls the operator's server; a `WakeClient`. Use it as an `async with` block.

    `url` is the Service's; `replicas` returns the replicas' URLs, if they are known. `token_file` holds the
    ServiceAccount token for the operator's audience; it is read for every call, since the kubelet replaces it.
    `answered` and `failed` count calls.
    """

    def __init__(
        self,
        *,
        url: str,
        replicas: Callable[[], Sequence[str]] = tuple,
        token_file: str = "",
        tls: PeerTls | None = None,
        timeout: float = 5.0,
    ) -> None:
        self._url = url.rstrip("/")
        self._replicas = replicas
        self._token_file = Path(token_file) if token_file else None
        self._tls = tls or PeerTls()
        self._timeout = timeout
        self._http: HttpClient | None = None
        self._first = self._passed = ""
        self._stay_until = -math.inf
        self.answered = 0
        self.failed = 0

    def __repr__(self) -> str:
        return f"<OperatorClient {self._url}>"

    async def __aenter__(self) -> Self:
        # Connections are not kept: behind the Service's address each new one may reach another replica, and a
        # kept one may lead to a dead replica.
        self._http = HttpClient(keep=0.0, limit=100, connect_timeout=self._timeout)
        return self

    async def __aexit__(self, *_exc: object) -> None:
        assert self._http is not None
        await self._http.aclose()

    async def wake(
        self, key: ServiceKey, *, count: int, client: str = "", wake_id: str = ""
    ) -> IncomingReply:
        """Ask to wake a Service. Raises OperatorUnreachable if no replica answers."""
        asked = IncomingRequest(
            svc=key.service, namespace=key.namespace, count=count, client=client, wake_id=wake_id
        )
        body = msgspec.json.encode(asked)
        try:
            headers = {"Content-Type": "application/json", "Connection": "close"}
            headers |= await self._authorization()
        except OSError as error:
            self.failed += 1
            raise OperatorUnreachable(f"cannot read {self._token_file}: {error}") from error
        reply = await self._first_answer(body, headers)
        self.answered += 1
        return reply

    def _order(self) -> list[str]:
        """Return the URLs to ask, in order; the Service's address comes last."""
        found = self._replicas()
        replicas = sorted(found, key=lambda url: (url != self._first, url <= self._passed))
        return [*replicas, self._url] if replicas else [self._url] * _TRIES

    def _note_good(self, url: str, *, leads: bool, alone: bool) -> None:
        now = asyncio.get_running_loop().time()
        if not alone:
            self._stay_until = now + _STAY
        stays = leads or now < self._stay_until
        self._first, self._passed = (url, "") if stays else ("", url)

    async def _first_answer(self, body: bytes, headers: dict[str, str]) -> IncomingReply:
        waiting = self._order()
        first, asked = waiting[0], set[asyncio.Task[tuple[str, IncomingReply | str]]]()
        errors: list[str] = []
        unavailable = False
        try:
            while waiting or asked:
                if waiting:
                    asked.add(asyncio.create_task(self._post(waiting.pop(0), body, headers)))
                done, asked = await asyncio.wait(
                    asked, timeout=HEDGE if waiting else None, return_when=asyncio.FIRST_COMPLETED
                )
                for url, found in (task.result() for task in done):
                    if isinstance(found, str):
                        errors.append(f"{url}: {found}")
                    elif found.outcome is WakeOutcome.UNAVAILABLE:
                        unavailable = True
                    else:
                        self._note_good(url, leads=found.leads, alone=url == first)
                        return found
        finally:
            await finish(asked)
        if unavailable:
            return IncomingReply(WakeOutcome.UNAVAILABLE)
        self.failed += 1
        raise OperatorUnreachable("; ".join(errors))

    async def _post(
        self, url: str, body: bytes, headers: dict[str, str]
    ) -> tuple[str, IncomingReply | str]:
        assert self._http is not None
        try:
            async with self._tls.request(
                self._http,
                "POST",
                url + INCOMING_PATH,
                body=body,
                headers=headers,
                timeout=self._timeout,
            ) as answer:
                if answer.status == 200:
                    # KubeElasti's operator always answers 200: treat it as a promise.
                    return url, IncomingReply(WakeOutcome.SCALING)
                return url, _reply(answer.status, await answer.body(limit=_LONGEST_REPLY))
        except (OSError, FramingError, AnswerTooLong) as error:
            return url, str(error) or type(error).__name__

    async def _authorization(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        token = await asyncio.to_thread(self._token_file.read_text)
        return {"Authorization": f"Bearer {token.strip()}"}


def _reply(status: int, body: bytes) -> IncomingReply | str:
    try:
        return msgspec.json.decode(body, type=IncomingReply)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return f"status {status} without a valid reply"
