"""Builds and runs a resolver worker, from its settings to its last connection.

    await serve(ResolverSettings.from_env(os.environ), stop)

Everything is constructed here and passed down; no module below reads the environment.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import resource
import sys
from typing import TYPE_CHECKING, Any, Self

from elasti.api.names import RESOLVER
from elasti.api.parsing import SettingsError
from elasti.api.types import IgnoreSpec, PageSpec, WakeSpec
from elasti.api.wire import RESOLVER_AUDIENCE
from elasti.authn.authenticator import CallerAuthenticator, authenticator_for
from elasti.authn.tls import PeerTls
from elasti.logger import get_logger
from elasti.resolver.admin import AdminServer
from elasti.resolver.drain import drain
from elasti.resolver.metrics import WorkerView
from elasti.resolver.ports.claims import PortClaims
from elasti.resolver.ports.listeners import ServicePortListeners
from elasti.resolver.ports.shared_port import HostRules, SharedPort
from elasti.resolver.proxy.limits import FEWEST_DESCRIPTORS, Limits
from elasti.resolver.proxy.port_handler import DataPath
from elasti.resolver.readiness.checks import NetworkChecks
from elasti.resolver.readiness.pods import KubePods
from elasti.resolver.services.cache_check import CacheCheck
from elasti.resolver.services.operators import OperatorClient, OperatorReplicas
from elasti.resolver.services.page_source import PageSource
from elasti.resolver.services.registry import ServiceRegistry
from elasti.resolver.services.service import ServiceDeps
from elasti.resolver.services.wake import WakeAnnotation
from elasti.resolver.workers import AggregateView, WorkerSupervisor, until_orphaned
from kubeloop.aio.tasks import BackgroundTasks, finish
from kubeloop.client import Client
from kubeloop.informer import SharedInformerFactory
from kubeloop.informer.reflector.source import FAST_BACKOFF, ReflectorOptions
from kubeloop.metrics.library import LibraryMetrics

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Coroutine, Sequence

    from elasti.resolver.settings import ResolverSettings

_SYNC_TIMEOUT = 60.0
# A safety net: the next resync repairs a lost notification.
_RESYNC = 600.0
# An API server that was restored, or that lies, lists nothing for a moment: no port closes for that.
_DISTRUST_EMPTY = 30.0

_log = get_logger(__name__)


class Worker:
    """One event loop's resolver."""

    def __init__(
        self, client: Client, settings: ResolverSettings, *, limits: Limits | None = None
    ) -> None:
        self._settings = settings
        options = ReflectorOptions(
            backoff=FAST_BACKOFF, survive_defects=True, distrust_empty=_DISTRUST_EMPTY
        )
        library = LibraryMetrics()
        self._factories = [
            SharedInformerFactory(
                client, namespace=namespace, resync=_RESYNC, options=options, metrics=library
            )
            for namespace in settings.watch_namespaces or ("",)
        ]
        self.path = DataPath(limits=limits or _limits(settings))
        self._replicas = OperatorReplicas(
            client, namespace=settings.operator_namespace, service=settings.operator_service
        )
        self.operator = OperatorClient(
            url=settings.operator,
            replicas=self._replicas.urls,
            token_file=settings.operator_token_file,
            tls=_tls(settings),
        )
        claims = PortClaims(settle=settings.engage_settle)
        self._pages = PageSource(client)
        self._tracer = None
        if settings.traces_url:
            from elasti.tracing import Tracer  # noqa: PLC0415 -- not if spans go nowhere

            self._tracer = Tracer(settings, RESOLVER)
        self._deps = ServiceDeps(
            pages=self._pages,
            checks=NetworkChecks(),
            pods=KubePods(client),
            operator=self.operator,
            tracer=self._tracer,
            # Looked up at each call: the registry is made below.
            find=lambda key: self.registry.get(key),  # noqa: PLW0108
            durable=WakeAnnotation(client, object_name=lambda key: self.registry.object_name(key)),  # noqa: PLW0108
        )
        self.registry = ServiceRegistry(
            factories=self._factories,
            deps=self._deps,
            claims=claims,
            bounds=_wake_bounds(settings),
            workers=settings.workers,
        )
        self._cache_check = CacheCheck(client, self.registry)
        reuse = settings.workers > 1
        self.listeners = ServicePortListeners(
            path=self.path,
            claims=claims,
            upstream=self.registry.port,
            host=settings.host,
            reuse_port=reuse,
            closed=self.registry.unbound,
        )
        self.registry.attach(self.listeners)
        self.shared = SharedPort(
            path=self.path,
            registry=self.registry,
            rules=HostRules(cluster_domain=settings.cluster_domain),
            header=settings.header_for_host,
        )
        self.shared_port = 0
        self._listed = asyncio.Event()
        self._why_unready = "the caches are not complete yet"
        self.view = WorkerView(
            registry=self.registry,
            shared=self.shared,
            listeners=self.listeners,
            operator=self.operator,
            unready=lambda: self._why_unready,
            library=library,
            tracing=self._tracer.families if self._tracer is not None else tuple,
        )

    @property
    def is_ready(self) -> bool:
        """Whether it serves. If not, it is starting, draining, or was stopped before it had started."""
        return not self._why_unready

    @contextlib.asynccontextmanager
    async def running(self, stop: asyncio.Event | None = None) -> AsyncIterator[Self]:
        """Watch, listen and serve; ready once every cache is complete and every port is bound.

        If `stop` is set earlier, it yields without being ready.
        """
        async with contextlib.AsyncExitStack() as stack:
            await stack.enter_async_context(self.operator)
            if self._tracer is not None:
                tracing = asyncio.create_task(self._tracer.run(), name="tracing")
                stack.push_async_callback(finish, [tracing])
            self.path.start()
            stack.push_async_callback(self._close)
            listening = asyncio.create_task(self._listen(), name="listeners")
            stack.push_async_callback(finish, [listening])
            for factory in (*self._factories, self._replicas.factory):
                await stack.enter_async_context(factory.running())
            await _unless_stopped(stop, self._get_ready())
            checking = asyncio.create_task(self._cache_check.run(), name="cache check")
            stack.push_async_callback(finish, [checking])
            yield self

    async def _listen(self) -> None:
        # The first decision about a port counts: it needs every claim, not the first that was listed.
        await self._listed.wait()
        await self.listeners.run()

    async def _get_ready(self) -> None:
        for factory in self._factories:
            await factory.wait_for_sync(timeout=_SYNC_TIMEOUT)
        self._listed.set()
        await self.listeners.settled()
        if self._settings.shared_port:
            self.shared_port = await self.shared.start(
                self._settings.host,
                self._settings.shared_port,
                reuse_port=self._settings.workers > 1,
            )
        self._why_unready = ""
        _log.info("serving", services=len(self.registry))

    async def leave(self) -> bool:
        """Drain. Returns whether every request finished in time."""
        self._why_unready = "shutting down"
        self._deps.leaving = True
        settings = self._settings
        return await drain(self, settle=settings.engage_settle, timeout=settings.drain_timeout)

    # Drainable

    def is_listed(self) -> bool:
        """Whether an EndpointSlice lists this resolver."""
        address = self._settings.pod_address
        return bool(address) and self.registry.is_listed(address)

    def waiting(self) -> int:
        """How many connections are in accept queues."""
        return self.listeners.waiting() + self.shared.waiting()

    def busy(self) -> int:
        """How many requests and tunnels are active or held."""
        handlers = [*self.listeners.handlers(), *self.shared.handlers()]
        # A Service's ports share one counter. Deleted Services may still have connections.
        counted = {handler.statistics for _, handler in handlers}
        return sum(count.in_use for count in counted)

    def stop_new_handshakes(self) -> None:
        """Refuse new handshakes; connections in accept queues are still accepted."""
        self.listeners.stop_new_handshakes()
        self.shared.stop_new_handshakes()

    def stop_accepting(self) -> None:
        """Close every listening socket."""
        self.listeners.stop_accepting()
        self.shared.close()

    async def _close(self) -> None:
        self.shared.close()
        self.shared.break_all()
        await self.registry.aclose()
        await self._pages.aclose()
        await self.path.aclose()


