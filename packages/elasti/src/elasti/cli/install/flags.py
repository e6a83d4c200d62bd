"""The options of an installation as a user writes them; `elasti manifests` and `elasti install` share them.

Variables are checked by the rules that the program itself applies at its start.
"""

from __future__ import annotations

import difflib
import functools
import ipaddress
import re
from collections.abc import Callable, Collection, Iterable, Mapping
from pathlib import Path
from typing import Any, TypeAlias

import click

from elasti.api.defaults import LOWEST_DATA_PORT, RESOLVER_SHARED_PORT
from elasti.api.names import NAMESPACE, SLEEP_LABEL
from elasti.api.parsing import NEAR, SettingsError
from elasti.cli.install.choices import (
    BY_PROGRAM,
    DEFAULT_PORT_RANGE,
    IMAGE,
    OPTIONS,
    PROGRAMS,
    Autoscaling,
    ChoiceError,
    Choices,
    InstallOptions,
    Program,
    read_toleration,
)
from elasti.cli.options import WholeNumber, namespace_option

ByProgram: TypeAlias = dict[str, dict[str, str]]
Command: TypeAlias = Callable[..., None]
Decorator: TypeAlias = Callable[[Command], Command]

_TOGETHER = frozenset({"ELASTI_TOKEN_KEYS_FILE", "ELASTI_TOKEN_ISSUERS"})
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]*\Z")
_SECRET = re.compile(r"[a-z0-9][a-z0-9.-]*/[A-Za-z0-9._-]+\Z")
_HOST = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?(:[0-9]+)?\Z")
_RANGE = re.compile(r"(\d+)-(\d+)(?:@(\d+))?\Z")

# The flags whose names are not their options'.
_FLAGS = {
    "authentication": "--no-authentication",
    "with_namespace": "--no-namespace",
    "with_definition": "--no-crd",
    "watch_namespaces": "--watch-namespace",
    "pull_secrets": "--image-pull-secret",
    "tolerations": "--toleration",
    "labels": "--label",
    "variables": "--env",
    "secret_variables": "--env-secret",
    "autoscaling": "--resolver-autoscaling",
    "kubelet_stats": "--no-kubelet-stats",
    "default_triggers": "--default-trigger",
    "operator_policy": "--no-operator-policy",
    "egress_policies": "--no-egress-policies",
    "egress_ports": "--egress-port",
    "client_connections": "--max-connections-per-client",
    "unlimited_clients": "--unlimited-clients",
    "dashboard_hosts": "--dashboard",
}


def merged(kept: InstallOptions, given: InstallOptions) -> InstallOptions:
    """Return the options of an installation with those of a call over them."""
    found: InstallOptions = {**kept, **given}
    for option in BY_PROGRAM:
        before, now = kept.get(option, {}), given.get(option, {})
        found[option] = {
            name: {**before.get(name, {}), **now.get(name, {})} for name in {**before, **now}
        }
    # A variable has one source: the one that was given last.
    for one, other in (("variables", "secret_variables"), ("secret_variables", "variables")):
        for program, named in given.get(one, {}).items():
            for name in named:
                found[other].get(program, {}).pop(name, None)
    return {name: value for name, value in found.items() if value != {}}


def written(options: InstallOptions) -> list[str]:
    """Return options as a user writes them."""
    found: list[str] = []
    for name, value in options.items():
        flag = _flag(name)
        if name == "autoscaling":
            found.append("{} {}-{}@{}".format(flag, *value))
        elif name == "affinity":
            found.append(f"{flag} (unchanged)")
        elif name in ("shared_port", "waiting_page", "doze", "enrolment", "traffic_path"):
            found.append(flag if value else _off(flag))
        elif isinstance(value, bool):
            found.append(flag)
        elif isinstance(value, tuple):
            found += [f"{flag} {item}" for item in value or ("none",)]
        elif name in BY_PROGRAM:
            found += [
                f"{flag} {program}:{key}={text}"
                for program, named in value.items()
                for key, text in named.items()
            ]
        elif isinstance(value, dict):
            found += [f"{flag} {key}={text}" for key, text in value.items()]
        else:
            found.append(f"{flag} {value}")
    return found


