"""Tokens judged by the API server: TokenReviews.

The server knows what no signature tells: whether the account and the pod still exist. Asking needs a
right that no namespaced role can give.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from elasti.authn.tokens import TokenDecision, VerifierUnavailable
from kubeloop.client.errors import Forbidden, KubeError

if TYPE_CHECKING:
    from kubeloop.client.client import Client
    from kubeloop.objects.meta import JsonObject

# A wake-up waits for it; an API server that takes some seconds is slow, not gone.
_TIMEOUT = 8.0
_AT_ONCE = 8
_START_UP_PROBE = "elasti-start-up-check"


class TokenReviewForbidden(VerifierUnavailable):
    """This program may not create TokenReviews."""


class TokenReviewVerifier:
    """Asks the API server, a few tokens at a time; a `TokenVerifier`."""

    def __init__(self, client: Client, *, audience: str) -> None:
        self._reviews = client.resource("authentication.k8s.io/v1/tokenreviews")
        self._audience = audience
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def verify(self, token: str) -> TokenDecision:
        """Judge a token for our audience. Raises VerifierUnavailable."""
        status = await self._review(token)
        # A server that knows no audiences names none; then the token was not made for us.
        if not status.get("authenticated") or self._audience not in status.get("audiences", ()):
            return TokenDecision("", "the API server does not accept it")
        return TokenDecision((status.get("user") or {}).get("username") or "")

    async def ready(self) -> str:
        """Find out whether tokens can be reviewed."""
        await self._review(_START_UP_PROBE)
        return "by TokenReview"

    async def _review(self, token: str) -> JsonObject:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [self._audience]},
        }
        try:
            async with self._slots:
                return (await self._reviews.create(body, timeout=_TIMEOUT)).get("status") or {}
        except Forbidden as error:
            raise TokenReviewForbidden(
                f"tokens cannot be reviewed: {error}; allow `create tokenreviews` by a ClusterRole"
                " (system:auth-delegator has it), or set ELASTI_AUTHENTICATION=JWKS"
            ) from error
        except KubeError as error:
            raise VerifierUnavailable(
                f"the API server cannot be asked about the token: {error}"
            ) from error
