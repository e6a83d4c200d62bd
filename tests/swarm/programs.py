"""Operators and resolvers, as shipped: their composition roots, with the seams that a run in memory needs.

Other than in a pod: the election runs on the same loop (`LeaderElector`, without its thread), sockets are the
network's, a Prometheus trigger reads the apps' own books, and callers are not authenticated.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import random
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any
from unittest import mock

import aiohttp.connector

from elasti.operator.app import OperatorApp, election_config
from elasti.operator.settings import OperatorSettings
from elasti.resolver.admin import AdminServer
from elasti.resolver.app import Worker
from elasti.resolver.proxy.limits import Limits
from elasti.resolver.settings import ResolverSettings
from elasti.triggers.reader import ReadContext, ReaderSettings, TriggerReader, TriggerReading
from kubeloop.controller import ElectionConfig
from kubeloop.controller.election.elector import LeaderCallbacks, LeaderElector
from kubeloop.controller.election.lease_keeper import ApiLease
from kubeloop.informer.gc_pause import PROCESS_GC
from kubeloop.testing.virtual_time import VirtualClock
from tests.swarm import network as memory
from tests.swarm.books import Books
from tests.swarm.cluster import OPERATOR_SERVICE, RESOLVER_SERVICE, Cluster
from tests.swarm.loop import Process, SwarmLoop

ENGAGE_SETTLE = 5.0
RELEASE_SETTLE = 2.0
RESOLVER_LOSS_GRACE = 15.0
OPERATOR_ADDRESS = "10.0.1.1"


class SteppedClock(VirtualClock):
    """A wall clock that may be wrong."""

    def __init__(self, process: Process) -> None:
        super().__init__()
        self._process = process

    def now(self) -> dt.datetime:
        return super().now() + dt.timedelta(seconds=self._process.clock_error)


class _Election:
    """An election on the program's own loop."""

    def __init__(self, config: ElectionConfig, client: Any, clock: SteppedClock) -> None:
        self._elector = LeaderElector(config=config, lease=ApiLease(client, config), clock=clock)

    @property
    def is_leader(self) -> bool:
        return self._elector.is_leader

    @property
    def former_renewal(self) -> str:
        return self._elector.former_renewal

    def check(self, tolerance: float = 20.0) -> None:
        self._elector.check(tolerance)

    async def run(self, callbacks: LeaderCallbacks) -> None:
        await self._elector.run(callbacks)


class _Operator(OperatorApp):
    election_client: Any = None

    def _make_election(self, open_client: Any) -> Any:
        clock: Any = self._clock
        config = election_config(self.settings, self._identity)
        return _Election(config, open_client(), clock)


class _BookReader(TriggerReader):
    """Reads the apps' books as a Prometheus would."""

    books: Books
    scrape: float

    def __init__(self, _settings: ReaderSettings) -> None:
        pass

    async def read(self, metadata: Any, _context: ReadContext) -> TriggerReading:
        now = asyncio.get_running_loop().time()
        return TriggerReading(self.books.rate(metadata.query, now - self.scrape))


class _NoCollector:
    """Python's collector, left alone: a program that is killed would keep it frozen, and each run's objects alive."""

    @staticmethod
    def isenabled() -> bool:
        return False

    def _nothing(self) -> None:
        """Do nothing."""

    enable = disable = freeze = unfreeze = collect = _nothing


class _Asked:
    """A resolver's view; that it answered that all is quiet is a moment at which much can come."""

    def __init__(self, view: Any, moment: Callable[[str, str], None]) -> None:
        self._view, self._moment = view, moment

    def __getattr__(self, name: str) -> Any:
        return getattr(self._view, name)

    async def activity(self, key: Any, *, hold: bool | None = None) -> Any:
        report = await self._view.activity(key, hold=hold)
        if report is not None and not report.open and not report.held:
            self._moment("a resolver is quiet", key.service)
        return report


