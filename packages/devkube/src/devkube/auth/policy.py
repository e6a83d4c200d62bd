"""RBAC rules, and roles and bindings indexed by their subjects.

Before it answers, the index looks whether roles or bindings were written since it was made, and is
rebuilt if they were: that is rare, and there are few. So a permission counts from the very write
that gives or takes it, and nothing has to notify the index.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import msgspec

from devkube.apiserver.auth import UserInfo
from devkube.apiserver.calls import Attributes
from devkube.apiserver.storage import ObjectStore
from kubeloop.objects.meta import JsonObject

ALL = "*"
GROUP = "rbac.authorization.k8s.io"
ROLES = f"{GROUP}/roles"
CLUSTER_ROLES = f"{GROUP}/clusterroles"
ROLE_BINDINGS = f"{GROUP}/rolebindings"
CLUSTER_ROLE_BINDINGS = f"{GROUP}/clusterrolebindings"
ACCOUNT_PREFIX = "system:serviceaccount:"


class RbacRule(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True, gc=False):
    """A PolicyRule: verbs on resources, or verbs on paths."""

    groups: tuple[str, ...] = msgspec.field(default=(), name="apiGroups")
    urls: tuple[str, ...] = msgspec.field(default=(), name="nonResourceURLs")
    names: tuple[str, ...] = msgspec.field(default=(), name="resourceNames")
    resources: tuple[str, ...] = ()
    verbs: tuple[str, ...] = ()

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


def read_rules(role: JsonObject) -> tuple[RbacRule, ...]:
    """Return the rules of a Role or ClusterRole."""
    return msgspec.convert(role.get("rules") or (), tuple[RbacRule, ...])


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
        names = (ROLES, CLUSTER_ROLES, ROLE_BINDINGS, CLUSTER_ROLE_BINDINGS)
        self._collections = [store.collection(name) for name in names]
        self._seen: list[int] = []
        self._rules: dict[tuple[str, str], tuple[RbacRule, ...]] = {}
        # By subject (`user NAME` or `group NAME`) and namespace ("" is the whole cluster).
        self._grants: dict[tuple[str, str], list[RoleGrant]] = {}

    def grants(self, user: UserInfo, namespace: str) -> Iterator[RoleGrant]:
        """Yield what is granted to a user: in the whole cluster first, then in the namespace."""
        self.refresh()
        subjects = [f"user {user.name}", *(f"group {group}" for group in user.groups)]
        for place in ("", namespace) if namespace else ("",):
            for subject in subjects:
                yield from self._grants.get((subject, place), ())

    def rules_of(self, grant: RoleGrant) -> tuple[RbacRule, ...] | None:
        """Return the rules that a grant gives; None if its role does not exist."""
        return self._rules.get(grant.role_key)

    def cluster_role(self, name: str) -> tuple[RbacRule, ...] | None:
        """Return a ClusterRole's rules; None if it does not exist."""
        self.refresh()
        return self._rules.get((CLUSTER_ROLES, name))

    def rules_for(self, user: UserInfo, namespace: str) -> list[RbacRule]:
        """Return every rule that holds for a user in a namespace."""
        return [
            rule for grant in self.grants(user, namespace) for rule in self.rules_of(grant) or ()
        ]

    def refresh(self) -> None:
        """Rebuild the index if a role or binding was written since."""
        seen = [collection.revision for collection in self._collections]
        if seen == self._seen:
            return
        self._seen = seen
        self.revision += 1
        self._rules.clear()
        self._grants.clear()
        for collection in self._collections:
            for record in collection.scan():
                obj = record.decode()
                if collection.name in (ROLES, CLUSTER_ROLES):
                    self._rules[collection.name, record.key] = read_rules(obj)
                    continue
                for subject, grant in _read_grants(obj, record.namespace):
                    self._grants.setdefault((subject, grant.namespace), []).append(grant)


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
