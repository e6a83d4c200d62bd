"""The options and arguments that commands share: cluster, namespace, names, form of output.

Names are checked before the cluster is asked: a wrong one is a usage error. Loads nothing but click, so
that a command's help stays quick.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

from elasti.api.names import GROUP, NAMESPACE
from elasti.cli.cluster import AccessOptions
from elasti.cli.completion import complete_contexts, complete_names, complete_namespaces
from kubeloop.objects.names import DNS_LABEL_63, DNS_SUBDOMAIN

_LABEL = re.compile(DNS_LABEL_63)
_SUBDOMAIN = re.compile(DNS_SUBDOMAIN)
_LONGEST = 253
# The prefix that `elasti get -o name` and `kubectl get -o name` print.
_KIND = re.compile(rf"elastiservices?(\.{re.escape(GROUP)})?/")


def namespace(text: str) -> str:
    """Return a valid namespace, or an empty one, which means all. Raises BadParameter."""
    if text and not _LABEL.fullmatch(text):
        raise click.BadParameter(
            f"{text!r} is not a valid namespace: use lower-case letters, digits and '-', at most 63, beginning"
            " and ending with a letter or digit."
        )
    return text


def one_namespace(text: str) -> str:
    """Return a valid namespace; refuse an empty one, such as an unset variable. Raises BadParameter."""
    if not text:
        raise click.BadParameter("it is empty; name a namespace.")
    return namespace(text)


def name(text: str) -> str:
    """Return an ElastiService's name, also from what `-o name` prints. Raises BadParameter."""
    found = _KIND.match(text)
    bare = text[found.end() :] if found else text
    if len(bare) > _LONGEST or not _SUBDOMAIN.fullmatch(bare):
        hint = " Name its namespace with -n." if bare.count("/") == 1 else ""
        raise click.BadParameter(
            f"{text!r} is not a valid name: use lower-case letters, digits, '-' and '.', beginning and ending"
            f" with a letter or digit.{hint}"
        )
    return bare


def span(text: str) -> float:
    """Return the seconds of a duration such as 90s or 3h. Raises BadParameter."""
    from elasti.api.parsing import parse_duration

    try:
        return parse_duration(text)
    except (ValueError, OverflowError) as error:
        raise click.BadParameter(str(error)) from error


class WholeNumber(click.IntRange):
    """A whole number within limits."""

    name = "integer"  # click's own name is "integer range"


class Number(click.FloatRange):
    """A number within limits."""

    name = "number"


class Timeout(click.ParamType[float]):
    """Seconds above 0, as a number or as a duration."""

    name = "duration"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        try:
            seconds = float(value)
        except ValueError:
            seconds = span(value)
        if not 0 < seconds < math.inf:
            self.fail(f"{value} is not above 0", param, ctx)
        return seconds


F = TypeVar("F", bound=Callable[..., Any])
T = TypeVar("T")


def cluster_options(function: Callable[..., T]) -> Callable[..., T]:
    """Add `--context` and `--kubeconfig`; the command gets them as one `access`."""

    @functools.wraps(function)
    def called(*, context: str | None, kubeconfig: Path | None, **others: Any) -> T:
        return function(access=AccessOptions(context=context, kubeconfig=kubeconfig), **others)

    called = click.option(
        "--kubeconfig",
        type=click.Path(dir_okay=False, path_type=Path),
        help="The kubeconfig file to use.  [default: KUBECONFIG, else ~/.kube/config]",
    )(called)
    return click.option(
        "--context", shell_complete=complete_contexts, help="The kubeconfig context to use."
    )(called)


def names_argument(*, required: bool) -> Callable[[F], F]:
    """Add `names`, of ElastiServices."""
    return click.argument(
        "names",
        metavar="NAME..." if required else "[NAME]...",
        nargs=-1,
        required=required,
        type=name,
        shell_complete=complete_names,
    )


@dataclasses.dataclass(frozen=True, slots=True)
class Choice:
    """The ElastiServices of a namespace that a command selects; all if nothing is given."""

    names: tuple[str, ...] = ()
    selector: str = ""


def choice_options(function: Callable[..., T]) -> Callable[..., T]:
    """Add names, `-l` and `--all`, of which one is needed; the command gets them as one `choice`."""

    @functools.wraps(function)
    def called(*, names: tuple[str, ...], selector: str, everything: bool, **others: Any) -> T:
        if [bool(names), bool(selector), everything].count(True) != 1:
            raise click.UsageError("give names, -l with labels, or --all: one of the three")
        return function(choice=Choice(names, selector), **others)

    called = click.option("--all", "everything", is_flag=True, help="All in the namespace.")(called)
    called = click.option(
        "-l", "--selector", default="", help="Those with these labels, such as team=shop."
    )(called)
    return names_argument(required=False)(called)


def namespace_option(
    text: str = "The namespace; the context's by default.", default: str | None = None
) -> Callable[[F], F]:
    """Add `-n`."""
    shown = bool(default)
    return click.option(
        "-n",
        "--namespace",
        type=one_namespace if shown else namespace,
        default=default,
        show_default=shown,
        shell_complete=complete_namespaces,
        help=text,
    )


elasti_namespace_option = click.option(
    "--elasti-namespace",
    type=one_namespace,
    default=NAMESPACE,
    show_default=True,
    help="The namespace of operator and resolver.",
)


def output_option(*formats: str) -> Callable[[F], F]:
    """Add `-o` with these formats, the first by default."""
    return click.option(
        "-o",
        "--output",
        type=click.Choice(formats),
        default=formats[0],
        show_default=True,
        help="The output format.",
    )


def timeout_option(default: float, text: str = "How long --wait waits") -> Callable[[F], F]:
    """Add `--timeout`, in seconds."""
    return click.option(
        "--timeout",
        type=Timeout(),
        default=default,
        show_default=True,
        help=f"{text}: seconds, or a duration such as 90s or 5m.",
    )


def log_options(function: F) -> F:
    """Add `--log-level` and `--pretty/--json`, of the programs."""
    pretty = click.option(
        "--pretty/--json",
        default=None,
        help="Log lines for a person, or JSON; by default JSON if the output is not a terminal.",
    )
    level = click.option(
        "--log-level",
        type=click.Choice(["debug", "info", "warning", "error"]),
        default="info",
        show_default=True,
    )
    return level(pretty(function))