class Programs:
    """The installation: so many operators and resolvers, killed and started again."""

    def __init__(self, cluster: Cluster) -> None:
        self.cluster, self.server, self.network = cluster, cluster.server, cluster.network
        self.loop, self.books = cluster.loop, cluster.books
        self.running: dict[str, Process] = {}
        self._workers: dict[Process, Worker | OperatorApp] = {}
        self._stops: dict[Process, asyncio.Event] = {}
        self._numbers = {OPERATOR_SERVICE: 0, RESOLVER_SERVICE: 0}
        self.crashes: list[str] = []
        #: How often an operator looks at a target to which nothing happens.
        self.polling = 3.0
        #: Called with a moment, and the app that it is about or nothing.
        self.moment: Callable[[str, str], None] = lambda _name, _app: None

    def start(self, service: str) -> Process:
        """Start one more replica, as a new pod."""
        self._numbers[service] += 1
        number = self._numbers[service]
        kind, net = ("operator", 8) if service == OPERATOR_SERVICE else ("resolver", 9)
        return self._boot(service, f"{kind}-{number}", f"10.{net}.0.{number}", number % 2)

    def _boot(self, service: str, name: str, address: str, node: int) -> Process:
        process = Process(name, address, node)
        self.running[name] = process
        self.network.addresses[address] = process
        self.books.say(self.loop.now, f"{name} starts")
        work = self._operate if service == OPERATOR_SERVICE else self._resolve
        process.start(self._guard(process, work(process)), "main")
        process_watch = self.cluster.process.start(
            self._follow(service, process), f"kubelet of {name}"
        )
        del process_watch
        return process

    async def _guard(self, process: Process, work: Any) -> None:
        try:
            await work
        except Exception as error:
            self.crashes.append(f"{process.name} ended: {type(error).__name__}: {error}")
            self.books.say(self.loop.now, f"{process.name} failed")

    async def _operate(self, process: Process) -> None:
        settings = OperatorSettings(
            polling_interval=self.polling,
            workers=4,
            engage_settle=ENGAGE_SETTLE,
            release_settle=RELEASE_SETTLE,
            resolver_loss_grace=RESOLVER_LOSS_GRACE,
            identity=process.name,
            health_port=0,
            authenticate=False,
        )
        app = _Operator(
            settings,
            client=self.server.client(process),
            open_client=lambda: self.server.client(process),
            clock=SteppedClock(process),
        )
        self._workers[process] = app
        stop = self._stops[process] = asyncio.Event()
        running = asyncio.create_task(app.run())
        stopping = asyncio.create_task(stop.wait())
        await asyncio.wait([running, stopping], return_when=asyncio.FIRST_COMPLETED)
        stopping.cancel()
        app.stop()
        await running

    async def _resolve(self, process: Process) -> None:
        settings = ResolverSettings(
            engage_settle=ENGAGE_SETTLE,
            operator_url=f"http://{OPERATOR_ADDRESS}:8013",
            pod_address=process.address,
            drain_timeout=60.0,
            authenticate=False,
        )
        worker = Worker(self.server.client(process), settings, limits=Limits.for_descriptors(2000))
        self._workers[process] = worker
        stop = self._stops[process] = asyncio.Event()
        view: Any = _Asked(worker.view, self.moment)
        admin = AdminServer(view, callers=None)
        await admin.start(port=8013)
        async with worker.running(stop):
            if worker.is_ready:
                await stop.wait()
            if worker.is_ready or worker.listeners.ports:
                await worker.leave()
        await admin.aclose()

    def is_ready(self, process: Process) -> bool:
        worker = self._workers.get(process)
        if worker is None or not process.alive:
            return False
        return worker.is_synced if isinstance(worker, OperatorApp) else worker.is_ready

    def connections(self, name: str, port: int) -> int | None:
        """Return how many connections a resolver counts on a port; None if it cannot be asked."""
        worker = self._workers.get(self.running.get(name))  # type: ignore[arg-type]
        if not isinstance(worker, Worker):
            return None
        listeners = [*worker.listeners._listeners()]
        keys = {one.claim.key for one in listeners if one.sock.port == port}  # type: ignore[attr-defined]
        if not keys:
            return None
        return sum(one.connections for key, one in worker.listeners.handlers() if key in keys)

    def leads(self, process: Process) -> bool:
        worker = self._workers.get(process)
        return isinstance(worker, OperatorApp) and process.alive and worker.manager.is_leader

    async def _follow(self, service: str, process: Process) -> None:
        """Keep a replica's readiness in its Service's slice, a little late."""
        known: list[tuple[Process, bool]] = self.cluster.programs.setdefault(service, [])
        known.append((process, False))
        shown = False
        self.cluster.list_programs(service)
        while any(process is one for one, _ in known):
            # A probe that succeeds goes on at its period; what is not ready yet is looked at often.
            await asyncio.sleep(self.loop.random.uniform(0.1, 2.0 if shown else 0.6))
            ready = self.is_ready(process)
            if ready is not shown:
                shown = ready
                known[:] = [(one, shown if one is process else was) for one, was in known]
                self.books.say(self.loop.now, f"{process.name} ready: {ready}")
                self.cluster.list_programs(service)

    # What happens to them

    def crash(self, process: Process, back_after: float) -> None:
        """End a program without notice; its container starts again."""
        self.books.say(self.loop.now, f"{process.name} crashes")
        service = OPERATOR_SERVICE if process.name.startswith("operator") else RESOLVER_SERVICE
        self.network.kill(process)
        self._forget(service, process, listed=False)
        args = (service, process.name, process.address, process.node)
        self.loop.call_later(back_after, self._boot, *args, context=self.cluster.process.context)

    async def roll(self, process: Process) -> None:
        """Replace a replica: another is ready for the cluster, too, then it is asked to end."""
        service = OPERATOR_SERVICE if process.name.startswith("operator") else RESOLVER_SERVICE
        another = self.start(service)
        for _ in range(600):
            listed = self.cluster.programs.get(service, ())
            if any(one is another and ready for one, ready in listed) or not process.alive:
                break
            await asyncio.sleep(0.1)
        if not process.alive or process not in self._stops:
            return
        self.books.say(self.loop.now, f"{process.name} is asked to end")
        self.moment("a program ends", "")
        self._forget(service, process, listed=False)
        process.left_at = self.loop.now
        self._stops[process].set()
        for _ in range(900):
            if all(task.done() for task in process.tasks):
                break
            await asyncio.sleep(0.1)
        self.network.kill(process)
        self.network.addresses.pop(process.address, None)

    def _forget(self, service: str, process: Process, *, listed: bool) -> None:
        self.running.pop(process.name, None)
        known = self.cluster.programs.get(service, [])
        if not listed:
            known[:] = [(one, ready) for one, ready in known if one is not process]
            self.cluster.list_programs(service)


