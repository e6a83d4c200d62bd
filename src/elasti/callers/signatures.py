"""Tokens judged by the cluster's keys, which are kept at hand and read anew when they change.

A token that names a key which is not known makes the keys be read again, since issuers rotate them;
but not more often than every ten seconds, however many such tokens come. Meanwhile nothing is said of
them, neither yes nor no. Keys that are old are read again before they are used, and go on being
used where that fails: a server that is away cannot have withdrawn them.
"""

from __future__ import annotations

import asyncio
import math
from typing import TYPE_CHECKING

import structlog

from elasti.callers.keys import check_signature
from elasti.callers.tokens import BadToken, parse, user_of
from elasti.callers.verdicts import Unverifiable, Verdict
from kubeloop.client.single_flight import SingleFlight

if TYPE_CHECKING:
    from elasti.callers.key_sources import Issuer, KeySource
    from elasti.callers.keys import PublicKey
    from kubeloop.aio.clock import Clock

_REST = 10.0
_REST_AFTER_FAILURE = 1.0
_OLD = 600.0

_log = structlog.get_logger(__name__)


class Signatures:
    """Checks tokens without asking anybody; a `Verifier`."""

    def __init__(self, source: KeySource, *, audience: str, clock: Clock) -> None:
        self._source = source
        self._audience = audience
        self._clock = clock
        self._reading = SingleFlight(self._read)
        self._issuer: Issuer | None = None
        self._read_at = 0.0
        self._failure = ""
        self._not_before = -math.inf

    async def verify(self, token: str) -> Verdict:
        """Judge a token for our audience. Raises Unverifiable."""
        try:
            parsed = parse(token)
            key, issuer = await self._key(parsed.header.kid)
            check_signature(parsed, key)
            user = user_of(
                parsed.claims,
                issuers=issuer.names,
                audience=self._audience,
                now=self._clock.now().timestamp(),
            )
        except BadToken as error:
            return Verdict("", str(error))
        return Verdict(user, expires=parsed.claims.exp)

    async def ready(self) -> str:
        """Read the keys."""
        issuer = await self._fresh()
        return f"by the {len(issuer.keys)} key(s) of {', '.join(sorted(issuer.names))}"

    async def _key(self, name: str) -> tuple[PublicKey, Issuer]:
        """Return a key by its name, with its issuer. Raises BadToken, Unverifiable."""
        asked = asyncio.get_running_loop().time()
        issuer = await self._fresh()
        if name not in issuer.keys and self._may_read():
            issuer = await self._reading.run()
        if (key := issuer.keys.get(name)) is not None:
            return key, issuer
        if self._read_at >= asked:
            raise BadToken("it is signed with a key that is not the cluster's")
        raise Unverifiable(
            "the token's key is not known, and the keys were read just before it came"
        )

    async def _fresh(self) -> Issuer:
        now = asyncio.get_running_loop().time()
        if self._issuer is not None and now - self._read_at < _OLD:
            return self._issuer
        if self._may_read():
            try:
                return await self._reading.run()
            except Unverifiable as error:
                if self._issuer is None:
                    raise
                _log.warning("old token keys are used on", why=str(error))
        if self._issuer is None:
            raise Unverifiable(self._failure)
        return self._issuer

    def _may_read(self) -> bool:
        return asyncio.get_running_loop().time() >= self._not_before

    async def _read(self) -> Issuer:
        loop = asyncio.get_running_loop()
        try:
            issuer = await self._source.read()
        except Unverifiable as error:
            self._failure = str(error)
            self._not_before = loop.time() + _REST_AFTER_FAILURE
            raise
        self._issuer, self._read_at = issuer, loop.time()
        self._not_before = loop.time() + _REST
        return issuer
