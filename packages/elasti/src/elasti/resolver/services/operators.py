"""The operator as resolvers call it: every replica by its own address, the next before the first has failed.

A node that is lost takes its operator with it, and for most of a minute the Service's address still leads
there: a connection to it is not refused, it is never answered. So the replicas' own addresses are read from
the EndpointSlices of the operator's Service, and a request that is not answered within half a second goes to
the next replica as well. A refusal, or a replica that cannot act, makes room for the next at once. The first
replica that acts is the answer, and the next request begins with it. One that acts and does not lead has to
write a note of the wake-up, so the next request begins with the one after it, unless one did not answer lately. A
wake request may reach two replicas: the second finds that the target is up already.

Where the slices cannot be read (rights of an older installation) or are not known yet, the Service's address
is called the same way: each new connection may lead to another replica.
"""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import TYPE_CHECKING, Self

import aiohttp
import msgspec
import structlog

from elasti.api.wire import INCOMING_PATH, IncomingReply, IncomingRequest, WakeOutcome
from elasti.resolver.projections import ServiceKey, SliceView
from elasti.resolver.services.wake import OperatorUnreachable
from kubeloop.aio.tasks import finish
from kubeloop.informer import SharedInformerFactory
from kubeloop.objects.core import SERVICE_LABEL, SLICES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kubeloop.informer.factory import ResourceClient


# How long one replica may take before the next is asked, too: a wake-up takes some ten milliseconds.
HEDGE = 0.5
# How often the Service's address is tried in one request where it is the only one.
_TRIES = 3
# For how long no leader is looked for where a replica did not answer: it may be the one.
_STAY = 60.0
_LONGEST_REPLY = 64 * 1024

_log = structlog.get_logger(__name__)


class OperatorReplicas:
    """The URLs of the operator's replicas, from a watch of their Service's slices.

    A factory of its own: a resolver without the right to read them works all the same, so nothing waits
    for it, and a refusal is repeated with the library's long pauses.
    """

    def __init__(self, client: ResourceClient, *, namespace: str, service: str) -> None:
        self.factory = SharedInformerFactory(client, namespace=namespace)
        self._slices = self.factory.informer(
            SLICES, SliceView, label_selector=f"{SERVICE_LABEL}={service}"
        )
        self._reported = False
        self._slices.set_error_handler(self._warn_once)

    def urls(self) -> list[str]:
        """Return the replicas that are ready; those that are not where none is."""
        found: dict[str, bool] = {}
        for endpoint_slice in self._slices.store.list():
            number = next((port.port for port in endpoint_slice.ports or () if port.port), None)
            for endpoint in endpoint_slice.endpoints or ():
                if number is None or endpoint.conditions.terminating or not endpoint.addresses:
                    continue
                address = endpoint.addresses[0]
                host = f"[{address}]" if ":" in address else address
                found[f"http://{host}:{number}"] = endpoint.conditions.ready is not False
        return sorted(url for url, ready in found.items() if ready or not any(found.values()))

    def _warn_once(self, error: Exception) -> None:
        level = _log.debug if self._reported else _log.warning
        level("operator replicas cannot be read; calling their Service", error=str(error))
        self._reported = True


