"""The choices of an installation: options, checks, and the names and labels they give. Pure.

`elasti manifests` and `elasti install` share the options. A choice is checked here, also against what the
program itself would refuse at its start; the message names the option, the value and the remedy.
"""

from __future__ import annotations

import dataclasses
import difflib
import enum
import functools
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias, TypedDict, cast

import click

from elasti._version import __version__
from elasti.api.names import GROUP, MANAGED_BY, NAMESPACE
from elasti.api.parsing import SettingsError

if TYPE_CHECKING:
    from collections.abc import Collection, Iterable, Mapping

    from kubeloop.objects.meta import JsonObject


IMAGE = f"elasti:{__version__}"
OPTIONS_ANNOTATION = f"{GROUP}/install-options"

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_TOGETHER = frozenset({"ELASTI_TOKEN_KEYS_FILE", "ELASTI_TOKEN_ISSUERS"})
_NEAR = 0.85
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")


class Program(enum.Enum):
    """The two programs; the value is the command that runs one."""

    OPERATOR = "operator"
    RESOLVER = "resolver"


class ChoiceError(ValueError):
    """Choices that do not fit; the message names the option, the value and the remedy."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """An installation as its user wants it.

    namespaced: rights only in `watch_namespaces` and in `namespace`, by Roles; nothing cluster-wide.
    watch_namespaces: empty for the whole cluster. variables: over the defaults, by program.
    with_namespace, with_definition: whether the Namespace and the CRD are part of it.
    operator_url: where a cluster has no DNS; read from the cluster, not chosen.
    """

    namespace: str = NAMESPACE
    image: str = IMAGE
    namespaced: bool = False
    watch_namespaces: tuple[str, ...] = ()
    operator_replicas: int = 2
    resolver_replicas: int = 2
    authentication: bool = True
    with_namespace: bool = True
    with_definition: bool = True
    variables: Mapping[Program, Mapping[str, str]] = dataclasses.field(default_factory=dict)
    operator_url: str = ""

    def __post_init__(self) -> None:
        for option, name in (
            ("--namespace", self.namespace),
            *(("--watch-namespace", name) for name in self.watch_namespaces),
        ):
            if not _NAME.match(name):
                raise ChoiceError(
                    f"{option} {name!r} is no namespace: write lower case letters, digits and '-',"
                    " at most 63"
                )
        if not self.image:
            raise ChoiceError("--image is empty: name one, such as registry.example.com/elasti:1")
        if self.namespaced and not self.watch_namespaces:
            raise ChoiceError(
                "--namespaced needs to know where: name each namespace with --watch-namespace"
            )

    def replicas(self, program: Program) -> int:
        """How many pods a program has."""
        match program:
            case Program.OPERATOR:
                return self.operator_replicas
            case Program.RESOLVER:
                return self.resolver_replicas

    def options(self) -> InstallOptions:
        """Return what differs from the defaults, for a later call to keep."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        found = {name: getattr(self, name) for name in InstallOptions.__annotations__}
        found["variables"] = {
            program.value: dict(named) for program, named in self.variables.items()
        }
        chosen = {
            name: value for name, value in found.items() if value != defaults[name] and value != {}
        }
        return cast("InstallOptions", chosen)


class InstallOptions(TypedDict, total=False):
    """The options that were given, by the names of `Choices`; variables by the program's word."""

    image: str
    namespaced: bool
    watch_namespaces: tuple[str, ...]
    operator_replicas: int
    resolver_replicas: int
    authentication: bool
    with_namespace: bool
    with_definition: bool
    variables: dict[str, dict[str, str]]


_FLAGS = {
    "namespaced": "--namespaced",
    "authentication": "--no-authentication",
    "with_namespace": "--no-namespace",
    "with_definition": "--no-crd",
}


def merged(kept: InstallOptions, given: InstallOptions) -> InstallOptions:
    """Return the options of an installation with those of a call over them."""
    before, now = kept.get("variables", {}), given.get("variables", {})
    variables = {name: {**before.get(name, {}), **now.get(name, {})} for name in {**before, **now}}
    return {**kept, **given, "variables": variables}


