"""When a container that ended runs again. Pure.

The first restart is at once; from then on a container that ends rests, counted from its end: 10
seconds, then twice as long each time, 5 minutes at most. One that ran for twice the longest rest
starts over.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from elasti.devcluster.kubelet.pods.state import Backoff

if TYPE_CHECKING:
    from elasti.devcluster.kubelet.objects.containers import Container
    from elasti.devcluster.kubelet.objects.pods import Pod


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RestartPolicy:
    """How long rests are; tests take shorter ones."""

    first: float = 10.0
    longest: float = 300.0

    def scaled(self, factor: float) -> RestartPolicy:
        """Return the same growth at another pace."""
        return RestartPolicy(first=self.first * factor, longest=self.longest * factor)

    def rests_until(self, backoff: Backoff, ended: float) -> float:
        """Return when a container that ended then may run again."""
        if backoff.delay == 0 or self._forgotten(backoff, ended):
            return ended
        return ended + backoff.delay

    def restarted(self, backoff: Backoff, *, ended: float, now: float) -> Backoff:
        """Return the back-off after a restart."""
        if backoff.delay == 0 or self._forgotten(backoff, ended):
            return Backoff(self.first, now)
        return Backoff(min(2 * backoff.delay, self.longest), now)

    def _forgotten(self, backoff: Backoff, ended: float) -> bool:
        return ended - backoff.since > 2 * self.longest


def should_restart(pod: Pod, container: Container, code: int, *, init: bool) -> bool:
    """Whether a container that ended with a code is to run again."""
    if init and container.is_sidecar:
        return True
    policy = pod.spec.restart_policy
    if init:
        return code != 0 and policy != "Never"
    return policy == "Always" or (policy == "OnFailure" and code != 0)


def span(seconds: float) -> str:
    """Write a duration as messages do: 10s, 2m40s, 5m0s."""
    if seconds < 60:
        return f"{seconds:g}s"
    minutes, rest = divmod(seconds, 60)
    return f"{minutes:g}m{rest:g}s"
