"""The operator, put together.

Every replica serves wake-ups and keeps warm caches; the leader reconciles. Losing the lease ends the
leader's work and nothing else.
"""

from __future__ import annotations

import functools
import math
import socket
from typing import TYPE_CHECKING

from elasti.api.names import OPERATOR
from elasti.api.wire import OPERATOR_AUDIENCE
from elasti.authn.authenticator import authenticator_for
from elasti.authn.tls import PeerTls
from elasti.operator.autoscalers import AUTOSCALERS
from elasti.operator.autoscalers.base import Autoscalers
from elasti.operator.handover.resolver_client import HttpResolverClient, ResolverClientFactory
from elasti.operator.leader import Leader
from elasti.operator.metrics import OperatorMetrics
from elasti.operator.report.events import EventReporter
from elasti.operator.scale_handler import ScaleHandler
from elasti.operator.server import Server
from elasti.operator.waking.requests import WakeRequests
from elasti.operator.waking.waker import Waker
from elasti.operator.watch.caches import OperatorCaches
from elasti.operator.watch.directory import Directory
from elasti.operator.watch.resolvers import ResolverProbes
from elasti.operator.watch.targets import KindWarmer, known_target
from kubeloop.aio.clock import Clock, SystemClock
from kubeloop.controller import (
    ElectionConfig,
    ElectionThread,
    EventRecorder,
    Group,
    HealthChecks,
    HealthServer,
    Manager,
    own_connection,
)
from kubeloop.controller.events.event_types import Reporter as EventSource
from kubeloop.controller.events.recorder import ApiEventSink
from kubeloop.controller.reconcile import Request
from kubeloop.informer import Deleted
from kubeloop.objects.times import unix_seconds

if TYPE_CHECKING:
    from collections.abc import Callable

    from elasti.api.types import ElastiService
    from elasti.operator.settings import OperatorSettings
    from kubeloop.client.client import Client
    from kubeloop.informer.handlers import Notification


