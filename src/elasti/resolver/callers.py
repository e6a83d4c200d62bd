"""Who calls the admin port: ServiceAccount tokens, reviewed by the API server.

A review's answer is remembered for a minute, under a hash of the token: the operator asks often, and
nobody who reads this process's memory finds a token in it. Refusals are remembered too, so that a
flood of bad tokens does not become a flood of reviews; the memory is bounded.
"""

from __future__ import annotations

import asyncio
import hashlib
import logging
from collections import OrderedDict
from typing import TYPE_CHECKING, Any, Protocol

from elasti.api.wire import RESOLVER_AUDIENCE
from kubeloop.client.errors import KubeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kubeloop.client import Client

REMEMBERED_FOR = 60.0
_MOST = 256
_LONGEST_TOKEN = 16 * 1024

_log = logging.getLogger(__name__)


class Denied(Exception):
    """A caller that may not ask; `status` is the answer it deserves."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Reviewer(Protocol):
    """Who knows tokens."""

    async def user_of(self, token: str) -> str | None:
        """Return the user of a token for our audience; None for a bad one. Raises KubeError."""


class TokenReviews:
    """Asks the API server; a `Reviewer`."""

    def __init__(self, client: Client) -> None:
        self._reviews = client.resource("authentication.k8s.io/v1/tokenreviews")

    async def user_of(self, token: str) -> str | None:
        """Return the user of a token."""
        review: dict[str, Any] = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [RESOLVER_AUDIENCE]},
        }
        status = (await self._reviews.create(review, timeout=2.0)).get("status") or {}
        # A server that knows no audiences names none; then the token was not made for us.
        if not status.get("authenticated") or RESOLVER_AUDIENCE not in status.get("audiences", ()):
            return None
        return (status.get("user") or {}).get("username") or None


class Callers:
    """Lets some users in. `allowed` are user names; a trailing `*` stands for any ending."""

    def __init__(self, reviewer: Reviewer, *, allowed: Sequence[str]) -> None:
        self._reviewer = reviewer
        self._exact = frozenset(name for name in allowed if not name.endswith("*"))
        self._prefixes = tuple(name[:-1] for name in allowed if name.endswith("*"))
        self._known: OrderedDict[bytes, tuple[float, str | None]] = OrderedDict()

    async def admit(self, authorization: str) -> None:
        """Check an Authorization header. Raises Denied."""
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not token or len(token) > _LONGEST_TOKEN:
            raise Denied(401, f"send a ServiceAccount token for audience {RESOLVER_AUDIENCE}")
        user = await self._user(token)
        if user is None:
            raise Denied(401, f"the token is not valid for audience {RESOLVER_AUDIENCE}")
        if user not in self._exact and not user.startswith(self._prefixes or ("\0",)):
            raise Denied(403, f"user {user} may not ask; allow it with ELASTI_ALLOWED_CALLERS")

    async def _user(self, token: str) -> str | None:
        digest = hashlib.sha256(token.encode()).digest()
        now = asyncio.get_running_loop().time()
        known = self._known.get(digest)
        if known is not None and now - known[0] < REMEMBERED_FOR:
            return known[1]
        try:
            user = await self._reviewer.user_of(token)
        except KubeError as error:
            _log.warning("a token cannot be reviewed: %s", error)
            raise Denied(503, "the token cannot be reviewed now") from error
        self._known[digest] = (now, user)
        self._known.move_to_end(digest)
        if len(self._known) > _MOST:
            self._known.popitem(last=False)
        return user
