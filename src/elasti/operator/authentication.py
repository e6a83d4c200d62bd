"""Who calls: ServiceAccount tokens, checked by the API server.

Any pod may have a token made for any audience, so the audience proves only that the token was meant
for us; who the caller is decides. Answers are kept for a short while, by the token's hash.
"""

from __future__ import annotations

import asyncio
import dataclasses
import fnmatch
import hashlib
from typing import TYPE_CHECKING, Protocol

from elasti.api.wire import OPERATOR_AUDIENCE
from kubeloop.client.errors import KubeError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kubeloop.client.client import Client

_REVIEWS = "authentication.k8s.io/v1/tokenreviews"
_KEEP = 60.0
_MOST_KEPT = 1000
_LONGEST_TOKEN = 16 * 1024
_BEARER = "Bearer "


class Unverified(Exception):
    """The API server could not be asked, so nothing is known about the caller."""


@dataclasses.dataclass(frozen=True, slots=True)
class Refusal:
    """Why a caller is turned away; `code` is 401 or 403."""

    code: int
    message: str


class Authenticator(Protocol):
    """Decides who may call."""

    async def check(self, authorization: str) -> Refusal | None:
        """Return None for a caller that may, else why not. Raises Unverified."""


class Anybody:
    """Authentication switched off."""

    async def check(self, authorization: str) -> Refusal | None:
        """Let everybody in."""
        del authorization
        return None


class TokenReviewer:
    """Asks the API server about tokens; `callers` are user names, `*` standing for anything."""

    def __init__(self, client: Client, *, callers: Sequence[str]) -> None:
        self._reviews = client.resource(_REVIEWS)
        self._callers = tuple(callers)
        self._known: dict[bytes, tuple[float, str]] = {}

    async def check(self, authorization: str) -> Refusal | None:
        """Return None for a caller that may, else why not. Raises Unverified."""
        if not authorization.startswith(_BEARER):
            return Refusal(401, "send a ServiceAccount token: Authorization: Bearer ...")
        token = authorization[len(_BEARER) :].strip()
        user = await self._user(token) if 0 < len(token) <= _LONGEST_TOKEN else ""
        if not user:
            return Refusal(401, f"the token is not valid for audience {OPERATOR_AUDIENCE}")
        if not any(fnmatch.fnmatchcase(user, pattern) for pattern in self._callers):
            return Refusal(403, f"{user} may not call the operator; see ELASTI_ALLOWED_CALLERS")
        return None

    async def _user(self, token: str) -> str:
        digest = hashlib.sha256(token.encode()).digest()
        now = asyncio.get_running_loop().time()
        kept = self._known.get(digest)
        if kept is not None and now - kept[0] < _KEEP:
            return kept[1]
        user = await self._review(token)
        # Refusals are kept too: a flood of bad tokens must not become a flood of reviews.
        if len(self._known) >= _MOST_KEPT:
            self._known.clear()
        self._known[digest] = (now, user)
        return user

    async def _review(self, token: str) -> str:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [OPERATOR_AUDIENCE]},
        }
        try:
            status = (await self._reviews.create(body)).get("status") or {}
        except KubeError as error:
            raise Unverified(f"the API server cannot be asked about the token: {error}") from error
        if not status.get("authenticated") or OPERATOR_AUDIENCE not in (
            status.get("audiences") or ()
        ):
            return ""
        return str((status.get("user") or {}).get("username") or "")