class OperatorClient:
    """Calls the operator's server; a `WakeClient`. Use it as an `async with` block.

    `url` is the Service's; `replicas` returns the replicas' own, none where they are not known.
    `token_file` holds the ServiceAccount token for the operator's audience; it is read for every
    call, since the kubelet replaces it. `failed` and `answered` count.
    """

    def __init__(
        self,
        *,
        url: str,
        replicas: Callable[[], Sequence[str]] = tuple,
        token_file: str = "",
        timeout: float = 5.0,
    ) -> None:
        self._url = url.rstrip("/")
        self._replicas = replicas
        self._token_file = Path(token_file) if token_file else None
        self._timeout = aiohttp.ClientTimeout(total=timeout, sock_connect=min(timeout, 2.0))
        self._session: aiohttp.ClientSession | None = None
        self._first = self._passed = ""
        self._stay_until = -math.inf
        self.answered = 0
        self.failed = 0

    def __repr__(self) -> str:
        return f"<OperatorClient {self._url}>"

    async def __aenter__(self) -> Self:
        # Connections are not kept: behind the Service's address, each new one may be another
        # operator, and a kept one may lead to a dead one.
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(force_close=True, limit=100),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=self._timeout,
        )
        return self

    async def __aexit__(self, *_exc: object) -> None:
        assert self._session is not None
        await self._session.close()

    async def wake(self, key: ServiceKey, *, count: int, client: str = "") -> WakeOutcome:
        """Ask for a Service to be woken. Raises OperatorUnreachable where no replica answers."""
        body = msgspec.json.encode(
            IncomingRequest(svc=key.service, namespace=key.namespace, count=count, client=client)
        )
        try:
            headers = {"Content-Type": "application/json"} | await self._authorization()
        except OSError as error:
            self.failed += 1
            raise OperatorUnreachable(f"cannot read {self._token_file}: {error}") from error
        outcome = await self._first_answer(body, headers)
        self.answered += 1
        return outcome

    def _order(self) -> list[str]:
        """Return whom to ask, in turn; the Service's address is the last."""
        found = self._replicas()
        replicas = sorted(found, key=lambda url: (url != self._first, url <= self._passed))
        return [*replicas, self._url] if replicas else [self._url] * _TRIES

    def _note_good(self, url: str, *, leads: bool, alone: bool) -> None:
        now = asyncio.get_running_loop().time()
        if not alone:
            self._stay_until = now + _STAY
        stays = leads or now < self._stay_until
        self._first, self._passed = (url, "") if stays else ("", url)

    async def _first_answer(self, body: bytes, headers: dict[str, str]) -> WakeOutcome:
        waiting = self._order()
        first, asked = waiting[0], set[asyncio.Task[tuple[str, IncomingReply | str]]]()
        errors: list[str] = []
        unavailable = False
        try:
            while waiting or asked:
                if waiting:
                    asked.add(asyncio.create_task(self._post(waiting.pop(0), body, headers)))
                done, asked = await asyncio.wait(
                    asked,
                    timeout=HEDGE if waiting else None,
                    return_when=asyncio.FIRST_COMPLETED,
                )
                for url, found in (task.result() for task in done):
                    if isinstance(found, str):
                        errors.append(f"{url}: {found}")
                    elif found.outcome is WakeOutcome.UNAVAILABLE:
                        unavailable = True
                    else:
                        self._note_good(url, leads=found.leads, alone=url == first)
                        return found.outcome
        finally:
            await finish(asked)
        if unavailable:
            return WakeOutcome.UNAVAILABLE
        self.failed += 1
        raise OperatorUnreachable("; ".join(errors))

    async def _post(
        self, url: str, body: bytes, headers: dict[str, str]
    ) -> tuple[str, IncomingReply | str]:
        assert self._session is not None
        try:
            async with self._session.post(
                url + INCOMING_PATH, data=body, headers=headers, allow_redirects=False
            ) as answer:
                if answer.status == 200:
                    # KubeElasti's operator says 200 whatever happens; take it for a promise.
                    return url, IncomingReply(WakeOutcome.SCALING)
                return url, _reply(answer.status, await answer.content.read(_LONGEST_REPLY))
        except (OSError, aiohttp.ClientError, TimeoutError) as error:
            return url, str(error) or type(error).__name__

    async def _authorization(self) -> dict[str, str]:
        if self._token_file is None:
            return {}
        token = await asyncio.to_thread(self._token_file.read_text)
        return {"Authorization": f"Bearer {token.strip()}"}


def _reply(status: int, body: bytes) -> IncomingReply | str:
    try:
        return msgspec.json.decode(body, type=IncomingReply)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return f"it answered {status}, and not as an operator does"
