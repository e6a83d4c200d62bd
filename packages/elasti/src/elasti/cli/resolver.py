"""`elasti resolver`: the program that holds connections while their workload wakes."""

from __future__ import annotations

import functools
import os
import signal
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import click

from elasti.api.defaults import RESOLVER_ADMIN_PORT, RESOLVER_SHARED_PORT
from elasti.cli.options import WholeNumber, load_structlog, log_options

if TYPE_CHECKING:
    import asyncio
    from collections.abc import Callable, Coroutine

    from elasti.resolver.settings import ResolverSettings


@click.command("resolver")
@click.option(
    "--workers",
    type=WholeNumber(1, 64),
    help="Processes that share the ports; 1 by default, best one for each core.",
)
@click.option("--host", help="The address to listen on; all of them by default.")
@click.option(
    "--admin-port",
    type=WholeNumber(1, 65535),
    help=f"{RESOLVER_ADMIN_PORT} by default.",
)
@click.option(
    "--shared-port",
    type=WholeNumber(0, 65535),
    help=f"Where the Host header names the Service; {RESOLVER_SHARED_PORT} in KubeElasti. None by default.",
)
@click.option("--operator-url", help="Where wake requests go; by default the Service.")
@click.option(
    "--no-authentication",
    is_flag=True,
    help="Serve /activity without a token. Only where a NetworkPolicy keeps the admin port closed.",
)
@log_options
@click.option("--worker-socket", default="", hidden=True)
def command(*, no_authentication: bool, **options: Any) -> None:
    """Hold the connections of sleeping workloads, wake them, and pass the connections on.

    It runs in the cluster, as many replicas as you like, beside `elasti operator`. For every port of
    a Service with an ElastiService it listens on the port that the operator chose
    (status.resolverPorts); the Host header matters only on the shared port.

    Settings come from the environment, with KubeElasti's names; flags win. Those that matter most:

    \b
      ELASTI_OPERATOR_NAMESPACE      where the operator is (elasti)
      ELASTI_OPERATOR_SERVICE_NAME   its Service
      ELASTI_OPERATOR_TOKEN_FILE     a token for audience elasti-operator
      POD_IP                         this pod, so that a drain knows when it is out of all slices
      ELASTI_ENGAGE_SETTLE           how long endpoints need to reach every node (15s)
      REQ_TIMEOUT, QUEUE_SIZE        the most that an ElastiService may ask for
      HEADER_FOR_HOST                read instead of Host on the shared port
      WATCH_NAMESPACES               only these, comma separated

    On SIGTERM it says that it is not ready, serves until no slice names it and nothing is under way,
    and exits. Give the pod a terminationGracePeriodSeconds that is longer than your longest wake-up.

    \b
    Examples:
      elasti resolver
      elasti resolver --workers 4
      elasti resolver --operator-url http://127.0.0.1:8013 --no-authentication
    """
    _run(authenticate=False if no_authentication else None, **options)


def _run(*, log_level: str, pretty: bool | None, worker_socket: str, **overrides: Any) -> None:
    """Run until SIGTERM or SIGINT; a second signal ends it at once."""
    load_structlog()

    from elasti.api.parsing import SettingsError
    from elasti.cli import logs
    from elasti.cli.running import failure_from
    from elasti.resolver.app import serve
    from elasti.resolver.settings import KUBEELASTI_ONLY, VARIABLES, ResolverSettings
    from kubeloop.client.errors import KubeError
    from kubeloop.informer.sync import NotSynced

    logs.configure(level=log_level, pretty=pretty)
    try:
        settings = ResolverSettings.from_env(os.environ, **overrides)
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    if not worker_socket:
        logs.warn_of_variables(VARIABLES, KUBEELASTI_ONLY, os.environ)
    try:
        if worker_socket or settings.workers == 1:
            _run_loop(functools.partial(serve, settings, admin_socket=worker_socket))
        else:
            _run_several(settings)
    except (KubeError, NotSynced, OSError) as error:
        raise failure_from(error) from error


def _run_several(settings: ResolverSettings) -> None:
    from elasti.resolver.app import supervise

    with tempfile.TemporaryDirectory(prefix="elasti-resolver-") as directory:
        sockets = [f"{directory}/{number}.sock" for number in range(settings.workers)]
        call = [sys.executable, "-c", "from elasti.cli.main import main; main()", *sys.argv[1:]]
        workers = ["--workers", str(settings.workers)]
        commands = [[*call, *workers, "--worker-socket", path] for path in sockets]
        _run_loop(functools.partial(supervise, settings, commands=commands, sockets=sockets))


def _run_loop(job: Callable[[asyncio.Event], Coroutine[Any, Any, object]]) -> None:
    import asyncio

    from elasti.cli.running import fast_loop

    with asyncio.Runner(loop_factory=fast_loop()) as runner:
        try:
            runner.run(_with_signals(job))
        except asyncio.CancelledError:
            raise click.ClickException("stopped before everything was served") from None


async def _with_signals(job: Callable[[asyncio.Event], Coroutine[Any, Any, object]]) -> None:
    import asyncio

    stop = asyncio.Event()
    task = asyncio.current_task()
    assert task is not None

    def asked() -> None:
        if stop.is_set():
            task.cancel()
        stop.set()

    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, asked)
    await job(stop)
