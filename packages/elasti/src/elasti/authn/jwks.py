"""Tokens checked by the cluster's public keys, from the API server or from files.

Every ServiceAccount may read the documents (`system:service-account-issuer-discovery`, which
Kubernetes binds to all of them), so this needs no role of ours. Keys are read from the API
server itself, never from the address that its discovery document names: pods may not reach it,
and it is one more server to trust. If a cluster keeps the documents closed, an installer gives
keys and issuer.

Keys are cached. A token that names an unknown key makes them be read again, since issuers
rotate them, but at most every ten seconds, however many such tokens come; meanwhile such a
token is neither accepted nor refused. Old keys are read again before they are used, and stay in
use if that fails: a server that is away cannot have withdrawn them.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

import msgspec

from elasti.authn.tokens import (
    InvalidToken,
    KeySetError,
    PublicKey,
    TokenDecision,
    VerifierUnavailable,
    key_id,
    read_keys,
    user_of,
    verified_claims,
)
from elasti.logger import get_logger
from kubeloop.aio.clock import Clock
from kubeloop.aio.tasks import SingleFlight
from kubeloop.client import request
from kubeloop.client.client import Client
from kubeloop.client.errors import KubeError

_CONFIGURATION_PATH = "/.well-known/openid-configuration"
_JWKS_PATH = "/openid/v1/jwks"
_ACCEPT = "application/jwk-set+json, application/json"
_TIMEOUT = 2.0
_MAX_BYTES = 1024 * 1024


@dataclasses.dataclass(frozen=True, slots=True)
class TokenIssuer:
    """An issuer of tokens: its names, and the keys that it signs with."""

    names: frozenset[str]
    keys: Mapping[str, PublicKey]


class KeySource(Protocol):
    """Reads an issuer again at each call."""

    async def read(self) -> TokenIssuer:
        """Return the present issuer. Raises VerifierUnavailable."""


class _OpenIdConfiguration(msgspec.Struct, frozen=True):
    issuer: str


class ClusterKeySource:
    """The API server's own documents. `issuers`, if given, replace the names in them."""

    def __init__(self, client: Client, *, issuers: Sequence[str] = ()) -> None:
        self._client = client
        self._issuers = frozenset(issuers)

    async def read(self) -> TokenIssuer:
        """Return the present issuer. Raises VerifierUnavailable."""
        try:
            keys, names = read_keys(await self._get(_JWKS_PATH, _ACCEPT)), self._issuers
            if not names:
                document = await self._get(_CONFIGURATION_PATH, request.JSON)
                names = frozenset({msgspec.json.decode(document, type=_OpenIdConfiguration).issuer})
            return TokenIssuer(names, keys)
        except (KubeError, KeySetError, msgspec.MsgspecError) as error:
            raise VerifierUnavailable(
                f"the cluster's token keys cannot be read: {error}; bind ClusterRole"
                " system:service-account-issuer-discovery to system:serviceaccounts, or give"
                " ELASTI_TOKEN_KEYS_FILE and ELASTI_TOKEN_ISSUERS"
            ) from error

    async def _get(self, path: str, accept: str) -> bytes:
        asked = request.get(path, accept=accept)
        return (await self._client.send(asked, timeout=_TIMEOUT)).body


class FileKeySource:
    """A key set in a file that may be replaced at any time, such as a ConfigMap's."""

    def __init__(self, path: Path, *, issuers: Sequence[str]) -> None:
        self._path = path
        self._issuers = frozenset(issuers)

    async def read(self) -> TokenIssuer:
        """Return the present issuer. Raises VerifierUnavailable."""
        try:
            return TokenIssuer(self._issuers, read_keys(await asyncio.to_thread(self._content)))
        except (OSError, KeySetError) as error:
            why = (isinstance(error, OSError) and error.strerror) or error
            raise VerifierUnavailable(f"ELASTI_TOKEN_KEYS_FILE: {self._path}: {why}") from error

    def _content(self) -> bytes:
        with self._path.open("rb") as file:
            return file.read(_MAX_BYTES)


_MIN_READ_INTERVAL = 10.0
_MIN_READ_INTERVAL_AFTER_FAILURE = 1.0
_MAX_AGE = 600.0

_log = get_logger(__name__)


class JwksVerifier:
    """Checks tokens without a request to the API server; a `TokenVerifier`."""

    def __init__(self, source: KeySource, *, audience: str, clock: Clock) -> None:
        self._source = source
        self._audience = audience
        self._clock = clock
        self._reading = SingleFlight(self._read)
        self._issuer: TokenIssuer | None = None
        self._read_at = 0.0
        self._failure = ""
        self._not_before = -math.inf

    async def verify(self, token: str) -> TokenDecision:
        """Check a token for our audience. Raises VerifierUnavailable."""
        try:
            key, issuer = await self._key(key_id(token))
            claims = verified_claims(token, key)
            user = user_of(
                claims,
                issuers=issuer.names,
                audience=self._audience,
                now=self._clock.now().timestamp(),
            )
        except InvalidToken as error:
            return TokenDecision("", str(error))
        return TokenDecision(user, expires=claims.exp)

    async def ready(self) -> str:
        """Read the keys."""
        issuer = await self._fresh()
        return f"by the {len(issuer.keys)} key(s) of {', '.join(sorted(issuer.names))}"

    async def _key(self, name: str) -> tuple[PublicKey, TokenIssuer]:
        """Return a key by its name, with its issuer. Raises InvalidToken, VerifierUnavailable."""
        asked = asyncio.get_running_loop().time()
        issuer = await self._fresh()
        if name not in issuer.keys and self._may_read():
            issuer = await self._reading.run()
        if (key := issuer.keys.get(name)) is not None:
            return key, issuer
        if self._read_at >= asked:
            raise InvalidToken("it is signed with a key that is not the cluster's")
        raise VerifierUnavailable(
            "the token's key is not known, and the keys were read a moment ago; try again"
        )

    async def _fresh(self) -> TokenIssuer:
        now = asyncio.get_running_loop().time()
        if self._issuer is not None and now - self._read_at < _MAX_AGE:
            return self._issuer
        if self._may_read():
            try:
                return await self._reading.run()
            except VerifierUnavailable as error:
                if self._issuer is None:
                    raise
                _log.warning("old token keys stay in use", error=str(error))
        if self._issuer is None:
            raise VerifierUnavailable(self._failure)
        return self._issuer

    def _may_read(self) -> bool:
        return asyncio.get_running_loop().time() >= self._not_before

    async def _read(self) -> TokenIssuer:
        loop = asyncio.get_running_loop()
        try:
            issuer = await self._source.read()
        except VerifierUnavailable as error:
            self._failure = str(error)
            self._not_before = loop.time() + _MIN_READ_INTERVAL_AFTER_FAILURE
            raise
        self._issuer, self._read_at = issuer, loop.time()
        self._not_before = loop.time() + _MIN_READ_INTERVAL
        return issuer