def raise_descriptor_limit() -> int:
    """Raise the limit of open files as far as the system allows. Returns the limit."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    with contextlib.suppress(ValueError, OSError):
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return resource.getrlimit(resource.RLIMIT_NOFILE)[0]


def check_descriptors() -> None:
    """Raise SettingsError if there are too few descriptors to serve anyone."""
    if (limit := raise_descriptor_limit()) < FEWEST_DESCRIPTORS:
        raise SettingsError(
            f"the limit of open files (RLIMIT_NOFILE) is {limit}, and the resolver needs {FEWEST_DESCRIPTORS} for"
            " itself and a few connections; raise it: `ulimit -n`, or LimitNOFILE of the container runtime"
        )


def _limits(settings: ResolverSettings) -> Limits:
    sized = Limits.for_descriptors(raise_descriptor_limit())
    most = settings.client_connections
    return dataclasses.replace(
        sized,
        max_idle_per_pod=settings.idle_per_pod,
        # Workers are processes of one container.
        held_memory=sized.held_memory // settings.workers,
        max_per_client=sized.max_per_client if most is None else max(most // settings.workers, 1),
        unlimited_clients=settings.unlimited_clients,
    )


def _wake_bounds(settings: ResolverSettings) -> WakeSpec:
    """Return the installation's upper bounds for `spec.wake`."""
    return WakeSpec(
        timeout_seconds=settings.hold_timeout or 86400,
        max_held=settings.max_held or 1_000_000,
        page=PageSpec(mode=settings.waiting_page),
        ignore=IgnoreSpec(presets=settings.ignored_requests),
    )


