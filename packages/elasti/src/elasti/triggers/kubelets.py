"""The bytes that kubelets count for their pods: `/stats/summary`, read once for all triggers.

A node is read again only when what is known is older than its reader can use, so thousands of targets
cost one read a node and interval. A node that does not answer concerns its own pods: others are read
meanwhile, and it is not asked again in the same round.

The token is of a ServiceAccount that may `get` `nodes/stats` and nothing else, asked for by TokenRequest: no
kubelet ever sees the operator's own. Kubelets must have a certificate of the cluster's CA.
"""

from __future__ import annotations

import asyncio
import math
import ssl
from array import array
from collections.abc import Callable, Coroutine, Iterable
from typing import Any

import msgspec

from elasti.api.triggers.cluster import KUBELET_INSECURE_TLS
from kubeloop.client.client import Client
from kubeloop.client.errors import Forbidden, KubeError, NotFound
from kubeloop.http.client import AnswerTooLong, ConnectFailed, HttpClient
from kubeloop.http.framing import FramingError
from kubeloop.objects.names import url_host
from kubeloop.objects.times import unix_seconds

_DEFAULT_PORT = 10250
_TIMEOUT = 5.0
# A summary is read whole, and twice while it is joined: 9 MiB for 16 nodes of 110 pods (270 kB), 256 at the most. A round
# of 1 000 nodes at 50 ms each takes 3.1 s, and each 100 that do not answer take 31 s more.
_AT_ONCE = 16
_MAX_BYTES = 8 << 20
_MOST_KEPT = 64
_TOKEN_SECONDS = 3600
_FORGET_AFTER = 600.0


class KubeletUnreadable(Exception):
    """A node's statistics cannot be read; the message gives the reason and the remedy."""


class PodCounters(msgspec.Struct, frozen=True, gc=False):
    """Bytes received and sent by a pod since its network was made, at a time of its node's clock."""

    at: float
    received: int
    sent: int

    @property
    def total(self) -> int:
        """Both directions together."""
        return self.received + self.sent


class _Network(msgspec.Struct, rename="camel", frozen=True, gc=False):
    time: str = ""
    rx_bytes: int | None = None
    tx_bytes: int | None = None


class _Reference(msgspec.Struct, frozen=True, gc=False):
    uid: str = ""


class _PodStats(msgspec.Struct, rename="camel", frozen=True, gc=False):
    pod_ref: _Reference = _Reference()
    network: _Network | None = None


class _Summary(msgspec.Struct, frozen=True, gc=False):
    pods: tuple[_PodStats, ...] | None = None


class NodeCounters:
    """The counters of a node's pods, by uid: 7 KB for 110 pods, since a round of 1 000 nodes keeps them all."""

    __slots__ = ("_uids", "_values")

    def __init__(self, pods: Iterable[_PodStats]) -> None:
        uids, self._values = [""], array("d")
        for pod in pods:
            seen = pod.network
            if seen is None or seen.rx_bytes is None or seen.tx_bytes is None:
                continue
            # Counters without a time have no rate, and must not pass for quiet.
            if math.isfinite(at := unix_seconds(seen.time)):
                uids.append(pod.pod_ref.uid)
                self._values.extend((at, seen.rx_bytes, seen.tx_bytes))
        self._uids = "\n".join((*uids, ""))

    def get(self, uid: str) -> PodCounters | None:
        """Return a pod's counters, if it has any."""
        place = self._uids.find(f"\n{uid}\n")
        if place < 0 or "\n" in uid:
            return None
        first = 3 * self._uids.count("\n", 0, place)
        at, received, sent = self._values[first : first + 3]
        return PodCounters(at, int(received), int(sent))

    def __len__(self) -> int:
        return len(self._values) // 3


def read_summary(data: bytes) -> NodeCounters:
    """Return the counters of the pods that have any. Raises KubeletUnreadable."""
    try:
        return NodeCounters(msgspec.json.decode(data, type=_Summary).pods or ())
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
        raise KubeletUnreadable("its answer at /stats/summary cannot be read") from None


class KubeletAccess:
    """The token and the trust with which kubelets are asked, renewed in time.

    `account`: the ServiceAccount, as namespace/name; empty if the installation reads no kubelet.
    """

    def __init__(self, client: Client | None, account: str, *, insecure: bool = False) -> None:
        self._client = client
        self._namespace, _, self._name = account.partition("/")
        self._insecure = insecure
        self._made: tuple[str, ssl.SSLContext] | None = None
        self._until = 0.0
        self._renewal = asyncio.Lock()

    async def get(self) -> tuple[str, ssl.SSLContext]:
        """Return token and TLS context. Raises KubeletUnreadable."""
        if self._client is None or not self._name:
            raise KubeletUnreadable(
                "this installation may not read kubelets: install it for the whole cluster and without"
                " --no-kubelet-stats, or use another trigger"
            )
        async with self._renewal:
            if self._made is None or asyncio.get_running_loop().time() >= self._until:
                self._made = await self._token(self._client), await self._trust(self._client)
                self._until = asyncio.get_running_loop().time() + 0.75 * _TOKEN_SECONDS
            return self._made

    def forget(self) -> None:
        """Get another token the next time: this one was refused."""
        self._made = None

    async def _token(self, client: Client) -> str:
        accounts = client.resource("v1/serviceaccounts", namespace=self._namespace)
        asked = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenRequest",
            "metadata": {"name": self._name},
            "spec": {"expirationSeconds": _TOKEN_SECONDS},
        }
        try:
            found = await accounts.subresource("token").create(self._name, asked)
        except (NotFound, Forbidden) as error:
            raise KubeletUnreadable(
                f"no token of ServiceAccount {self._namespace}/{self._name} is available"
                f" ({type(error).__name__}): elasti install creates the account and its permission"
            ) from None
        except KubeError as error:
            raise KubeletUnreadable(
                f"the API server issued no token ({type(error).__name__})"
            ) from None
        return str(found["status"]["token"])

    async def _trust(self, client: Client) -> ssl.SSLContext:
        """Return a context with the CA of our own, and without any certificate that it may present."""
        ours = await client.config.credentials.ssl_context()
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        if self._insecure:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        elif ours is not None and (authorities := ours.get_ca_certs(binary_form=True)):
            context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            context.load_verify_locations(cadata=b"".join(authorities))
        return context


