"""KubeElasti's flags that have no meaning here, so that its manifests start this operator unchanged.

They are taken, do nothing, and say so once on standard error: metrics are on the operator's own port,
there is no HTTP/2 to enable, and logs are not zap's.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from collections.abc import Callable

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
    """Return the port of an address as Go programs write it; `0` is none. Raises BadParameter."""
    _, colon, port = text.rpartition(":")
    if port.isdecimal() and int(port) <= _LAST_PORT and (colon or port == "0"):
        return int(port)
    raise click.BadParameter(f"{text!r} is not an address; write `:8081`, or `0` for none")


def go_flags(command: Callable[..., None]) -> Callable[..., None]:
    """Let a command take them."""

    @functools.wraps(command)
    def called(**arguments: Any) -> None:
        given = [flag for flag in (*_FLAGS, *_WITH_VALUE) if arguments.pop(_key(flag))]
        for flag in given:
            click.echo(
                f"elasti: {flag} is known from KubeElasti and changes nothing here", err=True
            )
        command(**arguments)

    for flag in _FLAGS:
        called = click.option(flag, _key(flag), is_flag=True, hidden=True)(called)
    for flag in _WITH_VALUE:
        called = click.option(flag, _key(flag), hidden=True)(called)
    return called


def _key(flag: str) -> str:
    return "go" + flag.replace("-", "_")