async def serve(settings: ResolverSettings, stop: asyncio.Event, *, admin_socket: str = "") -> bool:
    """Run one worker and its admin server until `stop` is set. Returns whether it drained cleanly.

    With `admin_socket` it is one of several workers, and a supervisor serves the admin port.
    """
    async with contextlib.AsyncExitStack() as stack:
        client = await stack.enter_async_context(Client.from_env())
        worker = Worker(client, settings)
        checked = _callers(client, settings) if not admin_socket else contextlib.nullcontext()
        callers = await stack.enter_async_context(checked)
        admin = AdminServer(worker.view, callers=callers, tls=_tls(settings))
        await admin.start(host=settings.host, port=settings.admin_port, path=admin_socket)
        stack.push_async_callback(admin.aclose)
        async with worker.running(stop):
            if worker.is_ready:
                await _until_stopped(stop, has_supervisor=bool(admin_socket))
            # A worker that was stopped early may already listen on some ports.
            return await worker.leave() if worker.is_ready or worker.listeners.ports else True


async def _unless_stopped(stop: asyncio.Event | None, work: Coroutine[Any, Any, None]) -> None:
    """Run `work` unless `stop` is set before it is done."""
    doing = asyncio.create_task(work)
    stopping = asyncio.create_task(stop.wait()) if stop is not None else None
    try:
        await asyncio.wait(
            [doing, stopping] if stopping else [doing], return_when=asyncio.FIRST_COMPLETED
        )
        if doing.done():
            doing.result()
    finally:
        await finish([doing, stopping] if stopping else [doing])


async def _until_stopped(stop: asyncio.Event, *, has_supervisor: bool) -> None:
    """Wait for `stop`, or until the supervisor, which would pass it on, is gone."""
    waits: list[asyncio.Task[object]] = [asyncio.create_task(stop.wait())]
    if has_supervisor:
        waits.append(asyncio.create_task(until_orphaned(sys.stdin)))
    try:
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await finish(waits)


async def supervise(
    settings: ResolverSettings,
    stop: asyncio.Event,
    *,
    commands: Sequence[Sequence[str]],
    sockets: Sequence[str],
) -> None:
    """Run several workers behind one admin port until `stop` is set."""
    async with Client.from_env() as client, _callers(client, settings) as callers:
        admin = AdminServer(AggregateView(sockets), callers=callers, tls=_tls(settings))
        await admin.start(host=settings.host, port=settings.admin_port)
        try:
            await WorkerSupervisor(commands).run(stop)
        finally:
            await admin.aclose()


def _tls(settings: ResolverSettings) -> PeerTls:
    return PeerTls(settings.tls_directory, required=settings.tls_required)


@contextlib.asynccontextmanager
async def _callers(
    client: Client, settings: ResolverSettings
) -> AsyncIterator[CallerAuthenticator | None]:
    """Authenticate callers of /activity. The log names the method."""
    callers = authenticator_for(
        client, settings, audience=RESOLVER_AUDIENCE, allowed=settings.callers
    )
    async with BackgroundTasks() as tasks:
        if callers is not None:
            tasks.start(callers.run(), name="callers")
        yield callers
