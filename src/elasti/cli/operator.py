"""`elasti operator`: the program that puts targets to sleep and wakes them."""

from __future__ import annotations

import click

from elasti.cli.go_flags import bind_address, go_flags


@click.command("operator")
@click.option(
    "--watch-namespace",
    "watch_namespaces",
    multiple=True,
    help="Watch only this namespace; may be repeated. All by default. [env: WATCH_NAMESPACES]",
)
@click.option(
    "--leader-elect/--no-leader-elect",
    default=None,
    help="Whether only one replica reconciles; on by default. [env: ELASTI_LEADER_ELECT]",
)
@click.option(
    "--port",
    type=click.IntRange(0, 65535),
    default=None,
    help="Where resolvers ask for wake-ups; 8013 by default. [env: ELASTI_OPERATOR_PORT]",
)
@click.option(
    "--health-probe-port",
    "health_port",
    type=click.IntRange(0, 65535),
    default=None,
    help="Where /healthz and /readyz are served too; 8081 by default, 0 for nowhere.",
)
@click.option(
    "--health-probe-bind-address",
    "health_address",
    type=bind_address,
    metavar="ADDRESS",
    default=None,
    help="The same as KubeElasti writes it: `:8081`, or `0` for nowhere.",
)
@click.option(
    "--authenticate/--no-authenticate",
    default=None,
    help="Whether callers must send a ServiceAccount token. [env: ELASTI_AUTHENTICATE]",
)
@click.option("--context", default=None, help="The kubeconfig context, outside of a cluster.")
@click.option(
    "--log-level",
    type=click.Choice(["debug", "info", "warning", "error"]),
    default="info",
    show_default=True,
)
@click.option(
    "--pretty/--json",
    default=None,
    help="Log lines for a person, or JSON; by default JSON where the output is no terminal.",
)
@go_flags
def command(
    *,
    watch_namespaces: tuple[str, ...],
    leader_elect: bool | None,
    port: int | None,
    health_port: int | None,
    health_address: int | None,
    authenticate: bool | None,
    context: str | None,
    log_level: str,
    pretty: bool | None,
) -> None:
    """Run the operator until SIGTERM: it reconciles ElastiServices and serves wake-ups.

    In a pod it uses its ServiceAccount, elsewhere your kubeconfig. Settings come from the
    environment, under KubeElasti's names; the options here win over them.

    \b
    Variables, with their defaults:
      ELASTI_OPERATOR_NAMESPACE          elasti, where its lease is
      ELASTI_RESOLVER_NAMESPACE          elasti
      ELASTI_RESOLVER_SERVICE_NAME       elasti-resolver-service
      ELASTI_RESOLVER_PORT               8013, the resolvers' admin port
      WATCH_NAMESPACES                   all; a list with commas
      POLLING_INTERVAL                   30s, how often triggers are read
      PROMETHEUS_TRIGGER_SERVER_ADDRESS  for triggers that name none
      ELASTI_ENGAGE_SETTLE               15s, the last look before a target sleeps
      ELASTI_RELEASE_SETTLE              2s, how long a pod must be ready to take over
      ELASTI_ON_RESOLVER_LOSS            Wake sleeping targets, or Wait

    \b
    Examples:
      elasti operator --pretty --no-leader-elect --no-authenticate
      WATCH_NAMESPACES=shop,blog elasti operator
    """
    from elasti.cli.operator_run import run

    run(
        context=context,
        log_level=log_level,
        pretty=pretty,
        watch_namespaces=watch_namespaces or None,
        leader_elect=leader_elect,
        port=port,
        health_port=health_address if health_port is None else health_port,
        authenticate=authenticate,
    )
