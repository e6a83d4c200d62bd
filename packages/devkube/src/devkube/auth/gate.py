"""The gate of a dev cluster: authentication, impersonation, authorisation with its reasons.

Authorizers are RBAC, and nodes. A decision is a reason to allow, or None. Decisions are remembered until
a role or binding changes; most requests ask what another asked a moment ago.
"""

from __future__ import annotations

import dataclasses
import logging
from typing import TYPE_CHECKING

from devkube.apiserver import status
from devkube.apiserver.auth import ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED, Gate, UserInfo
from devkube.apiserver.auth import refused as plain_refusal
from devkube.apiserver.calls import Attributes
from devkube.apiserver.status import qualified
from devkube.auth.jwt import TokenError
from devkube.auth.policy import ACCOUNT_PREFIX, GROUP, RbacPolicy

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from devkube.apiserver.auth import Authenticator, Authorizer, RequestCredentials
    from devkube.auth.service_accounts import ServiceAccountTokens


NODES = "system:nodes"
NODE_PREFIX = "system:node:"
_REMEMBERED = 4096
_log = logging.getLogger(__name__)


class RbacGate(Gate):
    """Asks RBAC last, and quotes it when it refuses."""

    def __init__(
        self,
        *,
        authenticators: Sequence[Authenticator],
        authorizers: Sequence[Authorizer],
        rbac: RbacAuthorizer,
    ) -> None:
        super().__init__(authenticators=authenticators, authorizers=[*authorizers, rbac])
        self.rbac = rbac

    async def identify(self, credentials: RequestCredentials) -> UserInfo:
        """Return the caller, or the user that the caller impersonates and may impersonate."""
        user = await super().identify(credentials)
        if not credentials.impersonation:
            return user
        wanted = read_impersonation(credentials.impersonation)
        for attributes in wanted.needs():
            await self.admit(user, attributes)
        return wanted.user()

    def refused(self, user: UserInfo, attributes: Attributes) -> status.StatusError:
        """Build the 403."""
        refusal = plain_refusal(user, attributes)
        problems = self.rbac.problems(user, attributes.namespace)
        if not problems:
            return refusal
        text = f"{refusal.status['message']}: {problems}"
        return status.StatusError({**refusal.status, "message": text})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ImpersonationRequest:
    """The identity that a caller wants to assume."""

    name: str
    groups: tuple[str, ...] = ()

    def needs(self) -> Iterator[Attributes]:
        """Yield every permission that it takes."""
        namespace, account = split_account(self.name)
        if account:
            yield _needed("serviceaccounts", account, namespace=namespace)
        else:
            yield _needed("users", self.name)
        for group in self.groups:
            yield _needed("groups", group)

    def user(self) -> UserInfo:
        """Return the impersonated user, with the groups that all users have."""
        namespace, account = split_account(self.name)
        groups = self.groups
        if account and not groups:
            groups = account_groups(namespace)
        everybody = UNAUTHENTICATED if self.name == ANONYMOUS.name else AUTHENTICATED
        if not {AUTHENTICATED, UNAUTHENTICATED} & set(groups):
            groups = (*groups, everybody)
        return UserInfo(name=self.name, groups=groups)


def read_impersonation(headers: Iterable[tuple[str, str]]) -> ImpersonationRequest:
    """Read `Impersonate-*` headers; 400 if they name no user, or what is not served here."""
    given: dict[str, list[str]] = {}
    for header, value in headers:
        given.setdefault(header.lower(), []).append(value)
    names, groups = given.pop("impersonate-user", []), given.pop("impersonate-group", [])
    if given:
        asked = ", ".join(given)
        raise status.bad_request(f"{asked}: only a user and groups can be impersonated here")
    if not names or not names[0]:
        raise status.bad_request(f"requested {groups} without impersonating a user")
    return ImpersonationRequest(name=names[0], groups=tuple(groups))


def split_account(user: str) -> tuple[str, str]:
    """Return namespace and name of a ServiceAccount's user name; empty for other users."""
    if not user.startswith(ACCOUNT_PREFIX):
        return "", ""
    namespace, _, name = user.removeprefix(ACCOUNT_PREFIX).partition(":")
    return (namespace, name) if namespace and name and ":" not in name else ("", "")


def account_groups(namespace: str) -> tuple[str, ...]:
    """Return the groups of a namespace's ServiceAccounts."""
    return "system:serviceaccounts", f"system:serviceaccounts:{namespace}"


def _needed(resource: str, name: str, *, namespace: str = "") -> Attributes:
    return Attributes(
        verb="impersonate", path="", resource=resource, name=name, namespace=namespace
    )


class RbacAuthorizer:
    """Allows what roles and bindings say."""

    def __init__(self, policy: RbacPolicy) -> None:
        self.policy = policy
        self._revision = -1
        self._known: dict[tuple[str, tuple[str, ...], Attributes], str | None] = {}

    async def authorize(self, user: UserInfo, attributes: Attributes) -> bool:
        """Whether a rule allows it."""
        return self.decide(user, attributes) is not None

    def decide(self, user: UserInfo, attributes: Attributes) -> str | None:
        """Return which binding allows it, in words; None if none does."""
        self.policy.refresh()
        if self._revision != self.policy.revision or len(self._known) > _REMEMBERED:
            self._known.clear()
            self._revision = self.policy.revision
        question = (user.name, user.groups, attributes)
        if question not in self._known:
            self._known[question] = self._evaluate(user, attributes)
        return self._known[question]

    def _evaluate(self, user: UserInfo, attributes: Attributes) -> str | None:
        for grant in self.policy.grants(user, attributes.namespace):
            for rule in self.policy.rules_of(grant) or ():
                if rule.allows(attributes):
                    return f"RBAC: allowed by {grant}"
        return None

    def problems(self, user: UserInfo, namespace: str) -> str:
        """Say which roles bound to a user do not exist: the usual cause of a refusal."""
        missing = [
            f'{qualified(GROUP, grant.role_kind.lower())} "{grant.role}" not found'
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

    def __init__(self, policy: RbacPolicy) -> None:
        self._policy = policy

    async def authorize(self, user: UserInfo, attributes: Attributes) -> bool:
        """Whether it is a node, and a node may."""
        if NODES not in user.groups or not user.name.startswith(NODE_PREFIX):
            return False
        rules = self._policy.cluster_role("system:node") or ()
        return any(rule.allows(attributes) for rule in rules)


class ServiceAccountAuthenticator:
    """Believes tokens that are meant for the API server."""

    def __init__(self, tokens: ServiceAccountTokens) -> None:
        self._tokens = tokens

    async def authenticate(self, credentials: RequestCredentials) -> UserInfo | None:
        """Return the ServiceAccount; 401 for a token of ours that does not hold."""
        if not credentials.token or not self._tokens.is_ours(credentials.token):
            return None
        try:
            user, _ = self._tokens.verify(credentials.token, self._tokens.audiences)
        except TokenError as error:
            # The caller learns nothing, as with Kubernetes; the server's log says it.
            _log.info("a bearer token was refused: %s", error)
            raise status.failure(401, "Unauthorized", "Unauthorized") from error
        return user
