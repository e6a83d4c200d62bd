"""KEDA's ScaledObject.

It is paused before a park and resumed by the wake-up, with nothing but `autoscaling.keda.sh/paused`:
`paused-replicas` would make KEDA itself scale, past our precondition. Beside it stands our own
annotation, so that another's pause is never taken away, and a pause of ours is found again after a
crash. KubeElasti's pause (`paused` with `paused-replicas: "0"`) counts as ours: it says that the
target sleeps because of us.
"""

from __future__ import annotations

import contextlib
from collections.abc import Mapping
from typing import Any

from elasti.api.conditions import Reason
from elasti.api.names import (
    FIELD_MANAGER,
    PAUSED,
    PAUSED_BY_US_ANNOTATION,
    PAUSED_REPLICAS,
    UNPAUSED,
)
from elasti.api.rbac import READ, PolicyRule
from elasti.operator.autoscalers.base import Autoscaler
from kubeloop.aio.wait import poll
from kubeloop.client.errors import Conflict, NoMatch, NotFound
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch

_POLL = 0.25
_TRIES = 3


def pause_patch(annotations: Mapping[str, str]) -> dict[str, str] | None:
    """Return the annotations that pause an object; None if it is already paused, by us or not."""
    if annotations.get(PAUSED) not in UNPAUSED or annotations.get(PAUSED_REPLICAS, "0") != "0":
        return None
    return {PAUSED: "true", PAUSED_BY_US_ANNOTATION: "true"}


def resume_patch(annotations: Mapping[str, str]) -> dict[str, None] | None:
    """Return the annotations to remove so that KEDA works again; None for nothing."""
    # Any other number is a person's, and the target has it.
    zero = (PAUSED_REPLICAS,) if annotations.get(PAUSED_REPLICAS) == "0" else ()
    legacy = annotations.get(PAUSED) == "true" and bool(zero)
    ours = PAUSED_BY_US_ANNOTATION in annotations or legacy
    mine = (PAUSED, PAUSED_BY_US_ANNOTATION, *zero) if ours else zero
    gone = dict.fromkeys(name for name in mine if name in annotations)
    return gone or None


class Keda(Autoscaler):
    """Pauses and resumes ScaledObjects."""

    type = "keda"
    rules = (
        PolicyRule("keda.sh", ("scaledobjects",), (*READ, "patch"), "triggers; pause and resume"),
    )
    pauses = True
    to_zero = (
        Reason.KEDA_SCALES_TO_ZERO,
        "ScaledObject {} has minReplicaCount or idleReplicaCount 0, so KEDA may scale the woken target to zero at its next poll; set minReplicaCount to 1",
    )
    resume_failure = ("FailedToResumeKEDA", "the ScaledObject could not be resumed:")
    pause_timeout = 10.0

    async def pause(self, namespace: str, name: str) -> str:
        """Pause and wait until KEDA confirms it; undone if KEDA does not in time."""
        try:
            found = await self._annotate(namespace, name, pause_patch)
        except (NotFound, NoMatch):
            return f"there is no ScaledObject {name}"
        if (wanted := found.get(PAUSED_REPLICAS, "0")) != "0":
            return f"ScaledObject {name} keeps {wanted} replicas by its annotation {PAUSED_REPLICAS}; remove it"
        if await self._becomes_paused(namespace, name):
            return ""
        await self.resume(namespace, name)
        return f"KEDA did not report ScaledObject {name} as paused within {self.pause_timeout:g} s"

    async def resume(self, namespace: str, name: str) -> None:
        """Let KEDA work again, if we paused it; does nothing if the object is missing."""
        with contextlib.suppress(NotFound, NoMatch):
            await self._annotate(namespace, name, resume_patch)

    @classmethod
    def least(cls, spec: JsonObject) -> int:
        """Return what it lets an awake target have while no trigger of its own is active."""
        idle = spec.get("idleReplicaCount")
        return int(spec.get("minReplicaCount") or 0) if idle is None else int(idle)

    async def _annotate(self, namespace: str, name: str, change: Any) -> dict[str, str]:
        """Change its annotations; returns those that it had."""
        for tries_left in reversed(range(_TRIES)):
            found = await self.objects.get(name, namespace=namespace)
            present: dict[str, str] = found["metadata"].get("annotations") or {}
            if (wanted := change(present)) is None:
                return present
            version = found["metadata"].get("resourceVersion", "")
            body = {"metadata": {"resourceVersion": version, "annotations": wanted}}
            try:
                await self.objects.patch(
                    name, MergePatch(body), namespace=namespace, field_manager=FIELD_MANAGER
                )
            except Conflict:
                if not tries_left:
                    raise
            else:
                return present
        raise AssertionError  # the last try returns or raises

    async def _becomes_paused(self, namespace: str, name: str) -> bool:
        async def is_paused() -> bool:
            return _is_paused(await self.objects.get(name, namespace=namespace))

        try:
            return await poll(is_paused, _POLL, immediate=True, timeout=self.pause_timeout)
        except TimeoutError:
            return False


AUTOSCALER = Keda


def _is_paused(found: JsonObject) -> bool:
    conditions = (found.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Paused" and c.get("status") == "True" for c in conditions)
