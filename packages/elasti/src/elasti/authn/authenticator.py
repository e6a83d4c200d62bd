"""Authenticates callers by their token, and admits those on the list.

Any pod may have a token made for any audience, so the audience proves only that the token was
meant for us; who the caller is decides. Decisions are cached for a minute under a hash of the
token: callers ask often, and a dump of this process's memory shows no token. Refusals are
cached too, so that a flood of one bad token does not become a flood of reviews. Both caches are bounded,
and separate, so that a flood of different bad tokens does not evict good ones.

While tokens cannot be checked, a caller that was let in within the last hour still is: an API
server that is slow must not keep a workload asleep.

`authenticator_for` makes one from settings: by TokenReview, by the cluster's keys (JWKS), or by
the first with the second as fallback.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple, assert_never

from elasti.authn.jwks import ClusterKeySource, FileKeySource, JwksVerifier, KeySource
from elasti.authn.settings import AuthenticationMode, AuthnSettings
from elasti.authn.tokens import MAX_TOKEN_BYTES, TokenDecision, TokenVerifier, VerifierUnavailable
from elasti.logger import get_logger
from kubeloop.aio.backoff import Backoff
from kubeloop.aio.clock import Clock, SystemClock
from kubeloop.client.client import Client
from kubeloop.client.errors import Forbidden, KubeError
from kubeloop.objects.meta import JsonObject

DECISION_TTL = 60.0
STALE_TTL = 3600.0
MAX_CACHED_DECISIONS = 1000

_WARN_EVERY = 10.0
_RETRY = Backoff(duration=1.0, factor=2.0, jitter=0.2, cap=60.0)

_log = get_logger(__name__)
# A wake-up waits for it; an API server that takes some seconds is slow, not gone.
_TIMEOUT = 8.0
_AT_ONCE = 8
_START_UP_PROBE = "elasti-start-up-check"


class TokenReviewForbidden(VerifierUnavailable):
    """This program may not create TokenReviews."""


class TokenReviewVerifier:
    """Asks the API server, a few tokens at a time; a `TokenVerifier`.

    Only the server knows whether the account and the pod still exist; a signature does not show it.
    Asking needs a right that no namespaced role can give.
    """

    def __init__(self, client: Client, *, audience: str) -> None:
        self._reviews = client.resource("authentication.k8s.io/v1/tokenreviews")
        self._audience = audience
        self._slots = asyncio.Semaphore(_AT_ONCE)

    async def verify(self, token: str) -> TokenDecision:
        """Check a token for our audience. Raises VerifierUnavailable."""
        status = await self._review(token)
        # A server that knows no audiences names none; then the token was not made for us.
        if not status.get("authenticated") or self._audience not in status.get("audiences", ()):
            return TokenDecision("", "the API server does not accept it")
        return TokenDecision((status.get("user") or {}).get("username") or "")

    async def ready(self) -> str:
        """Check that tokens can be reviewed."""
        await self._review(_START_UP_PROBE)
        return "by TokenReview"

    async def _review(self, token: str) -> JsonObject:
        body = {
            "apiVersion": "authentication.k8s.io/v1",
            "kind": "TokenReview",
            "spec": {"token": token, "audiences": [self._audience]},
        }
        try:
            # The wait for others' tokens counts: while the server hangs, known callers must not wait for all of them.
            async with asyncio.timeout(_TIMEOUT), self._slots:
                return (await self._reviews.create(body, timeout=_TIMEOUT)).get("status") or {}
        except Forbidden as error:
            raise TokenReviewForbidden(
                f"tokens cannot be reviewed: {error}; allow `create tokenreviews` by a ClusterRole"
                " (system:auth-delegator has it), or set ELASTI_AUTHENTICATION=JWKS"
            ) from error
        except (KubeError, TimeoutError) as error:
            message = f"the API server cannot be asked about the token: {str(error) or 'no answer in time'}"
            raise VerifierUnavailable(message) from error


class AccessDenied(Exception):
    """A caller that is refused; `status` is the HTTP status to answer: 401, 403, or 503 for now."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class _CachedDecision(NamedTuple):
    decision: TokenDecision
    fresh_until: float
    stale_until: float