def _flag(name: str) -> str:
    return _FLAGS.get(name, f"--{name.replace('_', '-')}")


def _off(flag: str) -> str:
    return flag.replace("--", "--no-")


def read_program_variables(given: Iterable[str]) -> ByProgram:
    """Read variables, checked. Raises ChoiceError."""
    found = _of_programs("--env", given, "operator:POLLING_INTERVAL=10s")
    for program, named in found.items():
        for name, value in named.items():
            _check(program, name, value)
    return found


def _of_programs(
    option: str, given: Iterable[str], example: str, programs: Collection[str] = PROGRAMS
) -> ByProgram:
    """Read `operator:KEY=VALUE` and `resolver:KEY=VALUE`; the last of a name wins.

    Raises ChoiceError.
    """
    found: ByProgram = {}
    for text in given:
        program, colon, pair = text.partition(":")
        name, equals, value = pair.partition("=")
        if not (program in programs and colon and equals and _VARIABLE.match(name)):
            raise ChoiceError(
                f"{option} {text!r} is not operator:KEY=VALUE or resolver:KEY=VALUE, such as {example}"
            )
        found.setdefault(program, {})[name] = value
    return found


def _read_secret_variables(given: Iterable[str]) -> ByProgram:
    example = "operator:PROMETHEUS_TRIGGER_AUTHORIZATION_HEADER=prometheus/header"
    found = _of_programs("--env-secret", given, example)
    for program, named in found.items():
        for name, value in named.items():
            if not _SECRET.match(value):
                raise ChoiceError(
                    f"--env-secret {program}:{name}={value} does not name a Secret and a key: write"
                    " SECRET/KEY after the ="
                )
            _check(program, name, "$(secret)")
    return found


def _read_tolerations(given: Iterable[str]) -> tuple[str, ...]:
    for text in given:
        read_toleration(text)
    return _distinct(given)


def _read_default_triggers(given: Iterable[str]) -> tuple[str, ...]:
    from elasti.operator.settings import parse_default_triggers

    try:
        return parse_default_triggers(",".join(_unless_none(given)))
    except ValueError as error:
        raise ChoiceError(f"--default-trigger {error}") from None


def _read_hosts(given: Iterable[str]) -> tuple[str, ...]:
    names = _unless_none(given)
    for name in names:
        if not _HOST.match(name):
            raise ChoiceError(
                f"--dashboard {name!r} is not a host name: write one such as elasti.example.com, or none"
            )
    return names


def _read_networks(given: Iterable[str]) -> tuple[str, ...]:
    try:
        return tuple(str(ipaddress.ip_network(name)) for name in _unless_none(given))
    except ValueError as error:
        raise ChoiceError(
            f"--unlimited-clients: {error}; write a network such as 10.0.0.0/8, or none"
        ) from None


def _distinct(given: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(given))


def _unless_none(given: Iterable[str]) -> tuple[str, ...]:
    names = _distinct(given)
    return () if names == ("none",) else names


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
            f"--affinity {path} is not an affinity: write {', '.join(sorted(kinds))} at the top"
        )
    return found


def _read_autoscaling(text: str) -> Autoscaling:
    found = _RANGE.match(text)
    if found is None:
        raise ChoiceError(
            f"--resolver-autoscaling {text!r} is not MIN-MAX or MIN-MAX@CPU, such as 2-6@70"
        )
    return Autoscaling(*(int(part) for part in found.groups() if part))


def _check(program: str, name: str, value: str) -> None:
    """Refuse a value that the program itself would refuse at its start. Raises ChoiceError."""
    # Here, not above: the help of a command needs neither program.
    from elasti.operator import settings as operator
    from elasti.resolver import settings as resolver

    known: dict[str, Collection[str]] = {
        Program.OPERATOR: operator.VARIABLES,
        Program.RESOLVER: resolver.VARIABLES,
    }
    if name not in known[program]:
        _refuse_misspelt(program, name, known)
    # A reference gets its value in the pod; those of `_TOGETHER` are only valid together.
    if "$(" in value or name in _TOGETHER:
        return
    try:
        if program == Program.OPERATOR:
            operator.OperatorSettings.from_env({name: value})
        else:
            resolver.ResolverSettings.from_env({name: value})
    except SettingsError as error:
        raise ChoiceError(f"--env {program}:{error}") from error


