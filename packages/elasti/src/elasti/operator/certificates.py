"""The certificates of operator and resolver, which the leader makes and renews in one Secret.

A rotation has three phases: the Secret names the new authority beside the old one; after a day, when every kubelet has
long brought it to the pods, the new one signs; and the old one leaves when it has expired. `kubeloop.webhook` decides.
The installer makes the Secret, empty, so the operator needs no right to create one.
"""

from __future__ import annotations

import asyncio
import datetime as dt

from elasti.api.names import TLS_NAME
from elasti.logger import get_logger
from elasti.operator.settings import OperatorSettings
from kubeloop.aio.clock import Clock
from kubeloop.client.client import Client
from kubeloop.client.errors import KubeError
from kubeloop.webhook.certificate_secret import (
    CertificateSecret,
    CertificateSet,
    Lifetimes,
    RenewalOrder,
    renewed_apart,
)

# Kubelets bring a changed Secret to pods within two minutes; a node that is cut off may take longer.
LIFETIMES = Lifetimes(settle=dt.timedelta(days=1))
_LOOK_EVERY = 60.0
# Without a change; a decision costs another process some tenths of a second.
_DECIDE_EVERY = dt.timedelta(hours=1)

_log = get_logger(__name__)


class PeerCertificates:
    """A runnable for `Group.LEADER`."""

    def __init__(self, client: Client, settings: OperatorSettings, *, clock: Clock) -> None:
        self._clock = clock
        self._name = settings.tls_secret
        self._decided: tuple[CertificateSet, dt.datetime] | None = None
        secrets = client.resource("v1/secrets", namespace=settings.operator_namespace)
        self._secret = CertificateSecret(secrets, self._name, self._renew, may_create=False)

    async def run(self) -> None:
        """Renew until cancelled."""
        while True:
            try:
                await self._secret.current()
            except (KubeError, OSError) as error:
                _log.warning(
                    "certificates not renewed",
                    secret=self._name,
                    error=str(error),
                    remedy="apply the installation again (elasti install, or the chart), which has the Secret and"
                    " the rights; or set ELASTI_TLS_SECRET to nothing and make the certificates yourself",
                )
            await asyncio.sleep(_LOOK_EVERY)

    async def _renew(self, found: CertificateSet | None) -> CertificateSet:
        now = self._clock.now()
        if self._decided is not None:
            known, since = self._decided
            if known == found and dt.timedelta() <= now - since < _DECIDE_EVERY:
                return known
        made = await renewed_apart(RenewalOrder(found, (TLS_NAME,), now, LIFETIMES))
        self._decided = made, now
        return made
