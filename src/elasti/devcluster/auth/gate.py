"""The gate of a dev cluster: authentication, impersonation, authorisation with its reasons."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING
from urllib.parse import unquote

from elasti.devcluster.apiserver import status
from elasti.devcluster.apiserver.auth import ANONYMOUS, AUTHENTICATED, UNAUTHENTICATED, Gate, User
from elasti.devcluster.apiserver.auth import refused as plain_refusal
from elasti.devcluster.apiserver.request import Attributes
from elasti.devcluster.auth.policy import ACCOUNT_PREFIX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from elasti.devcluster.apiserver.auth import Authenticator, Authorizer, Credentials
    from elasti.devcluster.auth.authorizer import RbacAuthorizer

_AUTHENTICATION = "authentication.k8s.io"
_EXTRA = "impersonate-extra-"


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

    async def identify(self, credentials: Credentials) -> User:
        """Return the caller, or whom the caller may and wants to act as."""
        user = await super().identify(credentials)
        if not credentials.impersonation:
            return user
        wanted = read_impersonation(credentials.impersonation)
        for attributes in wanted.needs():
            if not await self.allows(user, attributes):
                raise self.refused(user, attributes)
        return wanted.user()

    async def admit(self, user: User, attributes: Attributes) -> None:
        """Return when the user may; raises 403 that says who may not do what, and why."""
        if not await self.allows(user, attributes):
            raise self.refused(user, attributes)

    async def allows(self, user: User, attributes: Attributes) -> bool:
        """Whether any authorizer says yes; roles alone say what is everybody's."""
        for authorizer in self.authorizers:
            if await authorizer.authorize(user, attributes):
                return True
        return False

    def refused(self, user: User, attributes: Attributes) -> status.StatusError:
        """Build the 403."""
        refusal = plain_refusal(user, attributes)
        problems = self.rbac.problems(user, attributes.namespace)
        if not problems:
            return refusal
        text = f"{refusal.status['message']}: {problems}"
        return status.StatusError({**refusal.status, "message": text})


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Impersonation:
    """Whom a caller wants to be."""

    name: str
    uid: str = ""
    groups: tuple[str, ...] = ()
    extra: tuple[tuple[str, str], ...] = ()

    def needs(self) -> Iterator[Attributes]:
        """Yield every permission that it takes."""
        namespace, account = split_account(self.name)
        if account:
            yield _needed("serviceaccounts", account, namespace=namespace)
        else:
            yield _needed("users", self.name)
        for group in self.groups:
            yield _needed("groups", group)
        for key, value in self.extra:
            yield _needed("userextras", value, group=_AUTHENTICATION, subresource=key)
        if self.uid:
            yield _needed("uids", self.uid, group=_AUTHENTICATION)

    def user(self) -> User:
        """Return the one acted as, with the groups that everybody has."""
        namespace, account = split_account(self.name)
        groups = self.groups
        if account and not groups:
            groups = account_groups(namespace)
        everybody = UNAUTHENTICATED if self.name == ANONYMOUS.name else AUTHENTICATED
        if not {AUTHENTICATED, UNAUTHENTICATED} & set(groups):
            groups = (*groups, everybody)
        extra: dict[str, tuple[str, ...]] = {}
        for key, value in self.extra:
            extra[key] = (*extra.get(key, ()), value)
        return User(name=self.name, uid=self.uid, groups=groups, extra=extra)


def read_impersonation(headers: Iterable[tuple[str, str]]) -> Impersonation:
    """Read `Impersonate-*` headers; 400 where they name no user."""
    name = uid = ""
    groups: list[str] = []
    extra: list[tuple[str, str]] = []
    for header, value in headers:
        match header.lower():
            case "impersonate-user":
                name = value
            case "impersonate-uid":
                uid = value
            case "impersonate-group":
                groups.append(value)
            case lower if lower.startswith(_EXTRA):
                extra.append((unquote(lower.removeprefix(_EXTRA)), value))
    if not name:
        asked = [*groups, *(value for _, value in extra), uid]
        raise status.bad_request(
            f"requested {[part for part in asked if part]} without impersonating a user"
        )
    return Impersonation(name=name, uid=uid, groups=tuple(groups), extra=tuple(extra))


def split_account(user: str) -> tuple[str, str]:
    """Return namespace and name of a ServiceAccount's user name; empty for anybody else."""
    if not user.startswith(ACCOUNT_PREFIX):
        return "", ""
    namespace, _, name = user.removeprefix(ACCOUNT_PREFIX).partition(":")
    return (namespace, name) if namespace and name and ":" not in name else ("", "")


def account_groups(namespace: str) -> tuple[str, ...]:
    """Return the groups of a namespace's ServiceAccounts."""
    return "system:serviceaccounts", f"system:serviceaccounts:{namespace}"


def _needed(
    resource: str, name: str, *, group: str = "", namespace: str = "", subresource: str = ""
) -> Attributes:
    return Attributes(
        verb="impersonate",
        path="",
        group=group,
        resource=resource,
        name=name,
        namespace=namespace,
        subresource=subresource,
    )