def _refuse_misspelt(program: str, name: str, known: Mapping[str, Collection[str]]) -> None:
    """Refuse a variable of the other program, and a near miss of this one's; others may be a library's."""
    for other, names in known.items():
        if name in names:
            raise ChoiceError(
                f"--env {program}:{name} is a variable of the {other}: write {other}:{name}"
            )
    if near := difflib.get_close_matches(name, known[program], n=1, cutoff=NEAR):
        raise ChoiceError(
            f"--env {program}:{name} is not a variable of the {program}; did you mean {near[0]}?"
        )


def _option(name: str, read: Callable[[Any], Any] | None = None, **attributes: Any) -> Decorator:
    """Return an option of that name in `OPTIONS`; None if it is not given."""

    def called(_ctx: click.Context, _param: click.Parameter, given: Any) -> Any:
        try:
            return read(given) if read and given else None
        except ChoiceError as error:
            raise click.UsageError(str(error)) from error

    return click.option(_flag(name), name, callback=called if read else None, **attributes)


def _switch(name: str, about: str) -> Decorator:
    value = not _flag(name).startswith("--no-")
    return _option(name, lambda _given: value, is_flag=True, help=about)


def _toggle(name: str, about: str) -> Decorator:
    on = _flag(name)
    return click.option(f"{on}/{_off(on)}", name, default=None, help=about)


def _repeated(name: str, read: Callable[[Any], Any], metavar: str, about: str) -> Decorator:
    return _option(name, read, metavar=metavar, multiple=True, help=about)