def written(options: InstallOptions) -> list[str]:
    """Return options as a user writes them."""
    found: list[str] = []
    for name, value in options.items():
        match name, value:
            case "watch_namespaces", [*places]:
                found += [f"--watch-namespace {place}" for place in places]
            case "variables", dict():
                found += [
                    f"--env {program}:{key}={text}"
                    for program, named in value.items()
                    for key, text in named.items()
                ]
            case _:
                found.append(_FLAGS.get(name, f"--{name.replace('_', '-')} {value}"))
    return found


def read_program_variables(given: Iterable[str]) -> dict[Program, dict[str, str]]:
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
                f"--env {text!r} is not operator:KEY=VALUE or resolver:KEY=VALUE,"
                " such as operator:POLLING_INTERVAL=10s"
            )
        _check(Program(program), name, value)
        found.setdefault(Program(program), {})[name] = value
    return found


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
    if near := difflib.get_close_matches(name, known[program], n=1, cutoff=_NEAR):
        raise ChoiceError(
            f"--env {program.value}:{name} is no variable of the {program.value};"
            f" did you mean {near[0]}?"
        )


DEFINITION_LABELS = {
    "app.kubernetes.io/name": MANAGED_BY,
    "app.kubernetes.io/part-of": MANAGED_BY,
    "app.kubernetes.io/managed-by": MANAGED_BY,
}

_APP = "app"


class Manifest(NamedTuple):
    """An object, and what it is there for."""

    why: str
    obj: JsonObject


def account(program: Program) -> str:
    """Return the name of a program's Deployment, ServiceAccount, roles and policies."""
    return f"elasti-{program.value}"


def selector(program: Program) -> dict[str, str]:
    """Return the labels by which a program's pods are found; they never change."""
    return {_APP: account(program)}


def installation(namespace: str) -> dict[str, str]:
    """Return the labels by which everything of one installation is found."""
    return {
        "app.kubernetes.io/part-of": MANAGED_BY,
        "app.kubernetes.io/managed-by": MANAGED_BY,
        "app.kubernetes.io/instance": namespace,
    }


def labels(choices: Choices, program: Program | None = None) -> dict[str, str]:
    """Return the labels of an object, of one program or of the installation."""
    common = {
        "app.kubernetes.io/name": MANAGED_BY,
        **installation(choices.namespace),
        "app.kubernetes.io/version": __version__,
    }
    if program is None:
        return common
    return {**common, "app.kubernetes.io/component": program.value, **selector(program)}


def metadata(
    name: str, choices: Choices, *, program: Program | None = None, namespace: str = ""
) -> JsonObject:
    """Return an object's metadata; without a namespace it is the cluster's."""
    place = {"namespace": namespace} if namespace else {}
    return {"name": name, **place, "labels": labels(choices, program)}


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
        "--env",
        "variables",
        metavar="PROGRAM:KEY=VALUE",
        multiple=True,
        help="A variable of the operator or of the resolver; may be repeated.",
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
    fields = {**options, "watch_namespaces": tuple(options.get("watch_namespaces", ()))}
    named = options.get("variables", {})
    variables = {program: named[program.value] for program in Program if program.value in named}
    try:
        return Choices(namespace=namespace, **{**fields, "variables": variables})  # type: ignore[arg-type]  # as InstallOptions has them
    except ChoiceError as error:
        raise click.UsageError(str(error)) from error


def _given(flags: dict[str, Any]) -> InstallOptions:
    """Take the options out of a call's arguments, those that it has. Raises UsageError."""
    try:
        variables = read_program_variables(flags.pop("variables"))
    except ChoiceError as error:
        raise click.UsageError(str(error)) from error
    given = {
        "image": flags.pop("image"),
        "namespaced": flags.pop("namespaced") or None,
        "watch_namespaces": tuple(dict.fromkeys(flags.pop("watch_namespaces"))) or None,
        "operator_replicas": flags.pop("operator_replicas"),
        "resolver_replicas": flags.pop("resolver_replicas"),
        "authentication": False if flags.pop("no_authentication") else None,
        "with_namespace": False if flags.pop("no_namespace") else None,
        "with_definition": False if flags.pop("no_crd") else None,
        "variables": {program.value: named for program, named in variables.items()} or None,
    }
    chosen = {name: value for name, value in given.items() if value is not None}
    return cast("InstallOptions", chosen)
