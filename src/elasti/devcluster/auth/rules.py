"""One RBAC rule: what it allows, what it is made of, whether it covers another. Pure."""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from elasti.devcluster.apiserver.request import Attributes
    from kubeloop.objects.meta import JsonObject

ALL = "*"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A PolicyRule: verbs on resources, or verbs on paths."""

    verbs: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, obj: JsonObject) -> Rule:
        """Read a rule as it is stored."""
        return cls(
            verbs=_texts(obj.get("verbs")),
            groups=_texts(obj.get("apiGroups")),
            resources=_texts(obj.get("resources")),
            names=_texts(obj.get("resourceNames")),
            urls=_texts(obj.get("nonResourceURLs")),
        )

    def to_json(self) -> JsonObject:
        """Return the rule as it is stored; empty parts are left out."""
        parts = {
            "apiGroups": self.groups,
            "nonResourceURLs": self.urls,
            "resourceNames": self.names,
            "resources": self.resources,
            "verbs": self.verbs,
        }
        return {name: list(values) for name, values in parts.items() if values}

    def allows(self, attributes: Attributes) -> bool:
        """Whether a request is within the rule."""
        if attributes.verb not in self.verbs and ALL not in self.verbs:
            return False
        if not attributes.is_resource:
            return any(_path_covers(url, attributes.path) for url in self.urls)
        if attributes.group not in self.groups and ALL not in self.groups:
            return False
        if self.names and attributes.name not in self.names:
            return False
        subresource = attributes.subresource
        resource = f"{attributes.resource}/{subresource}" if subresource else attributes.resource
        return _resource_covers(self.resources, resource)

    def pieces(self) -> Iterator[Rule]:
        """Break the rule into rules of one verb on one thing each."""
        names: tuple[tuple[str, ...], ...] = tuple((name,) for name in self.names) or ((),)
        for group, resource, verb, name in itertools.product(
            self.groups, self.resources, self.verbs, names
        ):
            yield Rule(verbs=(verb,), groups=(group,), resources=(resource,), names=name)
        for url, verb in itertools.product(self.urls, self.verbs):
            yield Rule(verbs=(verb,), urls=(url,))

    def covers(self, piece: Rule) -> bool:
        """Whether everything that a piece allows is allowed by this rule as well."""
        return (
            _has(self.verbs, piece.verbs)
            and _has(self.groups, piece.groups)
            and all(_resource_covers(self.resources, resource) for resource in piece.resources)
            and (not self.names or (bool(piece.names) and set(piece.names) <= set(self.names)))
            and all(any(_path_covers(mine, url) for mine in self.urls) for url in piece.urls)
        )


EVERYTHING = (
    Rule(verbs=(ALL,), groups=(ALL,), resources=(ALL,)),
    Rule(verbs=(ALL,), urls=(ALL,)),
)


def read_rules(role: JsonObject) -> tuple[Rule, ...]:
    """Return the rules of a Role or ClusterRole."""
    rules = role.get("rules")
    if not isinstance(rules, list):
        return ()
    return tuple(Rule.from_json(rule) for rule in rules if isinstance(rule, dict))


def uncovered(owned: Iterable[Rule], wanted: Iterable[Rule]) -> list[Rule]:
    """Return the pieces of the wanted rules that no owned rule covers."""
    mine = list(owned)
    return [
        piece
        for rule in wanted
        for piece in rule.pieces()
        if not any(rule.covers(piece) for rule in mine)
    ]


def compact(pieces: Iterable[Rule]) -> list[Rule]:
    """Join pieces that differ in their verb only."""
    verbs: dict[Rule, list[str]] = {}
    for piece in pieces:
        verbs.setdefault(dataclasses.replace(piece, verbs=()), []).extend(piece.verbs)
    return [dataclasses.replace(rule, verbs=tuple(found)) for rule, found in verbs.items()]


def describe(rule: Rule) -> str:
    """Write a rule the way Kubernetes' refusals do."""
    parts = {
        "APIGroups": rule.groups,
        "Resources": rule.resources,
        "ResourceNames": rule.names,
        "NonResourceURLs": rule.urls,
        "Verbs": rule.verbs,
    }
    shown = [f"{name}:{go_list(values)}" for name, values in parts.items() if values]
    return "{" + ", ".join(shown) + "}"


def go_list(values: Iterable[str]) -> str:
    """Write strings as Go prints a quoted list."""
    return "[" + " ".join(f'"{value}"' for value in values) + "]"


def _texts(value: Any) -> tuple[str, ...]:
    if not isinstance(value, list):
        return ()
    return tuple(item for item in value if isinstance(item, str))


def _has(mine: tuple[str, ...], wanted: tuple[str, ...]) -> bool:
    return ALL in mine or set(wanted) <= set(mine)


def _resource_covers(resources: tuple[str, ...], wanted: str) -> bool:
    if wanted in resources or ALL in resources:
        return True
    _, slash, subresource = wanted.partition("/")
    return bool(slash) and f"*/{subresource}" in resources


def _path_covers(url: str, path: str) -> bool:
    return url == path or (url.endswith(ALL) and path.startswith(url.rstrip(ALL)))
