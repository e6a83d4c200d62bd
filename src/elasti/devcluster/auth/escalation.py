"""Nobody gives away more than they have: checks on writes of roles and bindings.

Without this, whoever may write a role could make themselves administrator. The verbs `escalate` (on
roles) and `bind` (on the role that a binding names) lift the check, and administrators are free.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.devcluster.apiserver import status
from elasti.devcluster.apiserver.admission import Operation
from elasti.devcluster.apiserver.request import Attributes
from elasti.devcluster.auth import rules
from elasti.devcluster.auth.policy import GROUP

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasti.devcluster.apiserver.admission import Review
    from elasti.devcluster.auth.authorizer import RbacAuthorizer
    from elasti.devcluster.auth.rules import Rule
    from kubeloop.objects.meta import JsonObject

_ROLES = ("roles", "clusterroles")
_BINDINGS = ("rolebindings", "clusterrolebindings")
# What the garbage collector may change without owning the permissions.
_COLLECTORS = ("finalizers", "ownerReferences")


class EscalationCheck:
    """An admission plugin."""

    def __init__(self, rbac: RbacAuthorizer) -> None:
        self._rbac = rbac

    def admit(self, review: Review) -> None:
        """Look at roles and bindings; 403 where permissions would be made out of nothing."""
        if review.resource.group != GROUP or review.operation is Operation.DELETE:
            return
        if review.user.is_admin or _only_collected(review):
            return
        if review.resource.plural in _ROLES:
            self._role(review)
        elif review.resource.plural in _BINDINGS:
            self._binding(review)

    def _role(self, review: Review) -> None:
        if self._may(review, "escalate", review.resource.plural, _name(review.obj)):
            return
        if review.obj.get("aggregationRule") and self._missing(review, rules.EVERYTHING):
            raise _refusal(review, "must have cluster-admin privileges to use an aggregationRule")
        self._confirm(review, rules.read_rules(review.obj))

    def _binding(self, review: Review) -> None:
        ref = review.obj.get("roleRef") or {}
        kind, name = ref.get("kind", ""), ref.get("name", "")
        plural = {"Role": "roles", "ClusterRole": "clusterroles"}.get(kind)
        if plural is None or self._may(review, "bind", plural, name):
            return
        policy = self._rbac.policy
        namespace = _namespace(review.obj)
        found = policy.role(namespace, name) if kind == "Role" else policy.cluster_role(name)
        if found is None:
            raise status.not_found(GROUP, plural, name)
        self._confirm(review, found)

    def _confirm(self, review: Review, wanted: Sequence[Rule]) -> None:
        missing = self._missing(review, wanted)
        if not missing:
            return
        shown = "\n".join(sorted({rules.describe(rule) for rule in rules.compact(missing)}))
        user = review.user
        raise _refusal(
            review,
            f'user "{user.name}" (groups={rules.go_list(user.groups)}) is attempting to grant'
            f" RBAC permissions not currently held:\n{shown}",
        )

    def _missing(self, review: Review, wanted: Sequence[Rule]) -> list[Rule]:
        owned = self._rbac.policy.rules_for(review.user, _namespace(review.obj))
        return rules.uncovered(owned, wanted)

    def _may(self, review: Review, verb: str, resource: str, name: str) -> bool:
        attributes = Attributes(
            verb=verb,
            path="",
            group=GROUP,
            version="*",
            resource=resource,
            namespace=_namespace(review.obj),
            name=name,
        )
        return self._rbac.decide(review.user, attributes) is not None


def _only_collected(review: Review) -> bool:
    if review.old is None:
        return False
    return _without_collected(review.obj) == _without_collected(review.old)


def _without_collected(obj: JsonObject) -> JsonObject:
    dropped = (*_COLLECTORS, "managedFields", "resourceVersion")
    metadata = {k: v for k, v in obj["metadata"].items() if k not in dropped}
    return {**obj, "metadata": metadata}


def _name(obj: JsonObject) -> str:
    return str(obj["metadata"].get("name", ""))


def _namespace(obj: JsonObject) -> str:
    return str(obj["metadata"].get("namespace", ""))


def _refusal(review: Review, why: str) -> status.StatusError:
    resource = review.resource
    return status.forbidden_object(resource.group, resource.plural, _name(review.obj), why)
