"""Lets callers in: by their token, and by who they are.

Any pod may have a token made for any audience, so the audience proves only that the token was meant for
us; who the caller is decides. Verdicts are kept for a minute, under a hash of the token: callers ask
often, and nobody who reads this process's memory finds a token in it. Refusals are kept too, so that a
flood of one bad token is no flood of reviews; what is kept is bounded.
"""

from __future__ import annotations

import asyncio
import hashlib
import math
from collections import OrderedDict
from typing import TYPE_CHECKING

import structlog

from elasti.callers.tokens import LONGEST
from elasti.callers.verdicts import Unverifiable
from kubeloop.aio.backoff import Backoff

if TYPE_CHECKING:
    from collections.abc import Sequence

    from elasti.callers.verdicts import Verdict, Verifier
    from kubeloop.aio.clock import Clock

REMEMBERED_FOR = 60.0
MOST_REMEMBERED = 1000

_WARN_EVERY = 10.0
_RETRY = Backoff(duration=1.0, factor=2.0, jitter=0.2, cap=60.0)

_log = structlog.get_logger(__name__)


class Denied(Exception):
    """A caller that may not ask; `status` is the answer it deserves: 401, 403, or 503 for now."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Callers:
    """Lets some users in. `allowed` are user names; a trailing `*` stands for any ending."""

    def __init__(
        self, verifier: Verifier, *, audience: str, allowed: Sequence[str], clock: Clock
    ) -> None:
        self._verifier = verifier
        self._audience = audience
        self._clock = clock
        self._exact = frozenset(name for name in allowed if not name.endswith("*"))
        self._prefixes = tuple(name[:-1] for name in allowed if name.endswith("*"))
        self._known: OrderedDict[bytes, tuple[float, Verdict]] = OrderedDict()
        self._quiet_until = -math.inf

    def __repr__(self) -> str:
        return f"<Callers for {self._audience}, {len(self._known)} remembered>"

    async def admit(self, authorization: str) -> str:
        """Check an Authorization header; returns the user. Raises Denied."""
        scheme, _, token = authorization.partition(" ")
        token = token.strip()
        if scheme.lower() != "bearer" or not 0 < len(token) <= LONGEST or not token.isascii():
            raise Denied(
                401,
                "send a ServiceAccount token for audience"
                f" {self._audience}: Authorization: Bearer TOKEN",
            )
        verdict = await self._verdict(token)
        if not verdict.user:
            raise Denied(
                401, f"the token is not valid for audience {self._audience}: {verdict.why}"
            )
        if not self._allows(verdict.user):
            raise Denied(
                403, f"user {verdict.user} may not ask; allow it with ELASTI_ALLOWED_CALLERS"
            )
        return verdict.user

    async def run(self) -> None:
        """Say how callers are checked as soon as that is known, then wait until cancelled."""
        delays, told = _RETRY.start(), ""
        while True:
            try:
                way = await self._verifier.ready()
            except Unverifiable as error:
                if str(error) != told:
                    told = str(error)
                    _log.error("callers cannot be checked, so none is let in", why=told)
                await asyncio.sleep(delays.next_delay())
            else:
                _log.info("callers are checked", way=way, audience=self._audience)
                break
        await asyncio.get_running_loop().create_future()

    def _allows(self, user: str) -> bool:
        return user in self._exact or any(map(user.startswith, self._prefixes))

    async def _verdict(self, token: str) -> Verdict:
        digest = hashlib.sha256(token.encode()).digest()
        now = asyncio.get_running_loop().time()
        known = self._known.get(digest)
        if known is not None and now < known[0]:
            return known[1]
        try:
            verdict = await self._verifier.verify(token)
        except Unverifiable as error:
            self._warn(error)
            raise Denied(503, f"the token cannot be checked now: {error}") from error
        left = verdict.expires - self._clock.now().timestamp()
        self._known[digest] = (now + min(REMEMBERED_FOR, max(left, 0.0)), verdict)
        self._known.move_to_end(digest)
        if len(self._known) > MOST_REMEMBERED:
            self._known.popitem(last=False)
        return verdict

    def _warn(self, error: Unverifiable) -> None:
        """Say it, but not once for each caller."""
        now = asyncio.get_running_loop().time()
        if now >= self._quiet_until:
            self._quiet_until = now + _WARN_EVERY
            _log.warning("a token cannot be checked", why=str(error))
