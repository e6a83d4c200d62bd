"""Who may do what: ServiceAccounts, roles and bindings, from the programs' own rules. Pure.

Either by ClusterRoles, or, where nothing may be the cluster's, by one Role in each namespace. A
ClusterRole that collects others lets people add kinds of targets without changing ours.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.api.names import AGGREGATE_LABEL
from elasti.cli.install.choices import Program
from elasti.cli.install.parts import Part, account, metadata
from elasti.operator import rbac as operator
from elasti.resolver import rbac as resolver

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from elasti.api.rights import Rule
    from elasti.cli.install.choices import Choices
    from kubeloop.objects.meta import JsonObject

_GROUP = "rbac.authorization.k8s.io"
_VERSION = f"{_GROUP}/v1"
TARGETS = "elasti-operator-targets"
LEADER = "elasti-operator-leader"
_RULES = {
    Program.OPERATOR: operator.NAMESPACED_RULES,
    Program.RESOLVER: resolver.NAMESPACED_RULES,
}
_CLUSTER_RULES = {
    Program.OPERATOR: operator.CLUSTER_RULES,
    Program.RESOLVER: resolver.CLUSTER_RULES,
}


def accounts(choices: Choices) -> Iterator[Part]:
    """Yield the programs' ServiceAccounts."""
    for program in Program:
        meta = metadata(account(program), choices, program=program, namespace=choices.namespace)
        obj = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta}
        yield Part(f"Who the {program.value} is.", obj)


def roles(choices: Choices) -> Iterator[Part]:
    """Yield every role and binding."""
    if choices.namespaced:
        yield from _namespaced(choices)
    else:
        yield from _clusterwide(choices)
    yield from _leader(choices)


def _clusterwide(choices: Choices) -> Iterator[Part]:
    for program in Program:
        rules = (*_RULES[program], *_CLUSTER_RULES[program])
        why = f"What the {program.value} may do in every namespace."
        yield Part(why, _role(account(program), rules, program, choices))
        yield Part(f"The {program.value} may do it.", _bound(account(program), program, choices))
    yield Part(
        f'More kinds of targets: label a ClusterRole {AGGREGATE_LABEL}: "true", and its rules'
        " are the operator's too.",
        _collecting(choices),
    )
    yield Part("The operator may do it.", _bound(TARGETS, Program.OPERATOR, choices))


def _namespaced(choices: Choices) -> Iterator[Part]:
    for namespace in choices.watch_namespaces:
        for program in Program:
            name = account(program)
            why = f"What the {program.value} may do in {namespace}."
            yield Part(why, _role(name, _RULES[program], program, choices, namespace))
            yield Part(f"The {program.value} may do it.", _bound(name, program, choices, namespace))


def _leader(choices: Choices) -> Iterator[Part]:
    rules = (*operator.OWN_RULES, *operator.RESOLVER_NAMESPACE_RULES)
    role = _role(LEADER, rules, Program.OPERATOR, choices, choices.namespace)
    yield Part("The lease of the replica that leads, and where the resolvers are.", role)
    bound = _bound(LEADER, Program.OPERATOR, choices, choices.namespace)
    yield Part("The operator may do it.", bound)


def _role(
    name: str, rules: Iterable[Rule], program: Program, choices: Choices, namespace: str = ""
) -> JsonObject:
    return {
        "apiVersion": _VERSION,
        "kind": "Role" if namespace else "ClusterRole",
        "metadata": metadata(name, choices, program=program, namespace=namespace),
        "rules": [rule.to_json() for rule in rules],
    }


def _collecting(choices: Choices) -> JsonObject:
    # No rules here: a controller of the cluster writes them, and would be contradicted.
    chosen = {"matchLabels": {AGGREGATE_LABEL: "true"}}
    return {
        "apiVersion": _VERSION,
        "kind": "ClusterRole",
        "metadata": metadata(TARGETS, choices, program=Program.OPERATOR),
        "aggregationRule": {"clusterRoleSelectors": [chosen]},
    }


def _bound(name: str, program: Program, choices: Choices, namespace: str = "") -> JsonObject:
    subject = {
        "kind": "ServiceAccount",
        "name": account(program),
        "namespace": choices.namespace,
    }
    scope = "" if namespace else "Cluster"
    return {
        "apiVersion": _VERSION,
        "kind": f"{scope}RoleBinding",
        "metadata": metadata(name, choices, program=program, namespace=namespace),
        "roleRef": {"apiGroup": _GROUP, "kind": f"{scope}Role", "name": name},
        "subjects": [subject],
    }
