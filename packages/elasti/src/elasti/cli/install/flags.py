"""The options of an installation as a user writes them; `elasti manifests` and `elasti install` share them.

A variable is checked against what the program itself would refuse at its start.
"""

from __future__ import annotations

import difflib
import functools
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias, cast

import click

from elasti.api.defaults import RESOLVER_SHARED_PORT
from elasti.api.names import NAMESPACE
from elasti.api.parsing import NEAR, SettingsError
from elasti.cli.install.choices import (
    BY_PROGRAM,
    IMAGE,
    Autoscaling,
    ChoiceError,
    Choices,
    InstallOptions,
    Program,
    read_toleration,
)

_TOGETHER = frozenset({"ELASTI_TOKEN_KEYS_FILE", "ELASTI_TOKEN_ISSUERS"})
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")
_SECRET = re.compile(r"[a-z0-9][a-z0-9.-]*/[A-Za-z0-9._-]+\Z")
_RANGE = re.compile(r"(\d+)-(\d+)(?:@(\d+))?\Z")

_FLAGS = {
    "namespaced": "--namespaced",
    "authentication": "--no-authentication",
    "with_namespace": "--no-namespace",
    "with_definition": "--no-crd",
}


_REPEATED = {
    "watch_namespaces": "--watch-namespace",
    "pull_secrets": "--image-pull-secret",
    "tolerations": "--toleration",
}
_PAIRS = {"labels": "--label", "node_selector": "--node-selector"}
_OF_PROGRAMS = {
    "variables": "--env",
    "secret_variables": "--env-secret",
    "resources": "--resources",
}


def merged(kept: InstallOptions, given: InstallOptions) -> InstallOptions:
    """Return the options of an installation with those of a call over them."""
    found: dict[str, Any] = {**kept, **given}
    for option in BY_PROGRAM:
        before: dict[str, Any] = kept.get(option, {})  # type: ignore[assignment]  # as InstallOptions has them
        now: dict[str, Any] = given.get(option, {})  # type: ignore[assignment]
        found[option] = {
            name: {**before.get(name, {}), **now.get(name, {})} for name in {**before, **now}
        }
    # A variable has one source: the one that was given last.
    for one, other in (("variables", "secret_variables"), ("secret_variables", "variables")):
        for program, named in cast("dict[str, Any]", given.get(one, {})).items():
            for name in named:
                found[other].get(program, {}).pop(name, None)
    return cast("InstallOptions", {name: value for name, value in found.items() if value != {}})


def written(options: InstallOptions) -> list[str]:
    """Return options as a user writes them."""
    found: list[str] = []
    for name, value in cast("dict[str, Any]", options).items():
        if name in _REPEATED:
            found += [f"{_REPEATED[name]} {item}" for item in value]
        elif name in _PAIRS:
            found += [f"{_PAIRS[name]} {key}={text}" for key, text in value.items()]
        elif name in _OF_PROGRAMS:
            found += [
                f"{_OF_PROGRAMS[name]} {program}:{key}={text}"
                for program, named in value.items()
                for key, text in named.items()
            ]
        elif name == "autoscaling":
            found.append("--resolver-autoscaling {}-{}@{}".format(*value))
        elif name == "affinity":
            found.append("--affinity (as it is)")
        elif name == "shared_port":
            found.append("--shared-port" if value else "--no-shared-port")
        else:
            found.append(_FLAGS.get(name, f"--{name.replace('_', '-')} {value}"))
    return found


def read_program_variables(given: Iterable[str]) -> dict[Program, dict[str, str]]:
    """Read variables, checked. Raises ChoiceError."""
    found = _of_programs("--env", given, "operator:POLLING_INTERVAL=10s")
    for program, named in found.items():
        for name, value in named.items():
            _check(program, name, value)
    return found


def _of_programs(option: str, given: Iterable[str], example: str) -> dict[Program, dict[str, str]]:
    """Read `operator:KEY=VALUE` and `resolver:KEY=VALUE`; the last of a name wins.

    Raises ChoiceError.
    """
    found: dict[Program, dict[str, str]] = {}
    for text in given:
        program, colon, pair = text.partition(":")
        name, equals, value = pair.partition("=")
        known = program in {known.value for known in Program}
        if not (known and colon and equals and _VARIABLE.match(name)):
            raise ChoiceError(
                f"{option} {text!r} is not operator:KEY=VALUE or resolver:KEY=VALUE, such as {example}"
            )
        found.setdefault(Program(program), {})[name] = value
    return found


