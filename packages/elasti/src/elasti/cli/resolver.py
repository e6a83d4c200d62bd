"""`elasti resolver`: the program that holds connections while their workload wakes."""

from __future__ import annotations

from typing import Any

import click

from elasti.api.defaults import RESOLVER_ADMIN_PORT, RESOLVER_SHARED_PORT
from elasti.cli.options import WholeNumber, log_options


@click.command("resolver")
@click.option(
    "--workers",
    type=WholeNumber(1, 64),
    help="Processes that share the ports; 1 by default, one per core recommended.",
)
@click.option("--host", help="The address to listen on; all of them by default.")
@click.option("--admin-port", type=WholeNumber(1, 65535), help=f"{RESOLVER_ADMIN_PORT} by default.")
@click.option(
    "--shared-port",
    type=WholeNumber(0, 65535),
    help=f"Where the Host header names the Service; {RESOLVER_SHARED_PORT} in KubeElasti. None by default.",
)
@click.option("--operator-url", help="Where wake requests go; by default the Service.")
@click.option(
    "--no-authentication",
    is_flag=True,
    help="Serve /activity without a token. Only if a NetworkPolicy keeps the admin port closed.",
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
      ELASTI_MAX_CONNECTIONS_PER_CLIENT, ELASTI_UNLIMITED_CLIENTS
                                     what one client address may have, and networks without that bound
      HEADER_FOR_HOST                read instead of Host on the shared port
      WATCH_NAMESPACES               only these, comma separated

    On SIGTERM it reports not ready, serves until no slice names it and it has no requests in progress,
    and exits. Give the pod a terminationGracePeriodSeconds that is longer than your longest wake-up.

    \b
    Examples:
      elasti resolver
      elasti resolver --workers 4
      elasti resolver --operator-url http://127.0.0.1:8013 --no-authentication
    """
    from elasti.cli.programs import run_resolver
    from elasti.cli.running import run_program

    options["authenticate"] = False if no_authentication else None
    run_program(run_resolver, options, refused=click.UsageError)