class Kubelets:
    """Reads nodes by address. Close it."""

    def __init__(
        self, access: KubeletAccess, *, port: int = _DEFAULT_PORT, timeout: float = _TIMEOUT
    ) -> None:
        self._access = access
        self._port = port
        self._timeout = timeout
        # Each that is kept costs 0.17 MiB, and saves half of the CPU of its next read.
        self._http = HttpClient(most_idle=_MOST_KEPT)
        self._gate = asyncio.Semaphore(_AT_ONCE)
        self._known: dict[str, tuple[float, asyncio.Future[NodeCounters]]] = {}
        self.reads = 0

    async def counters(self, address: str, *, max_age: float) -> NodeCounters:
        """Return a node's counters by pod, no older than `max_age` seconds. Raises KubeletUnreadable."""
        now = asyncio.get_running_loop().time()
        at, asked = self._known.get(address, (-max_age, None))
        if asked is None or asked.cancelled() or (asked.done() and now - at >= max_age):
            asked = self._start(lambda: self._read(address))
            self._known[address] = now, asked
        return await asyncio.shield(asked)

    def _start(
        self, make: Callable[[], Coroutine[Any, Any, NodeCounters]]
    ) -> asyncio.Future[NodeCounters]:
        task = asyncio.ensure_future(make())
        # The trigger that asked may be gone by the time that it fails.
        task.add_done_callback(lambda done: done.cancelled() or done.exception())
        return task

    async def _read(self, address: str) -> NodeCounters:
        token, context = await self._access.get()
        host = url_host(address)
        where = f"the kubelet at {host}:{self._port}"
        async with self._gate:
            self.reads += 1
            try:
                async with self._http.request(
                    "GET",
                    f"https://{host}:{self._port}/stats/summary",
                    headers={"Authorization": f"Bearer {token}"},
                    tls=context,
                    timeout=self._timeout,
                ) as answer:
                    if answer.status != 200:
                        raise KubeletUnreadable(f"{where} {self._refusal(answer.status)}")
                    return read_summary(await answer.body(limit=_MAX_BYTES))
            except AnswerTooLong:
                raise KubeletUnreadable(
                    f"{where} answers with more than {_MAX_BYTES >> 20} MiB at /stats/summary, which is not read: check"
                    " what it runs, or use another trigger"
                ) from None
            except (OSError, FramingError) as error:
                cause = error.cause if isinstance(error, ConnectFailed) else error
                if not isinstance(cause, ssl.SSLError):
                    timely = not isinstance(cause, TimeoutError)
                    why = "cannot be reached" if timely else "did not answer in time"
                    raise KubeletUnreadable(
                        f"{where} {why} ({type(cause).__name__}): let the operator's pods reach port"
                        f" {self._port} of every node"
                    ) from None
                raise KubeletUnreadable(
                    f"{where} has no certificate of the cluster's CA for its address: let kubelets"
                    " request one (serverTLSBootstrap: true), or accept any with elasti install"
                    f" --kubelet-insecure-tls ({KUBELET_INSECURE_TLS}=true)"
                ) from None

    def _refusal(self, status: int) -> str:
        if status == 401:
            self._access.forget()
        if status in (401, 403):
            return (
                f"refuses ({status}): it must accept ServiceAccount tokens (authentication.webhook) and"
                " ask the API server (authorization.mode: Webhook), and the account needs get on"
                " nodes/stats"
            )
        return f"answered {status} at /stats/summary: this node has no statistics to read"

    def end_round(self) -> None:
        """Forget failures, to read them again, and nodes that no trigger needs."""
        now = asyncio.get_running_loop().time()
        for address, (at, asked) in list(self._known.items()):
            failed = asked.done() and (asked.cancelled() or asked.exception() is not None)
            if failed or now - at > _FORGET_AFTER:
                del self._known[address]

    async def close(self) -> None:
        """Cancel reads, and close connections."""
        pending = [asked for _, asked in self._known.values() if not asked.done()]
        for asked in pending:
            asked.cancel()
        await asyncio.gather(*pending, return_exceptions=True)
        await self._http.aclose()