class OperatorApp:
    """One replica. `run` goes on until `stop`, or until something fails for good.

    `open_client` makes a client on any loop: the election has a connection of its own.
    `resolver_client` opens the way to resolvers; by default their pods' addresses.
    """

    def __init__(
        self,
        settings: OperatorSettings,
        *,
        client: Client,
        open_client: Callable[[], Client],
        clock: Clock | None = None,
        resolver_client: ResolverClientFactory | None = None,
    ) -> None:
        self.settings = settings
        self._clock = clock or SystemClock()
        self._identity = settings.identity or socket.gethostname()
        self.metrics = OperatorMetrics()
        self._tls = PeerTls(settings.tls_directory, required=settings.tls_required)
        self.metrics.observe_calls_in_clear(lambda: self._tls.in_clear)
        self.directory = Directory()
        self.caches = OperatorCaches.of(client, settings, self.metrics.library)
        manager = self.caches.manager
        self.metrics.observe_watches(manager.counts, manager.restarts)
        self.metrics.observe_clock(self._clock.now)
        self._tracer = None
        if settings.traces_url:
            from elasti.tracing import Tracer  # noqa: PLC0415 -- not if spans go nowhere

            self._tracer = Tracer(settings, OPERATOR)
            self.metrics.tracing = self._tracer.families
        handles = self.caches.elastiservices.add_handler(self.directory.on_event, name="directory")
        self._directory_gates = [handle.gate for _, handle in handles]
        self.caches.elastiservices.add_handler(self._forget, name="metrics")
        scales, autoscalers = ScaleHandler(client), Autoscalers(client, AUTOSCALERS)
        recorder = EventRecorder(
            EventSource(OPERATOR, self._identity), ApiEventSink(client), clock=self._clock
        )
        reporter = EventReporter(recorder)
        waker = Waker(
            client=client,
            scales=scales,
            metrics=self.metrics,
            reporter=reporter,
            clock=self._clock,
            known=lambda target: known_target(client, manager, scales, target),
            tracer=self._tracer,
        )
        self.wake_requests = WakeRequests(
            waker=waker,
            directory=self.directory,
            autoscalers=autoscalers,
            metrics=self.metrics,
            is_synced=lambda: self.is_synced,
            serves=self.caches.serves,
        )
        self._open_resolver_client = resolver_client or self._http_resolver_client
        self._make_leader = functools.partial(
            Leader,
            client=client,
            settings=settings,
            clock=self._clock,
            caches=self.caches,
            directory=self.directory,
            scales=scales,
            autoscalers=autoscalers,
            waker=waker,
            metrics=self.metrics,
            reporter=reporter,
            open_resolver_client=self._open_resolver_client,
        )
        self.authenticator = authenticator_for(
            client,
            settings,
            audience=OPERATOR_AUDIENCE,
            allowed=settings.callers,
            clock=self._clock,
        )
        self.server = self._make_server()
        warmer = KindWarmer(client=client, manager=manager, directory=self.directory, scales=scales)
        self._election = self._make_election(open_client)
        self.manager = Manager(election=self._election, on_lost="standby")
        self._fill_manager(recorder, warmer)
        if settings.tls_secret:
            from elasti.operator.certificates import PeerCertificates  # noqa: PLC0415 -- not if others make them

            certificates = PeerCertificates(client, settings, clock=self._clock)
            self.manager.add(certificates, group=Group.LEADER, name="certificates")

    def _fill_manager(self, recorder: EventRecorder, warmer: KindWarmer) -> None:
        add = self.manager.add
        add(recorder, group=Group.RECORDERS, name="events")
        if self._tracer is not None:
            add(self._tracer.run, group=Group.RECORDERS, name="tracing")
        add(self.server, group=Group.SERVERS, name="server")
        if self.authenticator is not None:
            add(self.authenticator, group=Group.OTHERS, name="authn")
        if self.settings.health_port:
            add(self._health_server(), group=Group.SERVERS, name="health")
        add(self.caches.manager, group=Group.CACHES, name="caches")
        add(warmer, group=Group.OTHERS, name="kinds")
        # On every replica: the next leader knows at once which resolvers are gone.
        add(self._probe_resolvers, group=Group.OTHERS, name="resolvers")
        add(self._lead, group=Group.LEADER, name="leader")

    @property
    def is_synced(self) -> bool:
        """Whether caches and directory are filled, so that "not found" is true."""
        known = all(gate.synced for gate in self._directory_gates)
        return known and self.caches.manager.is_ready

    async def run(self) -> None:
        """Run until stopped. Raises what failed."""
        await self.manager.run()

    def stop(self) -> None:
        """Ask `run` to end in order."""
        self.manager.stop()

    def _forget(self, event: Notification[ElastiService]) -> None:
        """Let the series of an ElastiService go with it, on every replica."""
        if isinstance(event, Deleted):
            meta = event.obj.metadata
            self.metrics.forget(Request(meta.namespace, meta.name))

    def _http_resolver_client(self) -> HttpResolverClient:
        return HttpResolverClient(
            admin_port=self.settings.resolver_admin_port,
            token_file=self.settings.token_file,
            tls=self._tls,
        )

    async def _probe_resolvers(self) -> None:
        async with self._open_resolver_client() as client:
            await ResolverProbes(self.caches.resolvers, client.reachable).run()

    async def _lead(self) -> None:
        # Handlers lag behind their cache; to a leader, who owns what must not be half known.
        for gate in self._directory_gates:
            await gate.wait()
        former = unix_seconds(self._election.former_renewal) if self._election else -math.inf
        await self._make_leader(former_at=former).run()

    def _make_election(self, open_client: Callable[[], Client]) -> ElectionThread | None:
        if not self.settings.leader_elect:
            return None
        config = election_config(self.settings, self._identity)
        return ElectionThread(config=config, lease=own_connection(config, open_client))

    def _make_server(self) -> Server:
        settings = self.settings
        return Server(
            wake_requests=self.wake_requests,
            directory=self.directory,
            authenticator=self.authenticator,
            metrics=self.metrics,
            healthz=HealthChecks("healthz"),
            readyz=self._readiness(),
            is_synced=lambda: self.is_synced,
            host=settings.host,
            port=settings.port,
            tls=self._tls,
        )

    def _health_server(self) -> HealthServer:
        return HealthServer(
            healthz=HealthChecks("healthz"),
            readyz=self._readiness(),
            host=self.settings.host,
            port=self.settings.health_port,
        )

    def _readiness(self) -> HealthChecks:
        def caches() -> None:
            if not self.is_synced:
                missing = "; ".join(self.caches.manager.missing()) or "not begun"
                raise RuntimeError(f"the caches are not filled yet: {missing}")

        return HealthChecks("readyz", {"caches": caches})


def election_config(settings: OperatorSettings, identity: str) -> ElectionConfig:
    """Return the lease's times: another replica leads within 15 s after a leader's node was lost.

    Others see its last renewal up to 2.2 retry periods late, and then the lease has to end. What the lost
    node's resolver would be sent meanwhile is lost, so this is shorter than client-go's default.
    """
    return ElectionConfig(
        namespace=settings.operator_namespace,
        name=settings.lease_name,
        identity=identity,
        lease_duration=11,
        renew_deadline=8.0,
        retry_period=1.5,
        renew_period=4.0,
    )