@contextlib.contextmanager
def in_memory(seed: int, loop: SwarmLoop, books: Books, scrape: float) -> Iterator[None]:
    """Put the seams in place: sockets, clocks and chance."""
    listeners = "elasti.resolver.ports.listeners."
    draw = random.Random(seed)

    async def reserve(addr_infos: Any, **_options: Any) -> tuple[str, int]:
        await asyncio.sleep(0)
        return tuple(addr_infos[0][4][:2])

    _BookReader.books, _BookReader.scrape = books, scrape
    random.seed(seed)
    patches: list[Any] = [
        mock.patch(listeners + "bound_socket", memory.bound_socket),
        mock.patch(listeners + "Acceptor", memory.MemoryAcceptor),
        mock.patch(listeners + "stop_new_handshakes", memory.stop_new_handshakes),
        mock.patch(listeners + "accept_queue_length", memory.accept_queue_length),
        mock.patch("elasti.triggers.prometheus.make_reader", _BookReader),
        mock.patch("aiohappyeyeballs.start_connection", reserve),
        mock.patch.object(aiohttp.connector, "monotonic", loop.time),
        mock.patch.object(PROCESS_GC, "_control", _NoCollector()),
        mock.patch("kubeloop.aio.clock.SystemClock.now", VirtualClock().now),
        mock.patch.object(time, "monotonic", loop.time),
        mock.patch.object(secrets, "token_hex", lambda size=4: f"{draw.getrandbits(8 * size):x}"),
    ]
    with contextlib.ExitStack() as stack:
        for patch in patches:
            stack.enter_context(patch)
        yield
