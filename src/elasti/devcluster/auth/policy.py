"""Roles and bindings, indexed by who they are for.

The index follows the store's own logs of changes: before it answers, it takes in what was written
since the last time, which is nothing at all for nearly every request. So a permission counts from
the very write that gives or takes it, and nobody has to tell the index.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

from elasti.devcluster.auth.rules import Rule, read_rules

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasti.devcluster.apiserver.auth import User
    from elasti.devcluster.apiserver.storage import Record, Store
    from kubeloop.objects.meta import JsonObject

GROUP = "rbac.authorization.k8s.io"
ROLES = f"{GROUP}/roles"
CLUSTER_ROLES = f"{GROUP}/clusterroles"
ROLE_BINDINGS = f"{GROUP}/rolebindings"
CLUSTER_ROLE_BINDINGS = f"{GROUP}/clusterrolebindings"
ACCOUNT_PREFIX = "system:serviceaccount:"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Grant:
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


class Policy:
    """Answers which rules hold for a user in a namespace. `revision` counts changes."""

    def __init__(self, store: Store) -> None:
        self.revision = 0
        self._store = store
        self._seen = -1
        self._rules: dict[tuple[str, str], tuple[Rule, ...]] = {}
        self._bound: dict[tuple[str, str], list[tuple[str, Grant]]] = {}
        # By subject (`user NAME` or `group NAME`), then by namespace ("" is the whole cluster).
        self._grants: dict[str, dict[str, list[Grant]]] = {}

    def grants(self, user: User, namespace: str) -> Iterator[Grant]:
        """Yield what is granted to a user: in the whole cluster first, then in the namespace."""
        self.refresh()
        subjects = [f"user {user.name}", *(f"group {group}" for group in user.groups)]
        for place in ("", namespace) if namespace else ("",):
            for subject in subjects:
                yield from self._grants.get(subject, {}).get(place, ())

    def rules_of(self, grant: Grant) -> tuple[Rule, ...] | None:
        """Return the rules that a grant gives; None where its role does not exist."""
        return self._rules.get(grant.role_key)

    def cluster_role(self, name: str) -> tuple[Rule, ...] | None:
        """Return a ClusterRole's rules; None where it does not exist."""
        self.refresh()
        return self._rules.get((CLUSTER_ROLES, name))

    def role(self, namespace: str, name: str) -> tuple[Rule, ...] | None:
        """Return a Role's rules; None where it does not exist."""
        self.refresh()
        return self._rules.get((ROLES, f"{namespace}/{name}"))

    def rules_for(self, user: User, namespace: str) -> list[Rule]:
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
        """The log does not reach back far enough, or this is the first look."""
        for key in [key for key in (*self._rules, *self._bound) if key[0] == name]:
            self._forget(key)
        for record in self._store.collection(name).scan():
            self._take(name, record, deleted=False)

    def _take(self, name: str, record: Record, *, deleted: bool) -> None:
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


def _read_grants(binding: JsonObject, namespace: str) -> Iterator[tuple[str, Grant]]:
    role: JsonObject = binding.get("roleRef") or {}
    for subject in binding.get("subjects") or ():
        who, shown = _subject(subject, namespace)
        if who:
            yield (
                who,
                Grant(
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
