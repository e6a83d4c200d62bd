"""ValidatingAdmissionPolicies, as all of ours are: in force everywhere, and closed if they cannot be evaluated. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from elasti.cli.install.choices import Choices, Manifest, cluster_object
from kubeloop.objects.meta import JsonObject

_VERSION, _POLICY = "admissionregistration.k8s.io/v1", "ValidatingAdmissionPolicy"
NEEDS = (_VERSION, _POLICY)
"""Older servers have no such kind."""


def policy_and_binding(
    name: str,
    choices: Choices,
    spec: JsonObject,
    why: str,
    bound: str = "Enforces the policy in the whole cluster.",
) -> Iterator[Manifest]:
    """Yield a policy, and the binding that puts it in force."""
    yield Manifest(why, cluster_object(*NEEDS, name, choices, spec=spec), NEEDS)
    spec = {"policyName": name, "validationActions": ["Deny"]}
    binding = cluster_object(_VERSION, f"{_POLICY}Binding", name, choices, spec=spec)
    yield Manifest(bound, binding, NEEDS)


def policy_rules(
    matched: Iterable[tuple[str, Sequence[str]]],
    operations: Sequence[str],
    conditions: Mapping[str, str],
    variables: Mapping[str, str],
    validations: Sequence[JsonObject],
) -> JsonObject:
    """Return the spec of a policy; `matched` has a group and its resources."""
    rules = [
        {
            "apiGroups": [group],
            "apiVersions": ["*"],
            "operations": list(operations),
            "resources": list(resources),
        }
        for group, resources in matched
    ]
    return {
        "failurePolicy": "Fail",
        "matchConstraints": {"resourceRules": rules},
        "matchConditions": _named(conditions),
        "variables": _named(variables),
        "validations": list(validations),
    }


def _named(expressions: Mapping[str, str]) -> list[JsonObject]:
    return [{"name": name, "expression": text} for name, text in expressions.items()]
