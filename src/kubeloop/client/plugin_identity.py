"""A credential plugin's answers, kept as long as they are good.

Concurrent requests share one run. A credential is renewed shortly before it expires; when that
run fails the old one serves until its real end, and the plugin gets a pause before it is asked
again. After a 401 the plugin is run before the next request.
"""

from __future__ import annotations

import datetime as dt
import logging
from typing import TYPE_CHECKING, Protocol

from kubeloop.client.credentials import bearer
from kubeloop.client.errors import CredentialError
from kubeloop.client.single_flight import SingleFlight

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kubeloop.aio.clock import Clock
    from kubeloop.client.certificates import KeyPair
    from kubeloop.client.exec_credential import PluginCredential

_LOG = logging.getLogger(__name__)

_LEEWAY = dt.timedelta(seconds=30)
_RETRY_PAUSE = dt.timedelta(seconds=5)


class Plugin(Protocol):
    """What gives credentials when it is run."""

    @property
    def origin(self) -> str:
        """The setting that names the plugin, for messages."""

    async def run(self) -> PluginCredential:
        """Return a credential that is valid now. Raises `CredentialError`."""


class PluginIdentity:
    """Both a header source and a certificate source, from one plugin."""

    def __init__(self, plugin: Plugin, *, clock: Clock) -> None:
        self._plugin = plugin
        self._clock = clock
        self._flight = SingleFlight(self._renew)
        self._credential: PluginCredential | None = None
        self._headers: Mapping[str, str] = {}
        self._renew_at: dt.datetime | None = None

    async def headers(self) -> Mapping[str, str]:
        """Return the bearer header, or nothing where the plugin gives certificates only."""
        await self._fresh()
        return self._headers

    async def key_pair(self) -> KeyPair | None:
        """Return the certificate that the plugin gave, if it did."""
        return (await self._fresh()).pair

    def invalidate(self, refused: Mapping[str, str] | None = None) -> None:
        """Drop the credential, unless the refused one has been replaced since."""
        if refused is None or refused == self._headers:
            self._credential = None

    async def _fresh(self) -> PluginCredential:
        credential = self._credential
        if credential is None:
            return await self._flight.run()
        if self._renew_at is None or self._clock.now() < self._renew_at:
            return credential
        try:
            return await self._flight.run()
        except CredentialError as error:
            return self._make_do(credential, error)

    def _make_do(self, credential: PluginCredential, error: CredentialError) -> PluginCredential:
        """Keep a credential that could not be renewed, while it is still valid."""
        now = self._clock.now()
        if (
            credential is not self._credential
            or not credential.expires
            or credential.expires <= now
        ):
            raise error
        self._renew_at = min(now + _RETRY_PAUSE, credential.expires)
        _LOG.warning(
            "credential expires at %s and cannot be renewed: %s", credential.expires, error
        )
        return credential

    async def _renew(self) -> PluginCredential:
        credential = await self._plugin.run()
        # Before anything is stored: a token that no header can carry must not replace a good one.
        headers = bearer(credential.token, origin=self._plugin.origin) if credential.token else {}
        self._headers = headers
        self._credential = credential
        self._renew_at = self._due(credential)
        return credential

    def _due(self, credential: PluginCredential) -> dt.datetime | None:
        """Return when to renew: half a minute early, or a tenth of a short life."""
        if credential.expires is None:
            return None
        life = credential.expires - self._clock.now()
        return credential.expires - min(_LEEWAY, life / 10)
