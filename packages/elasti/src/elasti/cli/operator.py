"""`elasti operator`: the program that puts targets to sleep and wakes them.

KubeElasti's flags that have no meaning here are accepted, so that its manifests start this operator
unchanged. They do nothing, and say so once on standard error: metrics are on the operator's own port,
there is no HTTP/2 to enable, and logs are not zap's.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import click

from elasti.api.defaults import HEALTH_PORT, OPERATOR_PORT
from elasti.cli.options import WholeNumber, log_options
from elasti.cli.rendering import echo

_LAST_PORT = 65535
_FLAGS = ("--metrics-secure", "--enable-http2", "--zap-devel")
_WITH_VALUE = (
    "--metrics-bind-address",
    "--zap-encoder",
    "--zap-log-level",
    "--zap-stacktrace-level",
    "--zap-time-encoding",
)


def bind_address(text: str) -> int:
    """Return the port of an address as Go programs write it; `0` means no port. Raises BadParameter."""
    _, colon, port = text.rpartition(":")
    if port.isdecimal() and int(port) <= _LAST_PORT and (colon or port == "0"):
        return int(port)
    raise click.BadParameter(f"{text!r} is not an address; write `:{HEALTH_PORT}`, or `0` for none")


def go_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take them."""

    @functools.wraps(command)
    def called(**arguments: Any) -> None:
        given = [flag for flag in (*_FLAGS, *_WITH_VALUE) if arguments.pop(_key(flag))]
        for flag in given:
            echo(f"elasti: {flag} is known from KubeElasti and changes nothing here", err=True)
        command(**arguments)

    for flag in _FLAGS:
        called = click.option(flag, _key(flag), is_flag=True, hidden=True)(called)
    for flag in _WITH_VALUE:
        called = click.option(flag, _key(flag), hidden=True)(called)
    return called


def _key(flag: str) -> str:
    return "go" + flag.replace("-", "_")


def _notify_url(text: str) -> str:
    from elasti.operator.settings import parse_notify_url

    try:
        return parse_notify_url(text)
    except ValueError as error:
        raise click.BadParameter(str(error)) from None


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
    type=WholeNumber(0, 65535),
    help=f"Where resolvers ask for wake-ups; {OPERATOR_PORT} by default. [env: ELASTI_OPERATOR_PORT]",
)
@click.option(
    "--health-probe-port",
    "health_port",
    type=WholeNumber(0, 65535),
    help=f"Where /healthz and /readyz are served too; {HEALTH_PORT} by default; 0 disables it.",
)
@click.option(
    "--health-probe-bind-address",
    "health_address",
    type=bind_address,
    metavar="ADDRESS",
    help=f"The same as KubeElasti writes it: `:{HEALTH_PORT}`, or `0`, which disables it.",
)
@click.option(
    "--authenticate/--no-authenticate",
    default=None,
    help="Whether callers must send a ServiceAccount token. [env: ELASTI_AUTHENTICATE]",
)
@click.option(
    "--notify-url",
    type=_notify_url,
    metavar="TEXT",
    help="Where CloudEvents of asleep, awake and trouble are posted. [env: ELASTI_NOTIFY_URL]",
)
@click.option(
    "--notify-key-file",
    help="A file with the key that signs them. [env: ELASTI_NOTIFY_KEY_FILE, or ELASTI_NOTIFY_KEY]",
)
@click.option("--context", help="The kubeconfig context, outside of a cluster.")
@log_options
@go_flags
def command(
    *,
    watch_namespaces: tuple[str, ...],
    health_port: int | None,
    health_address: int | None,
    **options: Any,
) -> None:
    """Run the operator until SIGTERM: it reconciles ElastiServices and serves wake-ups.

    In a pod it uses its ServiceAccount, elsewhere your kubeconfig. Settings come from the
    environment, under KubeElasti's names; options take precedence.

    \b
    Variables, with their defaults:
      ELASTI_OPERATOR_NAMESPACE          elasti, where its lease is
      ELASTI_RESOLVER_NAMESPACE          elasti
      ELASTI_RESOLVER_SERVICE_NAME       elasti-resolver-service
      ELASTI_RESOLVER_PORT               8013, the resolvers' admin port
      ELASTI_PORT_RANGE                  20000-29999, their ports for Services
      WATCH_NAMESPACES                   all; a list with commas
      POLLING_INTERVAL                   30s, how often triggers are read
      PROMETHEUS_TRIGGER_SERVER_ADDRESS  for triggers that name none
      ELASTI_ENGAGE_SETTLE               15s, the last check before a target sleeps
      ELASTI_RELEASE_SETTLE              2s, how long a pod must be ready to take over
      ELASTI_ON_RESOLVER_LOSS            Wake sleeping targets, or Wait

    \b
    Examples:
      elasti operator --pretty --no-leader-elect --no-authenticate
      WATCH_NAMESPACES=shop,blog elasti operator
    """
    from elasti.cli.programs import run_operator
    from elasti.cli.running import run_program

    options["watch_namespaces"] = watch_namespaces or None
    options["health_port"] = health_address if health_port is None else health_port
    run_program(run_operator, options, refused=click.ClickException)
