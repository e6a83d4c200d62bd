"""RBAC rules, and roles and bindings indexed by their subjects.

The index follows the store's own logs of changes: before it answers, it takes in what was written
since the last time, which is nothing at all for nearly every request. So a permission counts from
the very write that gives or takes it, and nothing has to notify the index.
"""

from __future__ import annotations

import dataclasses
import itertools
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from devkube.apiserver.auth import UserInfo
    from devkube.apiserver.calls import Attributes
    from devkube.apiserver.storage import ObjectStore, StoredObject
    from kubeloop.objects.meta import JsonObject


ALL = "*"
GROUP = "rbac.authorization.k8s.io"
ROLES = f"{GROUP}/roles"
CLUSTER_ROLES = f"{GROUP}/clusterroles"
ROLE_BINDINGS = f"{GROUP}/rolebindings"
CLUSTER_ROLE_BINDINGS = f"{GROUP}/clusterrolebindings"
ACCOUNT_PREFIX = "system:serviceaccount:"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RbacRule:
    """A PolicyRule: verbs on resources, or verbs on paths."""

    verbs: tuple[str, ...] = ()
    groups: tuple[str, ...] = ()
    resources: tuple[str, ...] = ()
    names: tuple[str, ...] = ()
    urls: tuple[str, ...] = ()

    @classmethod
    def from_json(cls, obj: JsonObject) -> RbacRule:
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

    def pieces(self) -> Iterator[RbacRule]:
        """Break the rule into rules of one verb on one thing each."""
        names: tuple[tuple[str, ...], ...] = tuple((name,) for name in self.names) or ((),)
        for group, resource, verb, name in itertools.product(
            self.groups, self.resources, self.verbs, names
        ):
            yield RbacRule(verbs=(verb,), groups=(group,), resources=(resource,), names=name)
        for url, verb in itertools.product(self.urls, self.verbs):
            yield RbacRule(verbs=(verb,), urls=(url,))

    def covers(self, piece: RbacRule) -> bool:
        """Whether everything that a piece allows is allowed by this rule as well."""
        return (
            _has(self.verbs, piece.verbs)
            and _has(self.groups, piece.groups)
            and all(_resource_covers(self.resources, resource) for resource in piece.resources)
            and (not self.names or (bool(piece.names) and set(piece.names) <= set(self.names)))
            and all(any(_path_covers(mine, url) for mine in self.urls) for url in piece.urls)
        )


EVERYTHING = (
    RbacRule(verbs=(ALL,), groups=(ALL,), resources=(ALL,)),
    RbacRule(verbs=(ALL,), urls=(ALL,)),
)


def read_rules(role: JsonObject) -> tuple[RbacRule, ...]:
    """Return the rules of a Role or ClusterRole."""
    rules = role.get("rules")
    if not isinstance(rules, list):
        return ()
    return tuple(RbacRule.from_json(rule) for rule in rules if isinstance(rule, dict))


def uncovered(owned: Iterable[RbacRule], wanted: Iterable[RbacRule]) -> list[RbacRule]:
    """Return the pieces of the wanted rules that no owned rule covers."""
    mine = list(owned)
    return [
        piece
        for rule in wanted
        for piece in rule.pieces()
        if not any(rule.covers(piece) for rule in mine)
    ]


def compact(pieces: Iterable[RbacRule]) -> list[RbacRule]:
    """Join pieces that differ in their verb only."""
    verbs: dict[RbacRule, list[str]] = {}
    for piece in pieces:
        verbs.setdefault(dataclasses.replace(piece, verbs=()), []).extend(piece.verbs)
    return [dataclasses.replace(rule, verbs=tuple(found)) for rule, found in verbs.items()]


def describe(rule: RbacRule) -> str:
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RoleGrant:
    """One subject of one binding. `namespace` is empty for a ClusterRoleBinding."""

    namespace: str
    binding: str
    role_kind: str
    role: str
    subject_kind: str
    subject: str

    @property
    def role_key(self) -> tuple[str, str]:
        """Where the role is kept: its collection and its key there."""
        if self.role_kind == "Role":
            return ROLES, f"{self.namespace}/{self.role}"
        return CLUSTER_ROLES, self.role

    def __str__(self) -> str:
        kind, name = "ClusterRoleBinding", self.binding
        if self.namespace:
            kind, name = "RoleBinding", f"{self.binding}/{self.namespace}"
        return (
            f'{kind} "{name}" of {self.role_kind} "{self.role}"'
            f' to {self.subject_kind} "{self.subject}"'
        )


