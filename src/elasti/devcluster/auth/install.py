"""Puts everything of this package into an API server: the one place that knows the order."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from elasti.devcluster.apiserver.auth import AdminAuthorizer
from elasti.devcluster.auth.accounts import AccountTokens
from elasti.devcluster.auth.aggregation import RoleAggregation
from elasti.devcluster.auth.authenticator import AccountAuthenticator
from elasti.devcluster.auth.authorizer import NodeAuthorizer, RbacAuthorizer
from elasti.devcluster.auth.bootstrap import bootstrap
from elasti.devcluster.auth.escalation import EscalationCheck
from elasti.devcluster.auth.gate import RbacGate
from elasti.devcluster.auth.issuer import IssuerDocuments
from elasti.devcluster.auth.pods import AccountAdmission
from elasti.devcluster.auth.policy import Policy
from elasti.devcluster.auth.reviews import RbacReviews
from elasti.devcluster.auth.secrets import TokenSecrets
from elasti.devcluster.auth.token_requests import TokenRequests

if TYPE_CHECKING:
    from elasti.devcluster.apiserver.core import Core
    from elasti.devcluster.auth.jwt import SigningKey


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Auth:
    """What was installed."""

    gate: RbacGate
    tokens: AccountTokens
    aggregation: RoleAggregation


def install(core: Core, *, key: SigningKey, authority: bytes) -> Auth:
    """Guard an API server with RBAC and ServiceAccount tokens; before it serves.

    `authority` is the certificate (PEM) that Secrets with a token carry.
    """
    policy = Policy(core.store)
    rbac = RbacAuthorizer(policy)
    tokens = AccountTokens(store=core.store, stamps=core.stamps, key=key)
    gate = RbacGate(
        authenticators=[*core.gate.authenticators, AccountAuthenticator(tokens)],
        authorizers=[AdminAuthorizer(), NodeAuthorizer(policy)],
        rbac=rbac,
    )
    aggregation = RoleAggregation(core.store)
    core.gate = gate
    core.reviews = RbacReviews(gate, tokens)
    core.admission += [
        AccountAdmission(store=core.store, stamps=core.stamps),
        EscalationCheck(rbac),
    ]
    secrets = TokenSecrets(store=core.store, tokens=tokens, authority=authority)
    core.observers += [aggregation.observe, secrets.observe]
    requests = TokenRequests(store=core.store, stamps=core.stamps, tokens=tokens)
    core.serve("token", requests.answer)
    IssuerDocuments(tokens).serve(core.paths)
    return Auth(gate=gate, tokens=tokens, aggregation=aggregation)


def fill(core: Core, auth: Auth) -> None:
    """Make the roles that every cluster begins with; after the store has been read back."""
    bootstrap(core.store, core.stamps)
    auth.aggregation.settle()