_OPTIONS = (
    namespace_option("The namespace of operator and resolver.", NAMESPACE),
    _option("image", show_default=IMAGE, help="The image of both programs."),
    _switch("namespaced", "Grant rights in the watched namespaces only: Roles, no ClusterRole."),
    _repeated(
        "watch_namespaces",
        _distinct,
        "NS",
        "Watch only this namespace; may be repeated. All by default.",
    ),
    _option("operator_replicas", type=WholeNumber(1, 20), show_default="2"),
    _option("resolver_replicas", type=WholeNumber(1, 200), show_default="2"),
    _switch(
        "authentication",
        "Do not authenticate operator and resolver to each other by ServiceAccount tokens.",
    ),
    _option(
        "tls",
        type=click.Choice(("on", "off", "required")),
        show_default="on",
        help="TLS between operator and resolver. With `on`, a peer that has no TLS yet is called in the clear.",
    ),
    _option(
        "tls_secret",
        metavar="NAME",
        help="A Secret with ca.crt, tls.crt and tls.key for elasti.internal, such as cert-manager's. By default the"
        " operator makes its own.",
    ),
    _switch("with_definition", "Do not install the CustomResourceDefinition."),
    _switch("with_namespace", "Do not create the Namespace; it must exist."),
    _option(
        "port_range",
        metavar="FIRST-LAST",
        show_default=DEFAULT_PORT_RANGE,
        help="The resolvers' ports, of which each port of a Service takes one: up to 40000, within"
        f" {LOWEST_DATA_PORT}-65535.",
    ),
    _toggle(
        "shared_port",
        f"Open port {RESOLVER_SHARED_PORT}, on which the Host header selects the Service: its clients"
        " reach every Service with an ElastiService. Off, unless KubeElasti is in the namespace.",
    ),
    _switch("kubelet_stats", "Do not read kubelets, which the trigger `network` needs."),
    _switch(
        "kubelet_insecure_tls",
        "Also read kubelets whose certificates the cluster's CA did not sign.",
    ),
    _repeated(
        "default_triggers",
        _read_default_triggers,
        "TYPE",
        "A trigger of ElastiServices that leave out `triggers`; may be repeated, or `none`. `network` by default,"
        " unless the cluster has or had an earlier installation or KubeElasti.",
    ),
    _toggle(
        "doze",
        "Allow `sleep.mode: Doze`: the operator may patch pods/resize and evict pods. Off by default.",
    ),
    _toggle(
        "enrolment",
        f"Create ElastiServices for Services and namespaces with the label {SLEEP_LABEL}. Off by default.",
    ),
    _option(
        "target_ref",
        type=click.Choice(("Auto", "Pod", "None")),
        help="Whether endpoints name the resolver's pods. Auto, the default: unless Istio ambient reads them.",
    ),
    _toggle(
        "traffic_path",
        "Let the operator list TargetGroupBindings, to find AWS load balancers. On by default.",
    ),
    _toggle(
        "waiting_page",
        "Show browsers a page while a target wakes, unless its ElastiService sets wake.page.mode."
        " Off by default.",
    ),
    _option(
        "client_connections",
        type=WholeNumber(1, 1_000_000),
        help="The most connections of one client address to a resolver. Four fifths of all by default.",
    ),
    _repeated(
        "unlimited_clients",
        _read_networks,
        "CIDR",
        "A network without that limit, such as an ingress's; may be repeated, or `none`. None by default.",
    ),
    _repeated(
        "dashboard_hosts",
        _read_hosts,
        "HOST",
        "Run a dashboard in the cluster at this host name, behind a proxy that sends each visitor's own"
        " bearer token; may be repeated, or `none`. None by default.",
    ),
    _repeated(
        "variables",
        read_program_variables,
        "PROGRAM:KEY=VALUE",
        "A variable of the operator or of the resolver; may be repeated.",
    ),
    _repeated(
        "secret_variables",
        _read_secret_variables,
        "PROGRAM:KEY=SECRET/KEY",
        "A variable whose value is in a Secret; may be repeated.",
    ),
    _repeated(
        "resources",
        lambda given: _of_programs("--resources", given, "operator:limits.memory=1Gi", [*Program]),
        "PROGRAM:KEY=VALUE",
        "Resources of a program, such as resolver:limits.memory=2Gi; may be repeated.",
    ),
    _option(
        "autoscaling",
        _read_autoscaling,
        metavar="MIN-MAX[@CPU]",
        help="Create a HorizontalPodAutoscaler for the resolver; CPU is a percentage of its request, 70 by default.",
    ),
    _repeated(
        "pull_secrets", _distinct, "NAME", "A Secret to pull the image with; may be repeated."
    ),
    _repeated(
        "labels",
        functools.partial(_read_pairs, "--label"),
        "KEY=VALUE",
        "A label for every object and pod; may be repeated.",
    ),
    _repeated(
        "node_selector",
        functools.partial(_read_pairs, "--node-selector"),
        "KEY=VALUE",
        "Run only on nodes with this label; may be repeated.",
    ),
    _repeated(
        "tolerations",
        _read_tolerations,
        "KEY[=VALUE][:EFFECT]",
        "Also run on nodes with this taint; may be repeated.",
    ),
    _option(
        "affinity",
        _read_affinity,
        metavar="FILE",
        type=click.Path(dir_okay=False, path_type=Path),
        help="A pod's `affinity`, as YAML, for both programs.",
    ),
    _switch(
        "operator_policy",
        "Do not bind the operator's writes to its own objects by a ValidatingAdmissionPolicy.",
    ),
    _switch(
        "egress_policies", "Do not restrict by NetworkPolicies what operator and resolver may call."
    ),
    _option(
        "egress_ports",
        _distinct,
        metavar="PORT",
        multiple=True,
        type=WholeNumber(1, 65535),
        help="Another port outside the cluster's pods that they may call, besides the usual ones of the API"
        " server and Prometheus; may be repeated.",
    ),
)


def install_options(command: Command) -> Command:
    """Give a command the options; it is called with those given, as `options`, beside `namespace`."""

    @functools.wraps(command)
    def called(*args: Any, **flags: Any) -> None:
        given = {name: flags.pop(name) for name in OPTIONS}
        options = {name: value for name, value in given.items() if value is not None}
        command(*args, options=options, **flags)

    decorated: Command = called
    for option in reversed(_OPTIONS):
        decorated = option(decorated)
    return decorated


def choices_of(namespace: str, options: InstallOptions) -> Choices:
    """Return the choices. Raises UsageError."""
    try:
        return Choices(namespace=namespace, **options)
    except ChoiceError as error:
        raise click.UsageError(str(error)) from error
