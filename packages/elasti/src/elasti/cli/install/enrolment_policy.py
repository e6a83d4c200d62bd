"""Who may enrol, as a ValidatingAdmissionPolicy. Pure.

A label makes the operator create an ElastiService and scale a workload. So the account that sets it must be allowed to do both.
The same holds for the template annotation, and for the selector of a Service that has the label itself. The value "never",
and no label at all, are free: they only keep targets awake.

A selector in a labelled namespace is not checked: controllers switch selectors, and a refused switch is an outage. What
such a Service leads to next is observed first.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from elasti.api.names import GROUP, PLURAL, SLEEP_LABEL, TEMPLATE_ANNOTATION
from elasti.cli.install.admission import policy_and_binding, policy_rules
from elasti.operator.model.findings import ADDED_LABELS
from kubeloop.objects.meta import JsonObject

if TYPE_CHECKING:
    from elasti.cli.install.choices import Choices, Manifest

MAY_ENROL = "elasti-may-enrol"
_RIGHTS = (
    (GROUP, PLURAL, "create"),
    ("apps", "deployments", "update"),
    ("apps", "statefulsets", "update"),
)


def enrolment_policy(choices: Choices) -> Iterator[Manifest]:
    """Yield the policy and its binding, if the installation enrols."""
    if not choices.enrolment:
        return
    yield from policy_and_binding(
        MAY_ENROL,
        choices,
        enrolment_rules(),
        "An account that labels a Service or a namespace for enrolment must be allowed to create ElastiServices and update workloads there."
        " Kubernetes 1.30 or newer.",
    )


def _mark(obj: str, field: str, key: str) -> str:
    return f"{obj}.metadata.?{field}[?'{key}'].orValue('')"


def _before(expression: str, otherwise: str = "''") -> str:
    return f"request.operation == 'CREATE' ? {otherwise} : {expression}"


def _selector(obj: str) -> str:
    return f"dyn({obj}.?spec.?selector.orValue({{}}))"


_IS_SERVICE = "request.resource.resource == 'services'"
_VARIABLES = {
    "label": _mark("object", "labels", SLEEP_LABEL),
    "was": _before(_mark("oldObject", "labels", SLEEP_LABEL)),
    "inherited": f"{_IS_SERVICE} ? {_mark('namespaceObject', 'labels', SLEEP_LABEL)} : ''",
    "template": _mark("object", "annotations", TEMPLATE_ANNOTATION),
    "template_was": _before(_mark("oldObject", "annotations", TEMPLATE_ANNOTATION)),
    "added": f"[{', '.join(map(repr, sorted(ADDED_LABELS)))}]",
    "selector": f"{_IS_SERVICE} ? {_selector('object')} : dyn({{}})",
    "selector_was": f"{_IS_SERVICE} && request.operation == 'UPDATE' ? {_selector('oldObject')} : dyn({{}})",
    "moved": (
        "!variables.selector.all(key, key in variables.added || (key in variables.selector_was"
        " && variables.selector_was[key] == variables.selector[key]))"
        " || !variables.selector_was.all(key, key in variables.added || key in variables.selector)"
    ),
    "enrols": "(variables.label != '' ? variables.label : variables.inherited) in ['observe', 'enforce']",
    "asks": (
        "variables.enrols && (variables.label != variables.was || variables.template != variables.template_was"
        " || (variables.label != '' && variables.moved))"
    ),
    "place": f"{_IS_SERVICE} ? request.namespace : object.metadata.name",
}


def enrolment_rules() -> JsonObject:
    """Return the policy."""
    now, was = (
        " || ".join(
            f"'{key}' in dyn({obj}.metadata.?{field}.orValue({{}}))"
            for field, key in (("labels", SLEEP_LABEL), ("annotations", TEMPLATE_ANNOTATION))
        )
        for obj in ("object", "oldObject")
    )
    return policy_rules(
        [("", ("services", "namespaces"))],
        ("CREATE", "UPDATE"),
        # Others are not asked, and do not depend on this policy.
        {"is-marked": f"{now} || (request.operation == 'UPDATE' && ({was}))"},
        _VARIABLES,
        [
            {
                "expression": (
                    "variables.label == variables.was"
                    " || variables.label in ['', 'observe', 'enforce', 'never']"
                ),
                "message": f"label {SLEEP_LABEL} must be observe, enforce or never",
            },
            # One at a time: three checks would cost more than an expression may.
            *(
                {
                    "expression": f"!variables.asks || authorizer.group('{group}').resource('{resource}')"
                    f".namespace(variables.place).check('{verb}').allowed()",
                    "reason": "Forbidden",
                    "message": f"to set {SLEEP_LABEL} or {TEMPLATE_ANNOTATION}, or to change the selector of a Service"
                    f" with the label, you must be allowed to {verb} {resource} in the namespace",
                }
                for group, resource, verb in _RIGHTS
            ),
        ],
    )
