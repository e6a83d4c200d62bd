"""A whole program from operators: connection, definitions, election, caches, health, metrics, signals."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
import uuid
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

from kubeloop import webhook
from kubeloop.client.client import Client
from kubeloop.client.errors import Forbidden, KubeError
from kubeloop.client.waiting import has_condition, wait_for
from kubeloop.controller.election.lease import ElectionConfig
from kubeloop.controller.election.lease_keeper import own_connection
from kubeloop.controller.election.thread import ElectionThread
from kubeloop.controller.events.recorder import EventRecorder
from kubeloop.controller.manager.manager import LeaderElectionLost, Manager, run_until_signal
from kubeloop.controller.manager.runnables import Caches, Group
from kubeloop.http.health import Check, HealthChecks, HealthServer
from kubeloop.informer.factory import SharedInformerFactory
from kubeloop.informer.sync import NotSynced
from kubeloop.metrics.library import LibraryMetrics
from kubeloop.metrics.text import MetricFamily, exposition

if TYPE_CHECKING:
    from kubeloop.operator.operator import Operator
    from kubeloop.webhook.admission import Admission

_DEFINITIONS = "apiextensions.k8s.io/v1/customresourcedefinitions"


class _Definitions:
    """Creates the operators' definitions; ready when the server serves them."""

    def __init__(self, client: Client, operators: Sequence[Operator[Any]]) -> None:
        self._client = client
        self._operators = [one for one in operators if one.definition is not None]
        self._served = asyncio.Event()

    async def run(self) -> None:
        """Apply each, and wait until it is served."""
        for operator in self._operators:
            assert operator.definition is not None
            try:
                made = await self._client.apply(
                    operator.definition, manager=operator.name, force=True
                )
            except Forbidden as error:
                error.add_note(
                    "apply the CustomResourceDefinition yourself, and give the Operator no definition=,"
                    " or allow the operator get, list, watch, create and patch on"
                    " customresourcedefinitions"
                )
                raise
            served = self._client.resource(_DEFINITIONS)
            await wait_for(served, made["metadata"]["name"], has_condition("Established"))
        self._served.set()

    async def wait_until_ready(self) -> None:
        """Wait until all are served."""
        await self._served.wait()


def make_manager(
    client: Client,
    *operators: Operator[Any],
    admission: Admission | None = None,
    namespace: str = "",
    election: ElectionThread | None = None,
    health_port: int | None = 8081,
    metrics: Callable[[], Iterable[MetricFamily]] = tuple,
) -> Manager:
    """Put a program together; nothing runs yet.

    `admission` has the program's webhooks. `namespace` limits the caches to one namespace.
    `health_port` serves /healthz, /readyz and /metrics; None serves nothing. `metrics` returns
    families of your own, which /metrics shows after the library's.
    """
    counts = LibraryMetrics()
    factory = SharedInformerFactory(client, namespace=namespace, metrics=counts)
    manager = Manager(election=election)
    for operator in operators:
        recorder = EventRecorder(operator.name, client)
        manager.add(recorder, group=Group.RECORDERS, name=f"events of {operator.name}")
        controller = operator.controller(client, factory, recorder, metrics=counts)
        manager.add(controller, warm=True)
    caches = Caches(factory, sync_timeout=60)
    ready: dict[str, Check] = {"caches": caches.check}
    if admission is not None:
        # Loaded if it is used.
        webhooks = webhook.AdmissionServer(admission, client, metrics=counts)
        manager.add(webhooks, group=Group.WEBHOOKS, name="webhooks")
        ready["webhooks"] = webhooks.check
    if health_port is not None:
        alive = HealthChecks("healthz", {"leader-election": election.check} if election else None)
        server = HealthServer(
            healthz=alive,
            readyz=HealthChecks("readyz", ready),
            metrics=lambda: exposition([*counts.families(), *metrics()]),
            port=health_port,
        )
        manager.add(server, group=Group.SERVERS)
    # Before the caches, which list what is defined here.
    manager.add(_Definitions(client, operators), group=Group.WEBHOOKS, name="definitions")
    manager.add(caches, group=Group.CACHES)
    return manager


def run(
    *operators: Operator[Any],
    admission: Admission | None = None,
    name: str = "",
    namespace: str = "",
    election: bool = True,
    health_port: int | None = 8081,
    metrics: Callable[[], Iterable[MetricFamily]] = tuple,
    connect: Callable[[], Client] = Client.from_env,
) -> None:
    """Run operators until SIGINT or SIGTERM: a whole program.

    `admission`, `namespace`, `health_port` and `metrics` are those of `make_manager`. `election`: of
    several replicas one works, by a Lease called `name` (default: the first operator's) in the
    client's own namespace; every replica answers webhooks. `connect` makes the client, one more for
    the election. Logs to stderr if logging is not set up. Ends the process with status 1 and one line if it cannot go on.
    """
    if not operators and admission is None:
        raise ValueError("there is nothing to run: give an Operator or admission=")
    name = name or (operators[0].name if operators else admission.name if admission else "")
    if not logging.getLogger().handlers:
        logging.basicConfig(format="%(asctime)s %(message)s", level=logging.INFO)

    async def main() -> None:
        async with connect() as client:
            elected = _election(client, name, connect) if election and operators else None
            manager = make_manager(
                client,
                *operators,
                admission=admission,
                namespace=namespace,
                election=elected,
                health_port=health_port,
                metrics=metrics,
            )
            await run_until_signal(manager)

    try:
        asyncio.run(main())
    except (KubeError, OSError, LeaderElectionLost, NotSynced) as error:
        sys.exit("\n".join([f"{name}: {error}", *getattr(error, "__notes__", ())]))


def _election(client: Client, name: str, connect: Callable[[], Client]) -> ElectionThread:
    identity = f"{socket.gethostname()}-{uuid.uuid4().hex[:8]}"
    config = ElectionConfig(namespace=client.namespace, name=name, identity=identity)
    return ElectionThread(config=config, lease=own_connection(config, connect))


@contextlib.asynccontextmanager
async def running(client: Client, *operators: Operator[Any]) -> AsyncIterator[Manager]:
    """Run operators during an `async with` block, without election and ports: for tests.

    The block begins when the definitions are served and the caches synced. Raises what keeps them
    from it, after 60 s at most for each.
    """
    manager = make_manager(client, *operators, health_port=None)
    ready = asyncio.get_running_loop().create_future()

    async def report_ready() -> None:
        ready.set_result(None)

    # This group starts when the caches are ready.
    manager.add(report_ready, group=Group.OTHERS)
    task = asyncio.create_task(manager.run(), name="operators")
    try:
        await asyncio.wait({task, ready}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            yield manager
    finally:
        manager.stop()
        await task