def _read_secret_variables(given: Iterable[str]) -> dict[Program, dict[str, str]]:
    example = "operator:PROMETHEUS_TRIGGER_AUTHORIZATION_HEADER=prometheus/header"
    found = _of_programs("--env-secret", given, example)
    for program, named in found.items():
        for name, value in named.items():
            if not _SECRET.match(value):
                raise ChoiceError(
                    f"--env-secret {program.value}:{name}={value} names no Secret and key: write"
                    " SECRET/KEY after the ="
                )
            _check(program, name, "$(secret)")
    return found


def _read_pairs(option: str, given: Iterable[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for key, equals, _ in pairs:
        if not (key and equals):
            raise ChoiceError(f"{option} {key!r} is not KEY=VALUE")
    return {key: value for key, _, value in pairs}


def _read_affinity(path: Path) -> dict[str, Any]:
    import yaml

    try:
        found = yaml.safe_load(path.read_text())
    except (OSError, yaml.YAMLError) as error:
        raise ChoiceError(f"--affinity {path} cannot be read: {error}") from error
    kinds = {"nodeAffinity", "podAffinity", "podAntiAffinity"}
    if not isinstance(found, dict) or not found or not found.keys() <= kinds:
        raise ChoiceError(
            f"--affinity {path} is no affinity: write {', '.join(sorted(kinds))} at the top"
        )
    return found


def _read_autoscaling(text: str) -> Autoscaling:
    found = _RANGE.match(text)
    if found is None:
        raise ChoiceError(
            f"--resolver-autoscaling {text!r} is not MIN-MAX or MIN-MAX@CPU, such as 2-6@70"
        )
    return Autoscaling(*(int(part) for part in found.groups() if part))


def _check(program: Program, name: str, value: str) -> None:
    """Refuse what the program itself would refuse at its start. Raises ChoiceError."""
    # Here, not above: the help of a command needs neither program.
    from elasti.operator import settings as operator
    from elasti.resolver import settings as resolver

    known = {Program.OPERATOR: operator.VARIABLES, Program.RESOLVER: resolver.VARIABLES}
    if name not in known[program]:
        _refuse_misspelt(program, name, known)
    settings = (
        operator.OperatorSettings if program is Program.OPERATOR else resolver.ResolverSettings
    )
    # A reference gets its value in the pod; others are read with those that they belong to.
    if "$(" in value or name in _TOGETHER:
        return
    try:
        settings.from_env({name: value})
    except SettingsError as error:
        raise ChoiceError(f"--env {program.value}:{error}") from error


def _refuse_misspelt(program: Program, name: str, known: Mapping[Program, Collection[str]]) -> None:
    """Refuse a variable of the other program, and nearly one of this; any other may be a library's."""
    for other, names in known.items():
        if name in names:
            raise ChoiceError(
                f"--env {program.value}:{name} is a variable of the {other.value}: write"
                f" {other.value}:{name}"
            )
    if near := difflib.get_close_matches(name, known[program], n=1, cutoff=NEAR):
        raise ChoiceError(
            f"--env {program.value}:{name} is no variable of the {program.value};"
            f" did you mean {near[0]}?"
        )


Command: TypeAlias = Callable[..., None]

_OPTIONS = (
    click.option(
        "-n",
        "--namespace",
        default=NAMESPACE,
        show_default=True,
        help="Where operator and resolver live.",
    ),
    click.option("--image", show_default=IMAGE, help="The image of both programs."),
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
    click.option("--operator-replicas", type=click.IntRange(1, 20), show_default="2"),
    click.option("--resolver-replicas", type=click.IntRange(1, 200), show_default="2"),
    click.option(
        "--no-authentication",
        is_flag=True,
        help="Operator and resolver do not ask each other for ServiceAccount tokens.",
    ),
    click.option("--no-crd", is_flag=True, help="Without the CustomResourceDefinition."),
    click.option("--no-namespace", is_flag=True, help="Without the Namespace; it must exist."),
    click.option(
        "--shared-port/--no-shared-port",
        default=None,
        help=f"Port {RESOLVER_SHARED_PORT}, where the Host header names the Service: clients that reach it"
        " reach every Service with an ElastiService. Off, unless KubeElasti is in the namespace.",
    ),
    click.option(
        "--env",
        "variables",
        metavar="PROGRAM:KEY=VALUE",
        multiple=True,
        help="A variable of the operator or of the resolver; may be repeated.",
    ),
    click.option(
        "--env-secret",
        "secret_variables",
        metavar="PROGRAM:KEY=SECRET/KEY",
        multiple=True,
        help="A variable whose value is in a Secret; may be repeated.",
    ),
    click.option(
        "--resources",
        metavar="PROGRAM:KEY=VALUE",
        multiple=True,
        help="What a program may use, such as resolver:limits.memory=2Gi; may be repeated.",
    ),
    click.option(
        "--resolver-autoscaling",
        "autoscaling",
        metavar="MIN-MAX[@CPU]",
        help="A HorizontalPodAutoscaler for the resolver; CPU in percent of its request, 70.",
    ),
    click.option(
        "--image-pull-secret",
        "pull_secrets",
        metavar="NAME",
        multiple=True,
        help="A Secret to pull the image with; may be repeated.",
    ),
    click.option(
        "--label",
        "labels",
        metavar="KEY=VALUE",
        multiple=True,
        help="A label for every object and pod; may be repeated.",
    ),
    click.option(
        "--node-selector",
        metavar="KEY=VALUE",
        multiple=True,
        help="Run only on nodes with this label; may be repeated.",
    ),
    click.option(
        "--toleration",
        "tolerations",
        metavar="KEY[=VALUE][:EFFECT]",
        multiple=True,
        help="Run on nodes with this taint, too; may be repeated.",
    ),
    click.option(
        "--affinity",
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help="A pod's `affinity`, as YAML, for both programs.",
    ),
)


def install_options(command: Command) -> Command:
    """Give a command the options; it is called with those given, as `options`, beside `namespace`."""

    @functools.wraps(command)
    def called(*args: Any, **flags: Any) -> None:
        command(*args, options=_given(flags), **flags)

    for option in reversed(_OPTIONS):
        called = option(called)
    return called


def choices_of(namespace: str, options: InstallOptions) -> Choices:
    """Return the choices. Raises UsageError."""
    fields: dict[str, Any] = dict(options)
    for name in _REPEATED:
        fields[name] = tuple(fields.get(name, ()))
    for name in BY_PROGRAM:
        named = fields.get(name, {})
        fields[name] = {
            program: named[program.value] for program in Program if program.value in named
        }
    if "autoscaling" in fields:
        fields["autoscaling"] = Autoscaling(*fields["autoscaling"])
    try:
        return Choices(namespace=namespace, **fields)
    except ChoiceError as error:
        raise click.UsageError(str(error)) from error


def _given(flags: dict[str, Any]) -> InstallOptions:
    """Take the options out of a call's arguments, those that it has. Raises UsageError."""
    off = {
        "authentication": "no_authentication",
        "with_namespace": "no_namespace",
        "with_definition": "no_crd",
    }
    given: dict[str, Any] = {
        name: flags.pop(name)
        for name in ("image", "operator_replicas", "resolver_replicas", "shared_port")
    }
    given["namespaced"] = flags.pop("namespaced") or None
    given |= {name: False if flags.pop(flag) else None for name, flag in off.items()}
    given |= {name: tuple(dict.fromkeys(flags.pop(name))) for name in _REPEATED}
    resources, affinity, range_ = (flags.pop(n) for n in ("resources", "affinity", "autoscaling"))
    try:
        by_program = {
            "variables": read_program_variables(flags.pop("variables")),
            "secret_variables": _read_secret_variables(flags.pop("secret_variables")),
            "resources": _of_programs("--resources", resources, "operator:limits.memory=1Gi"),
        }
        given |= {name: _read_pairs(option, flags.pop(name)) for name, option in _PAIRS.items()}
        given["affinity"] = _read_affinity(affinity) if affinity else None
        given["autoscaling"] = _read_autoscaling(range_) if range_ else None
        for text in given["tolerations"]:
            read_toleration(text)
    except ChoiceError as error:
        raise click.UsageError(str(error)) from error
    for name, found in by_program.items():
        given[name] = {program.value: named for program, named in found.items()}
    chosen = {name: value for name, value in given.items() if value not in (None, (), {})}
    return cast("InstallOptions", chosen)
