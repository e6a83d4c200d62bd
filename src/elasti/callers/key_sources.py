"""Where the cluster's token keys come from: the API server's own documents, or files.

Every ServiceAccount may read the documents (`system:service-account-issuer-discovery`, which Kubernetes
binds to all of them), so this needs no role of ours. Keys are read from the API server itself, never
from the address that its discovery document names: that may be a place that pods cannot reach, and one
more to be trusted. Where a cluster keeps them closed, an installer gives keys and issuer.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Protocol

import msgspec

from elasti.callers.keys import KeysError, PublicKey, read_keys
from elasti.callers.verdicts import Unverifiable
from kubeloop.client import request
from kubeloop.client.errors import KubeError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kubeloop.client.client import Client

_CONFIGURATION = "/.well-known/openid-configuration"
_KEYS = "/openid/v1/jwks"
_ACCEPT = "application/jwk-set+json, application/json"
_TIMEOUT = 2.0
_MOST_BYTES = 1024 * 1024


@dataclasses.dataclass(frozen=True, slots=True)
class Issuer:
    """Who issues tokens, under which names, and the keys that they are signed with."""

    names: frozenset[str]
    keys: Mapping[str, PublicKey]


class KeySource(Protocol):
    """Reads an issuer anew, each time it is asked."""

    async def read(self) -> Issuer:
        """Return the issuer as it is now. Raises Unverifiable."""


class _Configuration(msgspec.Struct, frozen=True):
    issuer: str


class ClusterKeys:
    """The API server's own documents. `issuers`, where given, count instead of what it says."""

    def __init__(self, client: Client, *, issuers: Sequence[str] = ()) -> None:
        self._client = client
        self._issuers = frozenset(issuers)

    async def read(self) -> Issuer:
        """Return the issuer as it is now. Raises Unverifiable."""
        try:
            keys = read_keys(await self._get(_KEYS, _ACCEPT))
            return Issuer(self._issuers or frozenset({await self._name()}), keys)
        except (KubeError, KeysError, msgspec.MsgspecError) as error:
            raise Unverifiable(
                f"the cluster's token keys cannot be read: {error}; bind ClusterRole"
                " system:service-account-issuer-discovery to system:serviceaccounts, or give"
                " ELASTI_TOKEN_KEYS_FILE and ELASTI_TOKEN_ISSUERS"
            ) from error

    async def _name(self) -> str:
        document = await self._get(_CONFIGURATION, request.JSON)
        return msgspec.json.decode(document, type=_Configuration).issuer

    async def _get(self, path: str, accept: str) -> bytes:
        asked = request.get(path, accept=accept)
        return (await self._client.send(asked, timeout=_TIMEOUT)).body


class FileKeys:
    """A key set in a file, which may be replaced under us: a ConfigMap's, say."""

    def __init__(self, path: Path, *, issuers: Sequence[str]) -> None:
        self._path = path
        self._issuers = frozenset(issuers)

    async def read(self) -> Issuer:
        """Return the issuer as it is now. Raises Unverifiable."""
        try:
            return Issuer(self._issuers, read_keys(await asyncio.to_thread(self._content)))
        except (OSError, KeysError) as error:
            raise Unverifiable(f"ELASTI_TOKEN_KEYS_FILE: {self._path}: {_words(error)}") from error

    def _content(self) -> bytes:
        with self._path.open("rb") as file:
            return file.read(_MOST_BYTES)


def _words(error: Exception) -> str:
    return (error.strerror or str(error)) if isinstance(error, OSError) else str(error)
