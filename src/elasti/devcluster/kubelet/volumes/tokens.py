"""ServiceAccount tokens of pods: asked for, and asked for again in good time."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

from elasti.devcluster.kubelet.environment import ConfigurationError
from kubeloop.client.errors import KubeError
from kubeloop.objects.times import parse_time

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasti.devcluster.kubelet.objects.pods import Pod
    from elasti.devcluster.kubelet.objects.volumes import TokenProjection
    from kubeloop.aio.clock import Clock
    from kubeloop.client.client import Client

_ROTATED_AFTER = 0.8
"""Of its life, when a token is replaced."""
_RETRY = 10.0


@dataclasses.dataclass(frozen=True, slots=True)
class _Token:
    text: str
    renew_at: float


class PodTokens:
    """The tokens of one pod, one for each projection."""

    def __init__(self, client: Client, pod: Pod, *, clock: Clock) -> None:
        self._requests = client.resource("v1/serviceaccounts").subresource("token")
        self._pod = pod
        self._clock = clock
        self._tokens: dict[TokenProjection, _Token] = {}

    async def current(self) -> dict[TokenProjection, str]:
        """Return every token; new ones where they are due. Raises ConfigurationError.

        Where a new one cannot be had, the old one is returned as long as there is one.
        """
        now = asyncio.get_running_loop().time()
        for wanted in set(projections(self._pod)):
            known = self._tokens.get(wanted)
            if known is not None and now < known.renew_at:
                continue
            try:
                self._tokens[wanted] = await self._request(wanted)
            except KubeError as error:
                if known is None:
                    raise ConfigurationError(f"failed to fetch token: {error}") from error
                self._tokens[wanted] = _Token(known.text, now + _RETRY)
        return {wanted: token.text for wanted, token in self._tokens.items()}

    @property
    def renew_at(self) -> float | None:
        """When the first of them is due (loop time); None where there are none."""
        return min((token.renew_at for token in self._tokens.values()), default=None)

    async def _request(self, wanted: TokenProjection) -> _Token:
        meta = self._pod.metadata
        bound = {"apiVersion": "v1", "kind": "Pod", "name": meta.name, "uid": meta.uid}
        spec = {"expirationSeconds": wanted.expiration_seconds, "boundObjectRef": bound}
        if wanted.audience:
            spec["audiences"] = [wanted.audience]
        answer = await self._requests.create(
            self._pod.spec.service_account_name or "default",
            {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": spec},
            namespace=meta.namespace,
        )
        status = answer["status"]
        life = (parse_time(status["expirationTimestamp"]) - self._clock.now()).total_seconds()
        loop = asyncio.get_running_loop()
        return _Token(status["token"], loop.time() + max(1.0, _ROTATED_AFTER * life))


def projections(pod: Pod) -> Iterator[TokenProjection]:
    """Yield every token that a pod's volumes ask for."""
    for volume in pod.spec.volumes:
        for source in volume.projected.sources if volume.projected is not None else ():
            if source.service_account_token is not None:
                yield source.service_account_token
