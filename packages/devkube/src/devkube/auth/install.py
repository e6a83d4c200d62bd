"""Puts RBAC and ServiceAccount tokens into an API server, and the roles of every cluster.

The table of roles is Kubernetes' own, derived by `hack/derive_rbac_roles.py`. Ours besides: one process
runs every controller and the scheduler under one name, so that name gets what theirs have together. What
is missing is made; what is there stays as its users changed it.

Rules of a ClusterRole with an `aggregationRule` are kept in step with the roles that it selects, inside
the write itself: when a role has been written, those made of it are up to date before the response.
"""

from __future__ import annotations

import contextlib
import dataclasses
import importlib.resources
from collections.abc import Iterator
from typing import Any

import msgspec

from devkube.apiserver.auth import AdminAuthorizer
from devkube.apiserver.calls import Call
from devkube.apiserver.core import CAPABILITIES_PATH, Core
from devkube.apiserver.registry.writer import WriteResult
from devkube.apiserver.storage import Collection, ObjectStore
from devkube.apiserver.validation.names import Stamps
from devkube.auth.gate import NodeAuthorizer, RbacAuthorizer, RbacGate, ServiceAccountAuthenticator
from devkube.auth.jwt import SigningKey
from devkube.auth.policy import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    GROUP,
    ROLE_BINDINGS,
    ROLES,
    RbacPolicy,
)
from devkube.auth.reviews import RbacReviews, TokenRequests
from devkube.auth.service_accounts import (
    ServiceAccountAdmission,
    ServiceAccountTokens,
    serve_issuer,
)
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.selectors import LabelSelector, SelectorError

CONTROLLER_MANAGER = "system:kube-controller-manager"
SERVICE_PROXY = "system:kube-proxy"
_COLLECTIONS = {
    "ClusterRole": CLUSTER_ROLES,
    "Role": ROLES,
    "ClusterRoleBinding": CLUSTER_ROLE_BINDINGS,
    "RoleBinding": ROLE_BINDINGS,
}
_AUTOUPDATE = "rbac.authorization.kubernetes.io/autoupdate"
_OURS = "devkube:controller-manager"
_CAPABILITIES = "devkube:capabilities"


def bootstrap(store: ObjectStore, stamps: Stamps) -> None:
    """Make every role and binding that is not there."""
    table = read_table()
    for row in (*table, *_own(table)):
        namespace, name = row.get("namespace", ""), row["name"]
        key = f"{namespace}/{name}" if namespace else name
        collection = store.collection(_COLLECTIONS[row["kind"]])
        if collection.get(key) is None:
            store.put(collection, key, _object(row, stamps))


def read_table() -> list[JsonObject]:
    """Return the derived table."""
    text = importlib.resources.files("devkube.auth").joinpath("data/roles.json")
    return msgspec.json.decode(text.read_bytes(), type=list[dict[str, Any]])


def _own(table: list[JsonObject]) -> Iterator[JsonObject]:
    rules: list[JsonObject] = []
    for row in table:
        whole = row["kind"] == "ClusterRole"
        if whole and row["name"].startswith(("system:controller:", "system:kube-scheduler")):
            rules += [rule for rule in row.get("rules", ()) if rule not in rules]
    yield {"kind": "ClusterRole", "name": _OURS, "rules": rules}
    yield {
        "kind": "ClusterRoleBinding",
        "name": _OURS,
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": _OURS},
        "subjects": [{"apiGroup": GROUP, "kind": "User", "name": CONTROLLER_MANAGER}],
    }
    readable = {"nonResourceURLs": [CAPABILITIES_PATH], "verbs": ["get"]}
    yield {"kind": "ClusterRole", "name": _CAPABILITIES, "rules": [readable]}
    yield {
        "kind": "ClusterRoleBinding",
        "name": _CAPABILITIES,
        "roleRef": {"apiGroup": GROUP, "kind": "ClusterRole", "name": _CAPABILITIES},
        "subjects": [{"apiGroup": GROUP, "kind": "Group", "name": "system:authenticated"}],
    }


def _object(row: JsonObject, stamps: Stamps) -> JsonObject:
    metadata: JsonObject = {"name": row["name"]}
    if "namespace" in row:
        metadata["namespace"] = row["namespace"]
    metadata |= {
        "uid": stamps.uid(),
        "creationTimestamp": stamps.now(),
        "labels": {"kubernetes.io/bootstrapping": "rbac-defaults", **row.get("labels", {})},
        "annotations": {_AUTOUPDATE: "true"},
    }
    rest = {k: v for k, v in row.items() if k not in ("kind", "name", "namespace", "labels")}
    made: JsonObject = {"apiVersion": f"{GROUP}/v1", "kind": row["kind"], "metadata": metadata}
    if row["kind"] in ("ClusterRole", "Role"):
        made["rules"] = []
    return {**made, **rest}


class RoleAggregation:
    """Writes the rules of aggregated ClusterRoles."""

    def __init__(self, store: ObjectStore) -> None:
        self._store = store

    def observe(self, call: Call, written: WriteResult) -> None:
        """Follow a write of a ClusterRole."""
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
        # A selector that means nothing selects nothing.
        with contextlib.suppress(SelectorError):
            found.append(LabelSelector.from_json(body))
    return found


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InstalledAuth:
    """The installed parts."""

    gate: RbacGate
    tokens: ServiceAccountTokens
    aggregation: RoleAggregation


def install(core: Core, *, key: SigningKey) -> InstalledAuth:
    """Guard an API server with RBAC and ServiceAccount tokens; before it serves."""
    policy = RbacPolicy(core.store)
    rbac = RbacAuthorizer(policy)
    tokens = ServiceAccountTokens(store=core.store, stamps=core.stamps, key=key)
    gate = RbacGate(
        authenticators=[*core.gate.authenticators, ServiceAccountAuthenticator(tokens)],
        authorizers=[AdminAuthorizer(), NodeAuthorizer(policy)],
        rbac=rbac,
    )
    aggregation = RoleAggregation(core.store)
    core.gate = gate
    reviews = RbacReviews(gate, tokens)
    core.reviews = dict.fromkeys(reviews.kinds, reviews.answer)
    core.admission.append(ServiceAccountAdmission(store=core.store, stamps=core.stamps))
    core.observers.append(aggregation.observe)
    requests = TokenRequests(store=core.store, stamps=core.stamps, tokens=tokens)
    core.serve("token", requests.answer)
    serve_issuer(tokens, core.paths)
    return InstalledAuth(gate=gate, tokens=tokens, aggregation=aggregation)


def fill(core: Core, auth: InstalledAuth) -> None:
    """Make the roles that every cluster begins with; after the store has been read back."""
    bootstrap(core.store, core.stamps)
    auth.aggregation.settle()