class RbacPolicy:
    """Answers which rules hold for a user in a namespace. `revision` counts changes."""

    def __init__(self, store: ObjectStore) -> None:
        self.revision = 0
        self._store = store
        self._seen = -1
        self._rules: dict[tuple[str, str], tuple[RbacRule, ...]] = {}
        self._bound: dict[tuple[str, str], list[tuple[str, RoleGrant]]] = {}
        # By subject (`user NAME` or `group NAME`), then by namespace ("" is the whole cluster).
        self._grants: dict[str, dict[str, list[RoleGrant]]] = {}

    def grants(self, user: UserInfo, namespace: str) -> Iterator[RoleGrant]:
        """Yield what is granted to a user: in the whole cluster first, then in the namespace."""
        self.refresh()
        subjects = [f"user {user.name}", *(f"group {group}" for group in user.groups)]
        for place in ("", namespace) if namespace else ("",):
            for subject in subjects:
                yield from self._grants.get(subject, {}).get(place, ())

    def rules_of(self, grant: RoleGrant) -> tuple[RbacRule, ...] | None:
        """Return the rules that a grant gives; None where its role does not exist."""
        return self._rules.get(grant.role_key)

    def cluster_role(self, name: str) -> tuple[RbacRule, ...] | None:
        """Return a ClusterRole's rules; None where it does not exist."""
        self.refresh()
        return self._rules.get((CLUSTER_ROLES, name))

    def role(self, namespace: str, name: str) -> tuple[RbacRule, ...] | None:
        """Return a Role's rules; None where it does not exist."""
        self.refresh()
        return self._rules.get((ROLES, f"{namespace}/{name}"))

    def rules_for(self, user: UserInfo, namespace: str) -> list[RbacRule]:
        """Return every rule that holds for a user in a namespace."""
        return [
            rule for grant in self.grants(user, namespace) for rule in self.rules_of(grant) or ()
        ]

    def refresh(self) -> None:
        """Take in what was written since the last time."""
        version = self._store.version
        if version == self._seen:
            return
        for name in (ROLES, CLUSTER_ROLES, ROLE_BINDINGS, CLUSTER_ROLE_BINDINGS):
            self._follow(name)
        self._seen = version

    def _follow(self, name: str) -> None:
        collection = self._store.collection(name)
        if self._seen < collection.log.compacted:
            self._reread(name)
            return
        for change in collection.log.after(self._seen):
            self._take(name, change.record, deleted=change.deleted)

    def _reread(self, name: str) -> None:
        """The log does not reach back far enough, or nothing was read yet."""
        for key in [key for key in (*self._rules, *self._bound) if key[0] == name]:
            self._forget(key)
        for record in self._store.collection(name).scan():
            self._take(name, record, deleted=False)

    def _take(self, name: str, record: StoredObject, *, deleted: bool) -> None:
        self.revision += 1
        key = (name, record.key)
        self._forget(key)
        if deleted:
            return
        obj = record.decode()
        if name in (ROLES, CLUSTER_ROLES):
            self._rules[key] = read_rules(obj)
            return
        self._bound[key] = list(_read_grants(obj, record.namespace))
        for subject, grant in self._bound[key]:
            self._grants.setdefault(subject, {}).setdefault(grant.namespace, []).append(grant)

    def _forget(self, key: tuple[str, str]) -> None:
        self._rules.pop(key, None)
        for subject, grant in self._bound.pop(key, ()):
            places = self._grants[subject]
            places[grant.namespace].remove(grant)
            if not places[grant.namespace]:
                del places[grant.namespace]
            if not places:
                del self._grants[subject]


def _read_grants(binding: JsonObject, namespace: str) -> Iterator[tuple[str, RoleGrant]]:
    role: JsonObject = binding.get("roleRef") or {}
    for subject in binding.get("subjects") or ():
        who, shown = _subject(subject, namespace)
        if who:
            yield (
                who,
                RoleGrant(
                    namespace=namespace,
                    binding=binding["metadata"]["name"],
                    role_kind=role.get("kind", ""),
                    role=role.get("name", ""),
                    subject_kind=subject["kind"],
                    subject=shown,
                ),
            )


def _subject(subject: dict[str, Any], namespace: str) -> tuple[str, str]:
    name = subject.get("name", "")
    match subject.get("kind"):
        case "User":
            return f"user {name}", name
        case "Group":
            return f"group {name}", name
        case "ServiceAccount":
            home = subject.get("namespace") or namespace
            return f"user {ACCOUNT_PREFIX}{home}:{name}" if home else "", f"{name}/{home}"
        case _:
            return "", ""
