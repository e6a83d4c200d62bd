"""The root of the command line: finds a command's file only when it is called.

Exit codes, the same for every command (`exits.ExitCode`):

| code | meaning |
|---|---|
| 0 | done |
| 1 | it failed, and the message says why; `doctor` found a problem; `sleep --wait` was refused |
| 2 | the call itself was wrong |
| 3 | there is no such object |
| 4 | not allowed: a right is missing, or the credentials are not accepted |
| 5 | no cluster: no usable configuration, or no server answers |
| 6 | the cluster has no ElastiService definition: Elasti is not installed |
| 7 | `--wait` ran out of time |
| 130 | interrupted before it was done |
"""

from __future__ import annotations

import difflib
import errno
import importlib
import io
import os
import sys
from typing import Any, NamedTuple, cast

import click

from elasti._version import __version__
from elasti.cli.exits import ExitCode, Failure, os_error_message


class _Entry(NamedTuple):
    module: str
    help: str
    attribute: str = "command"


# The help texts are here, so that `elasti --help` loads no command.
_SECTIONS = {
    "ElastiServices": {
        "enable": _Entry("enable", "Let a Deployment or StatefulSet sleep."),
        "enrolled": _Entry("enrolled", "Show which labelled Services are enrolled, and why."),
        "diff": _Entry("diff", "Show what an ElastiTemplate would change."),
        "get": _Entry("get", "Show ElastiServices, and why they are not asleep."),
        "describe": _Entry("describe", "Describe one ElastiService, with advice."),
        "schedule": _Entry("schedule", "Show the next changes of a schedule."),
        "dashboard": _Entry("dashboard", "Show ElastiServices in a browser."),
        "report": _Entry("report", "Report the capacity that sleep has released."),
        "wake": _Entry("wake", "Wake targets, as traffic would.", "wake"),
        "sleep": _Entry("wake", "Put targets to sleep now.", "sleep"),
        "suspend": _Entry("wake", "Wake targets, then leave them alone.", "suspend"),
        "resume": _Entry("wake", "Let targets sleep again.", "resume"),
    },
    "A cluster": {
        "install": _Entry("install", "Install or upgrade Elasti in a cluster."),
        "doctor": _Entry("doctor", "Check whether Elasti works on a cluster."),
        "manifests": _Entry("offline", "Print what `elasti install` applies.", "manifests"),
        "crd": _Entry("offline", "Print the CustomResourceDefinition.", "crd"),
        "uninstall": _Entry("uninstall", "Wake every target, then remove Elasti."),
    },
    "On this machine": {
        "demo": _Entry("demo", "Show the whole loop in a cluster of its own."),
        "dev": _Entry("dev", "Run a development cluster on this machine."),
        "informer": _Entry("informer", "Print the changes that a kubeloop informer sees."),
        "completion": _Entry("completion", "Print a shell completion script."),
        "version": _Entry("offline", "Print the version.", "version"),
    },
    "The programs of an installation": {
        "operator": _Entry("operator", "Run the operator: sleep, wake, switch traffic."),
        "resolver": _Entry("resolver", "Hold connections while their workload wakes."),
    },
}
_COMMANDS = {name: entry for part in _SECTIONS.values() for name, entry in part.items()}


class LazyGroup(click.Group):
    """A group whose commands live in modules of their own."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Name the commands."""
        return sorted(_COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Load one command."""
        entry = _COMMANDS.get(cmd_name)
        if entry is None:
            return None
        module = importlib.import_module(f"elasti.cli.{entry.module}")
        return cast("click.Command", getattr(module, entry.attribute))

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command; suggest the nearest for an unknown one. Raises UsageError."""
        try:
            return super().resolve_command(ctx, args)
        except click.UsageError as error:
            near = difflib.get_close_matches(args[0], _COMMANDS, n=1)
            hint = f" Did you mean {near[0]!r}?" if near else ""
            raise click.UsageError(f"No such command {args[0]!r}.{hint}", ctx) from error

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Read the options before the command, and explain those that belong after it. Raises UsageError."""
        try:
            return super().parse_args(ctx, args)
        except click.NoSuchOption as error:
            hint = f"Options come after the command: elasti get {error.option_name}"
            raise click.UsageError(f"{error.format_message()} {hint}", ctx) from error

    def invoke(self, ctx: click.Context) -> Any:
        """Run a command; an early Ctrl-C and errors of the system end without a traceback."""
        try:
            return super().invoke(ctx)
        except KeyboardInterrupt:
            raise click.exceptions.Exit(ExitCode.INTERRUPTED) from None
        except OSError as error:
            if error.errno == errno.EPIPE:
                raise  # the reader has gone, as after `| head`: click ends silently
            taken = error.errno == errno.EADDRINUSE
            remedy = "Another program uses that port; choose another, see --help." if taken else ""
            raise Failure(os_error_message(error), remedy=remedy) from error

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """List the commands with their help, without loading them."""
        for title, part in _SECTIONS.items():
            with formatter.section(title):
                formatter.write_dl([(name, entry.help) for name, entry in part.items()])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, message="elasti %(version)s")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Elasti puts idle Kubernetes workloads to sleep and wakes them on the first connection.

    \b
    Examples:
      elasti demo
      elasti install && elasti doctor
      elasti get -A

    \b
    Exit codes:
      0 done         3 no such object   6 Elasti is not installed
      1 failed       4 not allowed      7 out of time
      2 wrong call   5 no cluster       130 interrupted
    """
    # No colours if they are unwanted, and no traceback if a character cannot be shown.
    if os.environ.get("NO_COLOR") or os.environ.get("TERM") == "dumb":
        ctx.color = False
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
