"""Autoscalers own a target's replicas while it is awake, and must not fight over it while it sleeps.

An `Autoscaler` is one kind of them: how to pause and resume it, what to warn of, which rights it
takes. `Autoscalers` finds the one that an ElastiService names in `spec.autoscaler`.

A paused autoscaler must be resumed until that succeeds, even if the ElastiService no longer names it,
and across restarts: `AutoscalerState` keeps it in memory, an annotation of the ElastiService keeps it
for the next leader. The annotation is written before the pause.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterable
from typing import ClassVar, NamedTuple

from elasti.api.conditions import Reason
from elasti.api.rbac import PolicyRule
from elasti.api.types import AUTOSCALER_KINDS, ElastiServiceSpec
from elasti.operator.model.findings import Finding
from elasti.operator.model.records import AutoscalerRef
from kubeloop.client.client import Client
from kubeloop.client.errors import NotFound
from kubeloop.objects.meta import JsonObject

_FRESH = 300.0
_MAX_KNOWN = 10_000


class AutoscalerConflict(NamedTuple):
    """How an autoscaler would undo the sleep of its target, and the remedy; `surely`: each time."""

    message: str
    remedy: str
    surely: bool


class Autoscaler:
    """One kind of autoscaler. By default nothing has to be done for a sleep.

    Its minimum is read again after five minutes: there is no watch of it, and people may change it.
    """

    type: ClassVar[str]
    """Its name in `AUTOSCALER_KINDS`."""
    rules: ClassVar[tuple[PolicyRule, ...]] = ()
    pauses: ClassVar[bool] = False
    """It must be paused before its target is parked, and resumed when the target is up."""
    to_zero: ClassVar[tuple[Reason, str]]
    """Reason and message, with the name to be filled in, of the warning about one that scales to zero itself."""
    resume_failure: ClassVar[tuple[str, str]] = (
        "FailedToResumeAutoscaler",
        "the autoscaler could not be resumed:",
    )
    """Reason and message of the Event if it could not be resumed."""

    def __init__(self, client: Client) -> None:
        self.objects = client.resource(AUTOSCALER_KINDS[self.type].resource)
        self._known: dict[tuple[str, str], tuple[float, int | None]] = {}

    async def pause(self, namespace: str, name: str) -> str:
        """Stop it, and wait until it has; returns why it goes on, or nothing. Raises KubeError."""
        return ""

    async def resume(self, namespace: str, name: str) -> None:
        """Let it work again if we stopped it; safe to repeat. Raises KubeError."""

    async def minimum(self, namespace: str, name: str) -> int | None:
        """Return the fewest replicas that it lets an awake target have, at most five minutes old.

        None if it does not exist. Raises KubeError.
        """
        now, least = asyncio.get_running_loop().time(), None
        known = self._known.get((namespace, name))
        if known is None or now - known[0] >= _FRESH:
            with contextlib.suppress(NotFound):
                found = await self.objects.get(name, namespace=namespace)
                least = self.least(found.get("spec") or {})
            known = now, least
            if len(self._known) >= _MAX_KNOWN:
                self._known.clear()
            self._known[namespace, name] = known
        return known[1]

    @classmethod
    def least(cls, spec: JsonObject) -> int:
        """Return the fewest replicas that a spec lets an awake target have."""
        raise NotImplementedError

    @classmethod
    def conflict(cls, obj: JsonObject, *, named: bool) -> AutoscalerConflict | None:
        """Return how an object on a target would undo its sleep; `named`: spec.autoscaler names it."""
        if named or not cls.pauses:
            return None
        kind, name = AUTOSCALER_KINDS[cls.type].kind, obj["metadata"]["name"]
        return AutoscalerConflict(
            f"{kind} {name} scales the same target, and would scale it up again",
            f"Name it: spec.autoscaler: {{type: {cls.type}, name: {name}}}; it is paused while the target sleeps.",
            surely=True,
        )


class Autoscalers:
    """The known kinds of autoscalers, by type. A spec with an unknown type is invalid, so it is not here."""

    def __init__(self, client: Client, kinds: Iterable[type[Autoscaler]]) -> None:
        self._by_type = {kind.type: kind(client) for kind in kinds}

    def _named(self, spec: ElastiServiceSpec) -> Autoscaler | None:
        return self._by_type.get(spec.autoscaler.type) if spec.autoscaler is not None else None

    def pausable(self, spec: ElastiServiceSpec) -> AutoscalerRef | None:
        """Return what has to be paused while the target sleeps; None for nothing."""
        found = self._named(spec)
        if spec.autoscaler is None or found is None or not found.pauses:
            return None
        return AutoscalerRef(found.type, spec.autoscaler.name)

    async def pause(self, namespace: str, ref: AutoscalerRef) -> str:
        """Stop one; returns why it goes on, or nothing. Raises KubeError."""
        return await self._by_type[ref.type].pause(namespace, ref.name)

    async def resume(self, namespace: str, ref: AutoscalerRef) -> None:
        """Let one work again. Raises KubeError."""
        # The annotation may come from a version that had another kind; there is nothing to do then.
        if (found := self._by_type.get(ref.type)) is not None:
            await found.resume(namespace, ref.name)

    def resume_failure(self, ref: AutoscalerRef) -> tuple[str, str]:
        """Return reason and message of the Event if one could not be resumed."""
        return self._by_type[ref.type].resume_failure

    async def minimum(self, namespace: str, spec: ElastiServiceSpec) -> int:
        """Return the fewest replicas that the one which is named gives an awake target. Raises KubeError."""
        found = self._named(spec)
        if spec.autoscaler is None or found is None:
            return 0
        return await found.minimum(namespace, spec.autoscaler.name) or 0

    async def warnings(self, namespace: str, spec: ElastiServiceSpec) -> tuple[Finding, ...]:
        """Warn of the one that is named if it scales to zero by itself. Raises KubeError."""
        found = self._named(spec)
        if spec.autoscaler is None or found is None:
            return ()
        if await found.minimum(namespace, spec.autoscaler.name) != 0:
            return ()
        reason, message = found.to_zero
        return (Finding(reason, message.format(spec.autoscaler.name), refuses=False),)
