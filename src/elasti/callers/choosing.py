"""From settings to callers: which verifier, with which keys."""

from __future__ import annotations

import asyncio
import math
from pathlib import Path
from typing import TYPE_CHECKING, assert_never

import structlog

from elasti.callers.callers import Callers
from elasti.callers.key_sources import ClusterKeys, FileKeys
from elasti.callers.reviews import ReviewsForbidden, TokenReviews
from elasti.callers.settings import Authentication
from elasti.callers.signatures import Signatures
from elasti.callers.verdicts import Unverifiable
from kubeloop.aio.clock import SystemClock

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasti.callers.key_sources import KeySource
    from elasti.callers.settings import CallerSettings
    from elasti.callers.verdicts import Verdict, Verifier
    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client

_ASK_AGAIN = 600.0

_log = structlog.get_logger(__name__)


class Either:
    """Reviews where they are allowed, else signatures; a `Verifier`.

    A review that is forbidden is not tried again for ten minutes: rights seldom change, and a program
    without them should not knock at every call.
    """

    def __init__(self, reviews: Verifier, signatures: Verifier) -> None:
        self._reviews = reviews
        self._signatures = signatures
        self._reviews_from = -math.inf

    async def verify(self, token: str) -> Verdict:
        """Judge a token for our audience. Raises Unverifiable."""
        if self._may_review():
            try:
                return await self._reviews.verify(token)
            except ReviewsForbidden as error:
                self._forbidden(error)
        return await self._signatures.verify(token)

    async def ready(self) -> str:
        """Find out which of the two it is."""
        try:
            return await self._reviews.ready()
        except ReviewsForbidden as error:
            self._forbidden(error)
            why = str(error)
        try:
            return f"{await self._signatures.ready()}, since TokenReviews are not allowed"
        except Unverifiable as error:
            raise Unverifiable(f"{why}; and {error}") from error

    def _may_review(self) -> bool:
        return asyncio.get_running_loop().time() >= self._reviews_from

    def _forbidden(self, error: ReviewsForbidden) -> None:
        self._reviews_from = asyncio.get_running_loop().time() + _ASK_AGAIN
        _log.debug("tokens are checked by the cluster's keys", why=str(error))


def callers_of(
    client: Client,
    settings: CallerSettings,
    *,
    audience: str,
    allowed: Sequence[str],
    clock: Clock | None = None,
) -> Callers | None:
    """Return who is let in for an audience; None where anybody is."""
    clock = clock or SystemClock()
    reviews = TokenReviews(client, audience=audience)
    signatures = Signatures(_source(client, settings), audience=audience, clock=clock)
    verifier: Verifier
    match settings.authentication:
        case Authentication.NONE:
            return None
        case Authentication.TOKEN_REVIEW:
            verifier = reviews
        case Authentication.JWKS:
            verifier = signatures
        case Authentication.AUTO:
            verifier = Either(reviews, signatures)
        case _:
            assert_never(settings.authentication)
    return Callers(verifier, audience=audience, allowed=allowed, clock=clock)


def _source(client: Client, settings: CallerSettings) -> KeySource:
    if settings.keys_file:
        return FileKeys(Path(settings.keys_file), issuers=settings.issuers)
    return ClusterKeys(client, issuers=settings.issuers)
