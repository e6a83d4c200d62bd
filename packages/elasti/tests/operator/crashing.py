"""`elasti operator` as a process that dies at any write, and lives again.

Between the operator and the API server stands a relay. Armed, it lets so many writes through and ends
the process with SIGKILL after the server has answered the last of them and before the operator knows:
what is in the cluster then is what any later crash before the next write leaves, so all of them together
are every state in which the operator can die. Nothing in the operator knows of it.

A `Case` is a namespace of its own with an operator that watches only it, so that many run at once.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import hashlib
import os
import secrets
import signal
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import aiohttp
from tests.controllers.support import Cluster
from tests.operator.accounts import Account, confined_operator
from tests.operator.api_relay import ApiRelay, Call, Cut
from tests.operator.fakes import FakePrometheus, FakeResolver, loopback
from tests.operator.rig import Rig

from kubeloop.aio.tasks import finish
from kubeloop.client import NotFound
from kubeloop.objects.patches import MergePatch
from tests.waiting import eventually

_SHOWN = "10.77.111.222"
_ROOT = Path(__file__).resolve().parents[4]
_HURRY = {
    "ELASTI_ENGAGE_SETTLE": "0.3s",
    "ELASTI_RELEASE_SETTLE": "0.1s",
    "ELASTI_FINALIZE_WAIT": "20s",
    "POLLING_INTERVAL": "0.2s",
}
_PATIENCE = 120.0

Point = Callable[[int, Call], bool]
"""Whether the process dies after a write, of which so many have been made."""


def after(count: int) -> Point:
    """Die after so many writes; none: before the first."""
    return lambda number, _call: number == count


def after_first(method: str, part: str) -> Point:
    """Die after the first write of a kind."""
    return lambda _number, call: call.method == method and part in call.path


class OperatorProcess:
    """A process that can be ended at a point and is started again by `revive`."""

    def __init__(self, relay: ApiRelay, kubeconfig: Path, namespace: str, admin_port: int) -> None:
        self._relay = relay
        self._host = loopback()
        self._log = kubeconfig.with_suffix(".log")
        self._environment = {
            **{name: os.environ[name] for name in ("PATH", "HOME", "LANG") if name in os.environ},
            **_HURRY,
            "KUBECONFIG": str(kubeconfig),
            "WATCH_NAMESPACES": namespace,
            "ELASTI_OPERATOR_HOST": self._host,
            "ELASTI_RESOLVER_PORT": str(admin_port),
            "PYTHONPATH": os.pathsep.join(sys.path),
        }
        self._process: asyncio.subprocess.Process | None = None
        self._point: Point | None = None
        self.counted = 0
        self.deaths = 0
        self._died = asyncio.Event()
        relay.before, relay.after = self._before, self._after

    @property
    def log(self) -> str:
        return self._log.read_text()

    async def start(self) -> None:
        """Start it; it serves when this returns."""
        command = [sys.executable, "-m", "elasti", "operator", "--no-leader-elect"]
        command += ["--no-authenticate", "--health-probe-port", "0", "--log-level", "info"]
        with self._log.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *command, env=self._environment, stdout=log, stderr=log, cwd=_ROOT
            )

    async def ready(self) -> None:
        """Wait until its caches are filled."""
        async with aiohttp.ClientSession() as session:

            async def is_ready() -> bool:
                assert self._process is not None
                assert self._process.returncode is None, self.log
                with contextlib.suppress(aiohttp.ClientError, OSError):
                    async with session.get(f"http://{self._host}:8013/readyz") as answer:
                        return answer.status == 200
                return False

            await eventually(is_ready, timeout=_PATIENCE, every=0.05)

    def arm(self, point: Point | None) -> None:
        """Count writes from now on, and die at a point, once."""
        self._point, self.counted = point, 0

    async def revive(self) -> None:
        """Start it again as soon as it has died; for ever, until cancelled."""
        while True:
            await self._died.wait()
            self._died.clear()
            assert self._process is not None
            assert await self._process.wait() == -signal.SIGKILL
            await self.start()

    async def stop(self) -> None:
        if self._process is not None and self._process.returncode is None:
            self._process.kill()
            await self._process.wait()

    async def ask(self, namespace: str) -> None:
        """Ask for a wake-up again and again, as a resolver does while somebody waits."""
        body = {"count": 1, "svc": "web", "namespace": namespace}
        url = f"http://{self._host}:8013/informer/incoming-request"
        async with aiohttp.ClientSession() as session:
            while True:
                with contextlib.suppress(aiohttp.ClientError, OSError):
                    async with session.post(url, json=body) as answer:
                        await answer.read()
                await asyncio.sleep(0.3)

    def _before(self, call: Call) -> None:
        if self._point is not None and not self.counted and self._point(0, call):
            self._die()

    def _after(self, call: Call) -> None:
        self.counted += 1
        if self._point is not None and self._point(self.counted, call):
            self._die()

    def _die(self) -> None:
        self._point = None
        assert self._process is not None
        self._process.kill()
        self.deaths += 1
        self._died.set()
        raise Cut


@dataclasses.dataclass(frozen=True)
class Case:
    """A namespace, an operator for it, and what they need."""

    rig: Rig
    operator: OperatorProcess
    prometheus: FakePrometheus
    relay: ApiRelay

    @contextlib.contextmanager
    def explained(self, what: str) -> Iterator[None]:
        """Let whatever fails in the block tell what the operator did."""
        try:
            yield
        except Exception as error:
            error.add_note(what)
            error.add_note("\n".join(map(str, self.relay.writes)))
            error.add_note(self.operator.log)
            raise


@dataclasses.dataclass(frozen=True)
class CrashTestbed:
    """What the cases on one server share."""

    __test__ = False  # pytest would take it for one, by its name

    rig: Rig
    resolver: FakeResolver
    account: Account
    directory: Path
    ports: set[int] = dataclasses.field(default_factory=set)

    @contextlib.asynccontextmanager
    async def case(self) -> AsyncIterator[Case]:
        """Make a namespace and an operator's way to the server; the operator is not started."""
        rig = await self._rig()
        shown, address = self.resolver.shown.encode(), self.resolver.address.encode()
        relay = ApiRelay.to(
            self.rig.cluster.kubeconfig,
            token=await self.account.token(),
            translate=[(shown, address)],
        )
        async with relay.running(), FakePrometheus().running() as prometheus:
            path = relay.kubeconfig(self.directory / f"{rig.namespace}.kubeconfig")
            operator = OperatorProcess(relay, path, rig.namespace, self.resolver.admin_port)
            reviving = asyncio.create_task(operator.revive(), name="revive")
            try:
                yield Case(rig, operator, prometheus, relay)
            finally:
                await finish([reviving])
                await operator.stop()
                await self._clear(rig)
            if reviving.done() and not reviving.cancelled():
                reviving.result()

    async def _clear(self, rig: Rig) -> None:
        """Leave nothing that an operator of another test would care for."""
        unbind = MergePatch({"metadata": {"finalizers": None}})
        for item in [item async for item in rig.elastiservices.items()]:
            with contextlib.suppress(NotFound):
                await rig.elastiservices.patch(item["metadata"]["name"], unbind)
        await rig.client.resource("v1/namespaces").delete(rig.namespace)

    async def _rig(self) -> Rig:
        """A namespace whose Service gets a resolver port that no other case has.

        Each case's operator keeps a book of ports of its own, and they share a resolver.
        """
        while True:
            name = f"crash-{secrets.token_hex(4)}"
            digest = hashlib.sha256(f"{name}/web:80".encode()).digest()
            port = int.from_bytes(digest[:8], "big") % 10000
            if port not in self.ports:
                break
        self.ports.add(port)
        await self.rig.client.resource("v1/namespaces").create({"metadata": {"name": name}})
        old = self.rig.cluster
        cluster = Cluster(old.client, old.kubelet, old.kubeconfig, name)
        rig = Rig(cluster, self.resolver, self.rig.settings, self.rig.config)
        await confined_operator(rig, self.directory, name)
        return rig


@contextlib.asynccontextmanager
async def crash_testbed(rig: Rig, directory: Path, *, real: bool) -> AsyncIterator[CrashTestbed]:
    """Everything that cases share, on a rig's server."""
    address = loopback()
    while len(address) != len(_SHOWN):
        address = loopback()
    resolver = FakeResolver(rig.client, address, 0, shown=_SHOWN if real else "")
    account = await Account(rig, "confined-operator").create()
    async with resolver.running():
        await rig.list_resolvers(resolver.endpoint())
        yield CrashTestbed(rig, resolver, account, directory)
