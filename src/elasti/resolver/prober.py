"""Finds out when pods begin to serve, for as long as somebody waits for them.

Each pod that is looked at has a task of its own, which does what `handover.next_step` says: connect
every 25 ms until the port accepts, then ask the pod's probes one at a time until all have passed. The
pod is read once, while its port is still being tried. Nothing is asked when nobody waits, and nothing
of a pod that Kubernetes calls ready.
"""

from __future__ import annotations

import asyncio
import dataclasses
import logging
from typing import TYPE_CHECKING, Protocol

from elasti.resolver.checks import Reach
from elasti.resolver.handover import Facts, Step, next_step
from elasti.resolver.probes import PodPlan
from kubeloop.aio.tasks import finish

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from elasti.resolver.checks import Checks
    from elasti.resolver.handover import Policy
    from elasti.resolver.objects import PodName
    from elasti.resolver.proxy.target import Address

INTERVAL = 0.025
CONNECT_TIMEOUT = 1.0
# A Service with hundreds of pods starting is served by the first of them; looking at all is no help.
MOST_AT_ONCE = 16

_log = logging.getLogger(__name__)


class PodReader(Protocol):
    """Reads pods."""

    async def plan(self, pod: PodName) -> PodPlan:
        """Return how a pod is asked; one that cannot be read is left to Kubernetes."""


@dataclasses.dataclass(frozen=True, slots=True)
class Suspect:
    """A pod that is waited for: what counts as serving, whose probes to ask, and what it did.

    One that refused a connection must accept one before anything else counts.
    """

    policy: Policy
    pod: PodName | None = None
    ready: bool = False
    has_refused: bool = False


class Prober:
    """Looks at the pods of one port. `serves` is called for each that is found to serve."""

    def __init__(
        self, *, checks: Checks, pods: PodReader, serves: Callable[[Address], None]
    ) -> None:
        self._checks = checks
        self._pods = pods
        self._serves = serves
        self._tasks: dict[Address, tuple[Suspect, asyncio.Task[None]]] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def __repr__(self) -> str:
        return f"<Prober {len(self._tasks)} pods>"

    def look_at(self, wanted: Mapping[Address, Suspect]) -> None:
        """Look at these pods and no others; those looked at already go on where they are."""
        for address in [a for a, (suspect, _) in self._tasks.items() if wanted.get(a) != suspect]:
            self._stop(address)
        for address, suspect in wanted.items():
            if len(self._tasks) >= MOST_AT_ONCE:
                return
            if address not in self._tasks:
                task = asyncio.get_running_loop().create_task(self._follow(address, suspect))
                self._tasks[address] = (suspect, task)
                task.add_done_callback(self._ended)

    async def aclose(self) -> None:
        """Stop looking."""
        for address in list(self._tasks):
            self._stop(address)
        await finish(self._ending)

    def _stop(self, address: Address) -> None:
        _, task = self._tasks.pop(address)
        if not task.done():
            self._ending.add(task)
            task.cancel()

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._ending.discard(task)
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("looking at a pod failed", exc_info=error)

    async def _follow(self, address: Address, suspect: Suspect) -> None:
        reading: asyncio.Task[PodPlan] | None = None
        if suspect.policy == "Auto" and suspect.pod is not None and not suspect.ready:
            reading = asyncio.get_running_loop().create_task(self._pods.plan(suspect.pod))
        try:
            if await self._until_it_serves(address, suspect, reading):
                self._serves(address)
        finally:
            if reading is not None:
                await finish([reading])

    async def _until_it_serves(
        self, address: Address, suspect: Suspect, reading: asyncio.Task[PodPlan] | None
    ) -> bool:
        """Return whether it serves; False: only Kubernetes can tell."""
        # A change of Kubernetes' word does not come here: it changes what is looked at.
        facts = Facts(policy=suspect.policy, ready=suspect.ready, has_refused=suspect.has_refused)
        while True:
            match next_step(facts):
                case Step.RELEASE:
                    return True
                case Step.AWAIT_READY:
                    return False
                case Step.CONNECT:
                    await self._until_it_accepts(address)
                    facts = dataclasses.replace(facts, accepts=True)
                case Step.LEARN:
                    plan = await reading if reading is not None else PodPlan(only_ready="no pod")
                    facts = dataclasses.replace(facts, plan=plan)
                case Step.PROBE:
                    assert facts.plan is not None
                    await self._until_all_pass(address.host, facts.plan)
                    facts = dataclasses.replace(facts, passed=True)

    async def _until_it_accepts(self, address: Address) -> None:
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            reach = await self._checks.connect(address, timeout=CONNECT_TIMEOUT)
            if reach is Reach.ACCEPTED:
                return
            await asyncio.sleep(max(INTERVAL - (loop.time() - began), 0.001))

    async def _until_all_pass(self, host: str, plan: PodPlan) -> None:
        for question in plan.questions:
            passed = 0
            while passed < question.successes:
                if await self._checks.ask(host, question):
                    passed += 1
                else:
                    passed = 0
                    await asyncio.sleep(INTERVAL)
