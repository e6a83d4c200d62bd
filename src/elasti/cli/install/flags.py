"""The options that `elasti manifests` and `elasti install` share, and what they mean."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeAlias

import click

from elasti.cli.install.choices import IMAGE, NAMESPACE, ChoiceError, Choices, read_variables

Command: TypeAlias = Callable[..., None]

_OPTIONS = (
    click.option(
        "-n",
        "--namespace",
        default=NAMESPACE,
        show_default=True,
        help="Where operator and resolver live.",
    ),
    click.option("--image", default=IMAGE, show_default=True, help="The image of both programs."),
    click.option(
        "--namespaced",
        is_flag=True,
        help="Rights only in the watched namespaces, by Roles: no ClusterRole at all.",
    ),
    click.option(
        "--watch-namespace",
        "watch_namespaces",
        metavar="NS",
        multiple=True,
        help="Watch only this namespace; may be repeated. All by default.",
    ),
    click.option("--operator-replicas", type=click.IntRange(1, 20), default=2, show_default=True),
    click.option("--resolver-replicas", type=click.IntRange(1, 200), default=2, show_default=True),
    click.option(
        "--no-authentication",
        is_flag=True,
        help="Operator and resolver do not ask each other for ServiceAccount tokens.",
    ),
    click.option("--no-crd", is_flag=True, help="Without the CustomResourceDefinition."),
    click.option("--no-namespace", is_flag=True, help="Without the Namespace; it must exist."),
    click.option(
        "--env",
        "variables",
        metavar="PROGRAM:KEY=VALUE",
        multiple=True,
        help="A variable of the operator or of the resolver; may be repeated.",
    ),
)


def chosen(command: Command) -> Command:
    """Give a command the options; it is called with `choices` in their place."""

    @functools.wraps(command)
    def called(*args: Any, **flags: Any) -> None:
        command(*args, choices=_read(flags), **flags)

    for option in reversed(_OPTIONS):
        called = option(called)
    return called


def _read(flags: dict[str, Any]) -> Choices:
    """Take the options out of a call's arguments. Raises UsageError."""
    try:
        return Choices(
            namespace=flags.pop("namespace"),
            image=flags.pop("image"),
            namespaced=flags.pop("namespaced"),
            watch_namespaces=tuple(dict.fromkeys(flags.pop("watch_namespaces"))),
            operator_replicas=flags.pop("operator_replicas"),
            resolver_replicas=flags.pop("resolver_replicas"),
            authentication=not flags.pop("no_authentication"),
            with_definition=not flags.pop("no_crd"),
            with_namespace=not flags.pop("no_namespace"),
            variables=read_variables(flags.pop("variables")),
        )
    except ChoiceError as error:
        raise click.UsageError(str(error)) from error
