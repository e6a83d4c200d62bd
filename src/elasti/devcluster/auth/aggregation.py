"""ClusterRoles made of others: rules of an `aggregationRule` are kept in step with what it selects.

Runs inside the write itself: when a role has been written, those that are made of it are up to date
before the writer has its answer.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.devcluster.auth.policy import CLUSTER_ROLES
from kubeloop.objects.selector_tokens import SelectorError
from kubeloop.objects.selectors import LabelSelector

if TYPE_CHECKING:
    from elasti.devcluster.apiserver.calls import Call
    from elasti.devcluster.apiserver.storage import Collection, Store
    from elasti.devcluster.apiserver.writes import Written
    from kubeloop.objects.meta import JsonObject


class RoleAggregation:
    """Writes the rules of aggregated ClusterRoles."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def observe(self, call: Call, written: Written) -> None:
        """Follow a write of a ClusterRole."""
        del written
        if call.resource.stored_in == CLUSTER_ROLES:
            self.settle()

    def settle(self) -> None:
        """Write what is not as it should be. Roles build on roles, so it takes several rounds."""
        roles = {record.key: record.decode() for record in self._collection.scan()}
        made = [role for role in roles.values() if _selectors(role)]
        for _ in made:
            changed = [self._update(role, roles) for role in made]
            if not any(changed):
                return

    @property
    def _collection(self) -> Collection:
        return self._store.collection(CLUSTER_ROLES)

    def _update(self, role: JsonObject, roles: dict[str, JsonObject]) -> bool:
        wanted = _union(role, roles)
        if (role.get("rules") or []) == wanted:
            return False
        role["rules"] = wanted
        self._store.put(self._collection, role["metadata"]["name"], role)
        return True


def _union(role: JsonObject, roles: dict[str, JsonObject]) -> list[JsonObject]:
    """Return the rules of all selected roles, in the order of their names, each once."""
    selectors = _selectors(role)
    found: list[JsonObject] = []
    for name in sorted(roles):
        other = roles[name]
        labels = other["metadata"].get("labels") or {}
        if other is role or not any(selector.matches(labels) for selector in selectors):
            continue
        found += [rule for rule in other.get("rules") or [] if rule not in found]
    return found


def _selectors(role: JsonObject) -> list[LabelSelector]:
    rule = role.get("aggregationRule") or {}
    found = []
    for body in rule.get("clusterRoleSelectors") or ():
        try:
            found.append(LabelSelector.from_json(body))
        except SelectorError:
            # A selector that means nothing selects nothing.
            continue
    return found
