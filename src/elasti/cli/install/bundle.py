"""Everything of an installation, in the order in which it is applied. Pure.

What others need comes first: the namespace, the definition, accounts with their rights, the places
where programs are found, and the programs last.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.api.crd import custom_resource_definition
from elasti.cli.install.network import budgets, policies, services
from elasti.cli.install.parts import DEFINITION_LABELS, Part, metadata
from elasti.cli.install.roles import accounts, roles
from elasti.cli.install.workloads import deployments

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasti.cli.install.choices import Choices
    from kubeloop.objects.meta import JsonObject


def bundle(choices: Choices) -> tuple[Part, ...]:
    """Return the objects, each with its reason."""
    return tuple(_parts(choices))


def _parts(choices: Choices) -> Iterator[Part]:
    if choices.with_namespace:
        namespace = {
            "apiVersion": "v1",
            "kind": "Namespace",
            "metadata": metadata(choices.namespace, choices),
        }
        yield Part("Where the programs live.", namespace)
    if choices.with_definition:
        yield Part("What an ElastiService is.", definition())
    for parts in (accounts, roles, services, policies, budgets, deployments):
        yield from parts(choices)


def definition() -> JsonObject:
    """Return the CustomResourceDefinition, marked as ours; it belongs to no one installation."""
    found = custom_resource_definition()
    return {**found, "metadata": {**found["metadata"], "labels": dict(DEFINITION_LABELS)}}
