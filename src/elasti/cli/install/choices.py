"""What may be chosen of an installation, checked. Pure."""

from __future__ import annotations

import dataclasses
import enum
import re
from typing import TYPE_CHECKING

from elasti.api.variables import SettingsError
from elasti.operator.settings import Settings as OperatorSettings
from elasti.resolver.settings import Settings as ResolverSettings
from kubeloop._version import __version__

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

NAMESPACE = "elasti"
IMAGE = f"elasti:{__version__}"

_NAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\Z")
_TOGETHER = frozenset({"ELASTI_TOKEN_KEYS_FILE", "ELASTI_TOKEN_ISSUERS"})
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


def read_variables(given: Iterable[str]) -> dict[Program, dict[str, str]]:
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
    settings = OperatorSettings if program is Program.OPERATOR else ResolverSettings
    # A reference gets its value in the pod; others are read with those that they belong to.
    if "$(" in value or name in _TOGETHER:
        return
    try:
        settings.from_env({name: value})
    except SettingsError as error:
        raise ChoiceError(f"--env {program.value}:{error}") from error