class CallerAuthenticator:
    """Admits some users. `allowed` are user names; a trailing `*` matches any ending."""

    def __init__(
        self, verifier: TokenVerifier, *, audience: str, allowed: Sequence[str], clock: Clock
    ) -> None:
        self._verifier = verifier
        self._audience = audience
        self._clock = clock
        self._exact = frozenset(name for name in allowed if not name.endswith("*"))
        self._prefixes = tuple(name[:-1] for name in allowed if name.endswith("*"))
        self._known: OrderedDict[bytes, _CachedDecision] = OrderedDict()
        self._refused: OrderedDict[bytes, _CachedDecision] = OrderedDict()
        self._quiet_until = -math.inf

    def __repr__(self) -> str:
        return f"<Callers for {self._audience}, {len(self._known)} remembered>"

    async def admit(self, authorization: str) -> str:
        """Check an Authorization header; returns the user. Raises AccessDenied."""
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        usable = 0 < len(token) <= MAX_TOKEN_BYTES and token.isascii()
        if scheme.lower() != "bearer" or not usable:
            right = f"{self._audience}: Authorization: Bearer TOKEN"
            raise AccessDenied(401, f"send a ServiceAccount token for audience {right}")
        decision = await self._decide(token)
        user = decision.user
        if not user:
            why = f"the token is not valid for audience {self._audience}: {decision.why}"
            raise AccessDenied(401, why)
        if user not in self._exact and not any(map(user.startswith, self._prefixes)):
            why = f"user {user} is not allowed; add it to ELASTI_ALLOWED_CALLERS"
            raise AccessDenied(403, why)
        return user

    async def run(self) -> None:
        """Log how callers are checked as soon as that is known, then wait until cancelled."""
        delays, reported = _RETRY.start(), ""
        while True:
            try:
                way = await self._verifier.ready()
            except VerifierUnavailable as error:
                if str(error) != reported:
                    reported = str(error)
                    _log.error("callers cannot be checked; all are refused", reason=reported)
                await asyncio.sleep(delays.next_delay())
            else:
                _log.info("callers are checked", how=way, audience=self._audience)
                break
        await asyncio.get_running_loop().create_future()

    async def _decide(self, token: str) -> TokenDecision:
        digest = hashlib.sha256(token.encode()).digest()
        now = asyncio.get_running_loop().time()
        known = self._known.get(digest) or self._refused.get(digest)
        if known is not None and now < known.fresh_until:
            return known.decision
        wall = self._clock.now().timestamp()
        try:
            decision = await self._verifier.verify(token)
        except VerifierUnavailable as error:
            self._warn(error)
            stale = self._known.get(digest)
            if stale is None or now >= stale.stale_until or wall >= stale.decision.expires:
                raise AccessDenied(503, f"the token cannot be checked now: {error}") from error
            # Not asked again for a moment: each caller would wait for the same silence.
            self._known[digest] = stale._replace(fresh_until=now + _WARN_EVERY)
            return stale.decision
        fresh = min(DECISION_TTL, max(decision.expires - wall, 0.0))
        kept, other = self._known, self._refused
        if not decision.user:
            kept, other = other, kept
        other.pop(digest, None)
        kept[digest] = _CachedDecision(decision, now + fresh, now + STALE_TTL)
        kept.move_to_end(digest)
        if len(kept) > MAX_CACHED_DECISIONS:
            kept.popitem(last=False)
        return decision

    def _warn(self, error: VerifierUnavailable) -> None:
        """Log it, but not for each caller."""
        now = asyncio.get_running_loop().time()
        if now >= self._quiet_until:
            self._quiet_until = now + _WARN_EVERY
            _log.warning("token cannot be checked", error=str(error))


_RETRY_REVIEWS_AFTER = 600.0


class FallbackVerifier:
    """Reviews if they are allowed, else signatures; a `TokenVerifier`.

    A review that is forbidden is not tried again for ten minutes: rights seldom change, and a program
    without them should not knock at every call.
    """

    def __init__(self, reviews: TokenVerifier, signatures: TokenVerifier) -> None:
        self._reviews = reviews
        self._signatures = signatures
        self._reviews_from = -math.inf

    async def verify(self, token: str) -> TokenDecision:
        """Check a token for our audience. Raises VerifierUnavailable."""
        if asyncio.get_running_loop().time() >= self._reviews_from:
            try:
                return await self._reviews.verify(token)
            except TokenReviewForbidden as error:
                self._forbidden(error)
        return await self._signatures.verify(token)

    async def ready(self) -> str:
        """Return which of the two is used."""
        try:
            return await self._reviews.ready()
        except TokenReviewForbidden as error:
            self._forbidden(error)
            why = str(error)
        try:
            return f"{await self._signatures.ready()}, since TokenReviews are not allowed"
        except VerifierUnavailable as error:
            raise VerifierUnavailable(f"{why}; and {error}") from error

    def _forbidden(self, error: TokenReviewForbidden) -> None:
        self._reviews_from = asyncio.get_running_loop().time() + _RETRY_REVIEWS_AFTER
        _log.debug("tokens are checked by the cluster's keys", reason=str(error))


def authenticator_for(
    client: Client,
    settings: AuthnSettings,
    *,
    audience: str,
    allowed: Sequence[str],
    clock: Clock | None = None,
) -> CallerAuthenticator | None:
    """Return the authenticator of an audience; None if every caller is admitted."""
    clock = clock or SystemClock()
    reviews = TokenReviewVerifier(client, audience=audience)
    signatures = JwksVerifier(_key_source(client, settings), audience=audience, clock=clock)
    verifier: TokenVerifier
    match settings.authentication_mode:
        case AuthenticationMode.NONE:
            return None
        case AuthenticationMode.TOKEN_REVIEW:
            verifier = reviews
        case AuthenticationMode.JWKS:
            verifier = signatures
        case AuthenticationMode.AUTO:
            verifier = FallbackVerifier(reviews, signatures)
        case _:
            assert_never(settings.authentication_mode)
    return CallerAuthenticator(verifier, audience=audience, allowed=allowed, clock=clock)


def _key_source(client: Client, settings: AuthnSettings) -> KeySource:
    if settings.token_keys_file:
        return FileKeySource(Path(settings.token_keys_file), issuers=settings.token_issuers)
    return ClusterKeySource(client, issuers=settings.token_issuers)
