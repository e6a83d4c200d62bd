"""What the operator may write, as a ValidatingAdmissionPolicy. Pure.

Its role must let it write Services and EndpointSlices in every namespace, whatever their names. The policy binds these
writes to what the operator does: its private Services and slices, its key in the selector of a public Service, the
annotations that pause a ScaledObject, the Secret with its certificates, and finalizers and annotations of ElastiServices.
Workloads it only scales. So a stolen token of it rewrites no Service, slice or Deployment of others.

Names decide which objects are the operator's, because labels can be written by the same request and names cannot. What
0.2 and KubeElasti made has the same names. The rules are for all of an object's fields but the named ones, so that they
hold for fields that later versions of Kubernetes add.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from elasti.api.names import (
    DRAIN_KEY,
    ENROLLED_LABEL,
    GROUP,
    MANAGED_BY,
    PAUSED,
    PAUSED_BY_US_ANNOTATION,
    PAUSED_REPLICAS,
    PLURAL,
    PRIVATE_LABEL,
    TLS_SECRET,
)
from elasti.cli.install.admission import policy_and_binding, policy_rules
from elasti.cli.install.choices import Choices, Manifest, Program, account
from kubeloop.objects.core import MANAGED_BY_LABEL, SERVICE_LABEL
from kubeloop.objects.meta import JsonObject

NAME = "elasti-operator-writes"
_METADATA = ("labels", "annotations", "finalizers", "ownerReferences")
_MATCHED = (
    ("", ("services", "secrets")),
    ("discovery.k8s.io", ("endpointslices",)),
    ("apps", ("deployments", "statefulsets", "daemonsets", "replicasets")),
    ("argoproj.io", ("rollouts",)),
    ("keda.sh", ("scaledobjects",)),
    (GROUP, (PLURAL,)),
)


def operator_policy(choices: Choices) -> Iterator[Manifest]:
    """Yield the policy and its binding; a namespaced installation has nothing outside of its namespaces."""
    if choices.namespaced or not choices.operator_policy:
        return
    user = f"system:serviceaccount:{choices.namespace}:{account(Program.OPERATOR)}"
    yield from policy_and_binding(
        NAME,
        choices,
        policy_spec(user, choices.ports, enrols=choices.enrolment),
        "The operator may write only its own objects, even if its token is stolen. Kubernetes 1.30 or newer.",
    )


def policy_spec(user: str, ports: tuple[int, int], *, enrols: bool = False) -> JsonObject:
    """Return the policy for an account, and for a range of resolver ports."""
    own, message = _ELASTISERVICES
    if enrols:
        own, message = f"({own}) || ({_IS_ENROLLED})", f"{message}, unless enrolment made them"
    rules = (*_RULES, (PLURAL, own, message))
    validations = [
        {
            "expression": f"variables.kind != '{kind}' || ({expression})",
            "reason": "Forbidden",
            "message": f"the operator {message}",
        }
        for kind, expression, message in rules
    ]
    is_operator = f"request.userInfo.username == '{user}'"
    operations = ("CREATE", "UPDATE", "DELETE")
    variables = _VARIABLES | {"are_resolver_ports": _ARE_RESOLVER_PORTS.format(*ports)}
    return policy_rules(_MATCHED, operations, {"is-operator": is_operator}, variables, validations)


def _same(field: str, free: Sequence[str] = ()) -> str:
    """Return the expression that a map of the object has not changed, except for some keys."""
    old, new = (_map(f"{which}.{field}") for which in ("oldObject", "object"))
    listed = f"[{', '.join(map(repr, free))}]"
    return (
        f"{new}.all(key, key in {listed} || (key in {old} && {old}[key] == {new}[key]))"
        f" && {old}.all(key, key in {listed} || key in {new})"
    )


def _map(path: str) -> str:
    first, *fields = path.split(".")
    # Of any type: the checker of expressions takes no structure for a map.
    return f"dyn({first}{''.join(f'.?{field}' for field in fields)}.orValue({{}}))"


def _unchanged(*but: str) -> str:
    """Return the expression that the metadata have not changed, except for some of their fields."""
    return " && ".join(
        f"object.metadata.?{field} == oldObject.metadata.?{field}"
        for field in _METADATA
        if field not in but
    )


_LABELS = _map("object.metadata.labels")
_VARIABLES = {
    "kind": "request.resource.resource",
    "is_gone": "request.operation == 'DELETE'",
    "is_changed": "request.operation == 'UPDATE'",
    "labels": f"variables.is_gone ? {_map('oldObject.metadata.labels')} : {_LABELS}",
    # The name of the object, as a request to create may leave out its own.
    "name": "variables.is_gone ? oldObject.metadata.name : object.metadata.name",
    "is_private": "variables.name.matches('^elasti-.+-pvt-[0-9a-f]{10}$')",
    "service": f"'{SERVICE_LABEL}' in variables.labels ? variables.labels['{SERVICE_LABEL}'] : ''",
    "is_resolver_slice": (
        "variables.name.matches('^elasti-.+-endpointslice-to-resolver-[0-9a-f]{10}(-ipv6)?$')"
    ),
    "is_ours": f"'{MANAGED_BY_LABEL}' in variables.labels &&"
    f" variables.labels['{MANAGED_BY_LABEL}'] == '{MANAGED_BY}'",
}
_ARE_RESOLVER_PORTS = (
    "object.?ports.orValue([]).all(port, has(port.port) && port.port >= {} && port.port <= {})"
)
_ONLY_DRAINS = (
    f"{_same('spec', ('selector',))} && {_same('spec.selector', (DRAIN_KEY,))} && {_unchanged()}"
)
_PAUSES = (PAUSED, PAUSED_REPLICAS, PAUSED_BY_US_ANNOTATION)
_RULES = (
    (
        "services",
        "variables.is_private || variables.is_changed",
        "creates and deletes private Services only",
    ),
    (
        "services",
        (
            f"!variables.is_private || variables.is_gone || ('{PRIVATE_LABEL}' in variables.labels"
            " && object.metadata.?ownerReferences.orValue([]).exists(owner, owner.kind == 'Service')"
            " && object.spec.?type.orValue('ClusterIP') == 'ClusterIP'"
            " && object.spec.?externalIPs.orValue([]).size() == 0)"
        ),
        "makes private Services that are of type ClusterIP, labelled, and owned by the public Service",
    ),
    (
        "services",
        f"variables.is_private || !variables.is_changed || ({_ONLY_DRAINS})",
        f"changes {DRAIN_KEY} in the selector of a public Service, and nothing else in it",
    ),
    (
        "secrets",
        (
            f"variables.is_changed && variables.name == '{TLS_SECRET}' && {_unchanged()} &&"
            " request.userInfo.username.startsWith('system:serviceaccount:' + request.namespace + ':')"
        ),
        f"changes the Secret {TLS_SECRET} beside it, and no other",
    ),
    (
        "endpointslices",
        (
            "variables.is_gone ? (variables.is_ours || variables.is_resolver_slice) :"
            " (variables.is_ours && variables.is_resolver_slice"
            " && variables.name.startsWith('elasti-' + variables.service + '-endpointslice-to-resolver-'))"
        ),
        "writes its own EndpointSlices only",
    ),
    (
        "endpointslices",
        (
            "variables.is_gone || variables.are_resolver_ports"
            " || (variables.is_changed && object.?ports == oldObject.?ports)"
        ),
        "publishes resolver ports only, from --port-range",
    ),
    *(
        (kind, "false", "only scales workloads")
        for group, resources in _MATCHED
        if group in ("apps", "argoproj.io")
        for kind in resources
    ),
    (
        "scaledobjects",
        (
            f"variables.is_changed && object.spec == oldObject.spec && {_unchanged('annotations')}"
            f" && {_same('metadata.annotations', _PAUSES)}"
        ),
        "pauses and resumes ScaledObjects, and changes nothing else in them",
    ),
)
_ELASTISERVICES = (
    f"variables.is_changed && object.spec == oldObject.spec && {_unchanged('annotations', 'finalizers')}",
    "changes annotations and finalizers of ElastiServices, and nothing else in them",
)
_IS_ENROLLED = (
    f"'{ENROLLED_LABEL}' in variables.labels"
    " && (variables.is_gone ? oldObject : object).metadata.?ownerReferences.orValue([])"
    ".exists(owner, owner.kind == 'Service')"
    f" && (!variables.is_changed || '{ENROLLED_LABEL}' in {_map('oldObject.metadata.labels')})"
)
