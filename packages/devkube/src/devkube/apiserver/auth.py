"""Authentication and authorisation: two seams, and the plainest implementation of each.

`Authenticator` turns credentials into a `UserInfo`, `Authorizer` decides on a `UserInfo` and `Attributes`.
Both are asked in a row until one knows: a chain of authenticators, a chain of authorizers.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any, Protocol

from devkube.apiserver import status
from devkube.apiserver.calls import Attributes

ADMIN_GROUP = "system:masters"
AUTHENTICATED = "system:authenticated"
UNAUTHENTICATED = "system:unauthenticated"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class UserInfo:
    """An authenticated caller."""

    name: str
    groups: tuple[str, ...] = ()
    uid: str = ""
    extra: Mapping[str, tuple[str, ...]] = dataclasses.field(default_factory=dict)

    @property
    def is_admin(self) -> bool:
        """Whether everything is allowed, whatever the rules."""
        return ADMIN_GROUP in self.groups


ANONYMOUS = UserInfo(name="system:anonymous", groups=(UNAUTHENTICATED,))


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RequestCredentials:
    """Credentials of a connection and a request: the verified client certificate, the bearer token.

    `impersonation` holds the `Impersonate-*` headers: the identity that the caller wants to assume.
    """

    certificate: Mapping[str, Any] | None = None
    token: str = ""
    remote: str = ""
    impersonation: Sequence[tuple[str, str]] = ()


class Authenticator(Protocol):
    """Turns credentials into a user."""

    async def authenticate(self, credentials: RequestCredentials) -> UserInfo | None:
        """Return the user; None if another authenticator must judge these credentials.

        Raises `StatusError` 401 for credentials of its kind that are wrong.
        """


class Authorizer(Protocol):
    """Decides whether a user may do something."""

    async def authorize(self, user: UserInfo, attributes: Attributes) -> bool:
        """Whether this one allows it; False only means that it has no rule for it."""


class CertificateAuthenticator:
    """Client certificates that TLS has verified: common name is the user, organisations the groups."""

    async def authenticate(self, credentials: RequestCredentials) -> UserInfo | None:
        """Return the certificate's subject as a user."""
        if not credentials.certificate:
            return None
        subject = [pair for part in credentials.certificate.get("subject", ()) for pair in part]
        names = [value for key, value in subject if key == "commonName"]
        groups = [value for key, value in subject if key == "organizationName"]
        if not names:
            return None
        return UserInfo(name=names[0], groups=(*groups, AUTHENTICATED))


class AdminAuthorizer:
    """Members of `system:masters` may do anything."""

    async def authorize(self, user: UserInfo, attributes: Attributes) -> bool:
        """Whether the user is an administrator."""
        return user.is_admin


class Gate:
    """The chain that a request passes before anything else."""

    def __init__(
        self, *, authenticators: Sequence[Authenticator], authorizers: Sequence[Authorizer]
    ) -> None:
        self.authenticators = list(authenticators)
        self.authorizers = list(authorizers)

    async def identify(self, credentials: RequestCredentials) -> UserInfo:
        """Return the caller; raises 401 if a token was given that no authenticator knows."""
        for authenticator in self.authenticators:
            user = await authenticator.authenticate(credentials)
            if user is not None:
                return user
        if credentials.token:
            raise status.failure(401, "Unauthorized", "Unauthorized")
        return ANONYMOUS

    async def admit(self, user: UserInfo, attributes: Attributes) -> None:
        """Return when the user may; raises 403 that says who may not do what, and why."""
        if not await self.allows(user, attributes):
            raise self.refused(user, attributes)

    def refused(self, user: UserInfo, attributes: Attributes) -> status.StatusError:
        """Build the 403."""
        return refused(user, attributes)

    async def allows(self, user: UserInfo, attributes: Attributes) -> bool:
        """Whether any authorizer says yes."""
        for authorizer in self.authorizers:
            if await authorizer.authorize(user, attributes):
                return True
        return False


def refused(user: UserInfo, attributes: Attributes) -> status.StatusError:
    """Build the 403 that says who may not do what, where."""
    if not attributes.is_resource:
        text = f'forbidden: User "{user.name}" cannot {attributes.verb} path "{attributes.path}"'
        return status.failure(403, "Forbidden", text, details={})
    resource, namespace = attributes.resource, attributes.namespace
    if attributes.subresource:
        resource = f"{resource}/{attributes.subresource}"
    scope = f'in the namespace "{namespace}"' if namespace else "at the cluster scope"
    qualified = status.qualified(attributes.group, attributes.resource)
    shown = f'{qualified} "{attributes.name}"' if attributes.name else qualified
    details = status.named(attributes.group, attributes.resource, attributes.name)
    text = (
        f'{shown} is forbidden: User "{user.name}" cannot {attributes.verb} resource "{resource}"'
        f' in API group "{attributes.group}" {scope}'
    )
    return status.failure(403, "Forbidden", text, details=details)
