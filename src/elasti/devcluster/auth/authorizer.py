"""The authorizers of a dev cluster: RBAC, and nodes.

A decision is a reason to allow, or None. Decisions are remembered until a role or binding changes;
most requests ask what another asked a moment ago.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.devcluster.apiserver.status import qualified
from elasti.devcluster.auth.policy import GROUP

if TYPE_CHECKING:
    from elasti.devcluster.apiserver.auth import User
    from elasti.devcluster.apiserver.request import Attributes
    from elasti.devcluster.auth.policy import Grant, Policy

NODES = "system:nodes"
NODE_PREFIX = "system:node:"
_REMEMBERED = 4096

_Question = tuple[str, tuple[str, ...], str, str, str, str, str, str, str]


class RbacAuthorizer:
    """Allows what roles and bindings say."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self._revision = -1
        self._known: dict[_Question, str | None] = {}

    async def authorize(self, user: User, attributes: Attributes) -> bool:
        """Whether a rule allows it."""
        return self.decide(user, attributes) is not None

    def decide(self, user: User, attributes: Attributes) -> str | None:
        """Return which binding allows it, in words; None where none does."""
        self.policy.refresh()
        if self._revision != self.policy.revision or len(self._known) > _REMEMBERED:
            self._known.clear()
            self._revision = self.policy.revision
        question = _question(user, attributes)
        if question not in self._known:
            self._known[question] = self._evaluate(user, attributes)
        return self._known[question]

    def _evaluate(self, user: User, attributes: Attributes) -> str | None:
        for grant in self.policy.grants(user, attributes.namespace):
            for rule in self.policy.rules_of(grant) or ():
                if rule.allows(attributes):
                    return f"RBAC: allowed by {grant}"
        return None

    def problems(self, user: User, namespace: str) -> str:
        """Say which roles bound to a user do not exist: the usual cause of a refusal."""
        missing = [
            _not_found(grant)
            for grant in self.policy.grants(user, namespace)
            if self.policy.rules_of(grant) is None
        ]
        found = list(dict.fromkeys(missing))
        if not found:
            return ""
        return f"RBAC: {found[0] if len(found) == 1 else '[' + ', '.join(found) + ']'}"


class NodeAuthorizer:
    """Gives a node's kubelet what the role `system:node` says, without any binding, as Kubernetes does.

    Which node's objects they are is not looked at.
    """

    def __init__(self, policy: Policy) -> None:
        self._policy = policy

    async def authorize(self, user: User, attributes: Attributes) -> bool:
        """Whether it is a node, and a node may."""
        if NODES not in user.groups or not user.name.startswith(NODE_PREFIX):
            return False
        rules = self._policy.cluster_role("system:node") or ()
        return any(rule.allows(attributes) for rule in rules)


def _question(user: User, attributes: Attributes) -> _Question:
    return (
        user.name,
        user.groups,
        attributes.verb,
        attributes.group,
        attributes.resource,
        attributes.subresource,
        attributes.namespace,
        attributes.name,
        "" if attributes.is_resource else attributes.path,
    )


def _not_found(grant: Grant) -> str:
    return f'{qualified(GROUP, grant.role_kind.lower())} "{grant.role}" not found'
