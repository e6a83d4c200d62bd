"""The probes of one run of a container.

The startup probe comes first; the others begin when it has succeeded. Readiness is asked at once, so
that a quick container is quickly ready, then every period; the other two keep the phase that the pod
began with. A startup probe that decided, or a liveness probe that failed, asks no more: the next run
of the container has probes of its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING

from elasti.devcluster.kubelet.pods.state import ProbeKind
from elasti.devcluster.kubelet.probes.outcome import Outcome, ProbeError
from elasti.devcluster.kubelet.probes.timing import Verdicts, first_tick, is_delayed, next_tick

if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from elasti.devcluster.kubelet.objects.containers import Container, Probe

_INITIAL = {ProbeKind.READINESS: False, ProbeKind.LIVENESS: True, ProbeKind.STARTUP: None}
# A probe that could not be made is tried again before its result is thrown away.
_TRIES = 3


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProbeLoop:
    """Asks one container as long as it runs.

    `decided` hears verdicts, `complained` what was wrong with one probe, before any verdict;
    `origin` says when ticks of a period began (loop time).
    """

    container: Container
    origin: Callable[[float], float]
    ask: Callable[[Probe], Awaitable[Outcome]]
    decided: Callable[[ProbeKind, bool], None]
    complained: Callable[[ProbeKind, str, bool], None]
    is_ending: Callable[[], bool]
    """Whether the pod is going: only readiness is of interest then."""

    async def run(self) -> None:
        """Probe until cancelled."""
        started = asyncio.get_running_loop().time()
        startup = self.container.startup_probe
        if startup is not None and not await self._watch(ProbeKind.STARTUP, startup, started):
            return
        async with asyncio.TaskGroup() as group:
            if self.container.readiness_probe is not None:
                group.create_task(
                    self._watch(ProbeKind.READINESS, self.container.readiness_probe, started)
                )
            if self.container.liveness_probe is not None:
                group.create_task(
                    self._watch(ProbeKind.LIVENESS, self.container.liveness_probe, started)
                )

    async def _watch(self, kind: ProbeKind, spec: Probe, started: float) -> bool:
        """Probe at every tick; returns the verdict after which there is no more to ask.

        Where the pod goes, that is False without having decided anything.
        """
        loop = asyncio.get_running_loop()
        verdicts = Verdicts(spec, initial=_INITIAL[kind])
        period = float(max(1, spec.period_seconds))
        origin = loop.time() if kind is ProbeKind.READINESS else self.origin(period)
        tick = first_tick(origin, period, loop.time())
        while True:
            await asyncio.sleep(tick - loop.time())
            if kind is not ProbeKind.READINESS and self.is_ending():
                return False
            if not is_delayed(spec, started=started, now=loop.time()):
                result = await self._ask(kind, spec)
                verdict = None if result is None else verdicts.feed(result)
                if verdict is not None:
                    self.decided(kind, verdict)
                    if kind is ProbeKind.STARTUP or (kind is ProbeKind.LIVENESS and not verdict):
                        return verdict
            tick = next_tick(tick, period, loop.time())

    async def _ask(self, kind: ProbeKind, spec: Probe) -> bool | None:
        for remaining in reversed(range(_TRIES)):
            try:
                outcome = await self.ask(spec)
            except ProbeError as error:
                if remaining == 0:
                    text = f"{kind.value} probe errored and resulted in unknown state: {error}"
                    self.complained(kind, text, False)  # noqa: FBT003 -- a plain callback
                    return None
            else:
                if outcome.warning:
                    text = f"{kind.value} probe warning: {outcome.message}"
                    self.complained(kind, text, True)  # noqa: FBT003 -- a plain callback
                elif not outcome.healthy:
                    text = f"{kind.value} probe failed: {outcome.message}"
                    self.complained(kind, text, False)  # noqa: FBT003 -- a plain callback
                return outcome.healthy
        return None
