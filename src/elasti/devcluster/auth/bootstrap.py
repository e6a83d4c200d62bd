"""The roles and bindings that every cluster begins with.

The table is Kubernetes' own, derived by `hack/derive_rbac_roles.py`. Ours besides: one process runs
every controller and the scheduler under one name, so that name gets what theirs have together. What is
missing is made, and what a user took out of a role or binding is put back, unless its annotation
`autoupdate` says no; what a user added stays.
"""

from __future__ import annotations

import importlib.resources
from typing import TYPE_CHECKING, Any

import msgspec

from elasti.devcluster.auth.policy import (
    CLUSTER_ROLE_BINDINGS,
    CLUSTER_ROLES,
    GROUP,
    ROLE_BINDINGS,
    ROLES,
)
from elasti.devcluster.auth.rules import compact, read_rules, uncovered

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasti.devcluster.apiserver.identity import Stamps
    from elasti.devcluster.apiserver.storage import Store
    from kubeloop.objects.meta import JsonObject

CONTROLLER_MANAGER = "system:kube-controller-manager"
SERVICE_PROXY = "system:kube-proxy"
_COLLECTIONS = {
    "ClusterRole": CLUSTER_ROLES,
    "Role": ROLES,
    "ClusterRoleBinding": CLUSTER_ROLE_BINDINGS,
    "RoleBinding": ROLE_BINDINGS,
}
_AUTOUPDATE = "rbac.authorization.kubernetes.io/autoupdate"
_OURS = "elasti-dev:controller-manager"


def bootstrap(store: Store, stamps: Stamps) -> None:
    """Make every role and binding that is not there, and complete those that are."""
    table = read_table()
    for row in (*table, *_own(table)):
        namespace, name = row.get("namespace", ""), row["name"]
        key = f"{namespace}/{name}" if namespace else name
        collection = store.collection(_COLLECTIONS[row["kind"]])
        record = collection.get(key)
        if record is None:
            store.put(collection, key, _object(row, stamps))
        elif _complete(found := record.decode(), row):
            store.put(collection, key, found)


def read_table() -> list[JsonObject]:
    """Return the derived table."""
    text = importlib.resources.files("elasti.devcluster.auth").joinpath("data/roles.json")
    return msgspec.json.decode(text.read_bytes(), type=list[dict[str, Any]])


def _complete(found: JsonObject, row: JsonObject) -> bool:
    """Put back what is missing in a stored object; whether that changed it."""
    if (found["metadata"].get("annotations") or {}).get(_AUTOUPDATE) == "false":
        return False
    missing = compact(uncovered(read_rules(found), read_rules(row)))
    if missing:
        found["rules"] = [*(found.get("rules") or ()), *(rule.to_json() for rule in missing)]
    mine = found.get("subjects") or []
    absent = [subject for subject in row.get("subjects", ()) if subject not in mine]
    if absent:
        found["subjects"] = [*mine, *absent]
    return bool(missing or absent)


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
