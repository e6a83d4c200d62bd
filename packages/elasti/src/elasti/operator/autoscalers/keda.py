"""Autoscalers that own a target while it is awake, and must not fight over it while it sleeps.

**HPA.** Kubernetes stops an HPA whose target has zero replicas, so nothing has to be done, unless it
may scale to zero itself (`minReplicas: 0`): then it goes on, and may undo what we do.

**KEDA.** It is paused before a park and resumed by the wake-up, with nothing but
`autoscaling.keda.sh/paused`: `paused-replicas` would make KEDA itself scale, past our precondition.
Beside it stands our own annotation, so that a pause of somebody else is never taken away, and a pause
of ours is found again after a crash. KubeElasti's pause (`paused` with `paused-replicas: "0"`) counts
as ours: it says that the target sleeps because of us.
"""

from __future__ import annotations

import asyncio
import dataclasses
from typing import TYPE_CHECKING, Any

from elasti.api.names import FIELD_MANAGER, PAUSED_BY_US_ANNOTATION
from kubeloop.aio.wait import poll
from kubeloop.client.errors import Conflict, NoMatch, NotFound
from kubeloop.objects.patches import MergePatch

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kubeloop.client.client import Client
    from kubeloop.objects.meta import JsonObject

SCALED_OBJECTS = "keda.sh/v1alpha1/scaledobjects"
HPAS = "autoscaling/v2/horizontalpodautoscalers"
PAUSED = "autoscaling.keda.sh/paused"
PAUSED_REPLICAS = "autoscaling.keda.sh/paused-replicas"

_HPA_FRESH = 300.0
_MAX_HPAS = 10_000
_POLL = 0.25
_TRIES = 3


def pause_patch(annotations: Mapping[str, str]) -> dict[str, str] | None:
    """Return the annotations that pause an object; None where it is paused, by whomever."""
    if annotations.get(PAUSED) == "true":
        return None
    return {PAUSED: "true", PAUSED_BY_US_ANNOTATION: "true"}


def resume_patch(annotations: Mapping[str, str]) -> dict[str, None] | None:
    """Return the annotations to remove so that KEDA works again; None for nothing."""
    legacy = annotations.get(PAUSED) == "true" and annotations.get(PAUSED_REPLICAS) == "0"
    ours = PAUSED_BY_US_ANNOTATION in annotations or legacy
    mine = (PAUSED, PAUSED_REPLICAS, PAUSED_BY_US_ANNOTATION) if ours else (PAUSED_REPLICAS,)
    gone = dict.fromkeys(name for name in mine if name in annotations)
    return gone or None


@dataclasses.dataclass(frozen=True, slots=True)
class PauseResult:
    """Whether KEDA leaves the target alone now; `why` where it does not."""

    paused: bool
    why: str = ""


class Keda:
    """Pauses and resumes ScaledObjects. Raises KubeError."""

    def __init__(self, client: Client, *, pause_timeout: float = 10.0) -> None:
        self._objects = client.resource(SCALED_OBJECTS)
        self._timeout = pause_timeout

    async def pause(self, namespace: str, name: str) -> PauseResult:
        """Pause and wait until KEDA says that it has; taken back where it does not in time."""
        try:
            await self._annotate(namespace, name, pause_patch)
        except (NotFound, NoMatch):
            return PauseResult(paused=False, why=f"there is no ScaledObject {name}")
        if await self._becomes_paused(namespace, name):
            return PauseResult(paused=True)
        await self.resume(namespace, name)
        return PauseResult(
            paused=False,
            why=f"KEDA did not report ScaledObject {name} as paused within {self._timeout:g} s",
        )

    async def resume(self, namespace: str, name: str) -> None:
        """Let KEDA work again, if it was us who stopped it; nothing where there is no object."""
        try:
            await self._annotate(namespace, name, resume_patch)
        except (NotFound, NoMatch):
            return

    async def _annotate(self, namespace: str, name: str, change: Any) -> None:
        for tries_left in reversed(range(_TRIES)):
            found = await self._objects.get(name, namespace=namespace)
            annotations = change(found["metadata"].get("annotations") or {})
            if annotations is None:
                return
            version = found["metadata"].get("resourceVersion", "")
            body = {"metadata": {"resourceVersion": version, "annotations": annotations}}
            try:
                await self._objects.patch(
                    name, MergePatch(body), namespace=namespace, field_manager=FIELD_MANAGER
                )
            except Conflict:
                if not tries_left:
                    raise
            else:
                return

    async def _becomes_paused(self, namespace: str, name: str) -> bool:
        async def is_paused() -> bool:
            return _is_paused(await self._objects.get(name, namespace=namespace))

        try:
            return await poll(is_paused, _POLL, immediate=True, timeout=self._timeout)
        except TimeoutError:
            return False


class HpaReader:
    """Reads HPAs, each now and then: there is no watch on them, and people may change them."""

    def __init__(self, client: Client) -> None:
        self._objects = client.resource(HPAS)
        self._known: dict[tuple[str, str], tuple[float, int | None]] = {}

    async def minimum(self, namespace: str, name: str) -> int | None:
        """Return an HPA's `minReplicas`, at most five minutes old; None where there is none.

        Raises KubeError.
        """
        now = asyncio.get_running_loop().time()
        known = self._known.get((namespace, name))
        if known is None or now - known[0] >= _HPA_FRESH:
            known = now, await self._read(namespace, name)
            if len(self._known) >= _MAX_HPAS:
                self._known.clear()
            self._known[namespace, name] = known
        return known[1]

    async def _read(self, namespace: str, name: str) -> int | None:
        try:
            found = await self._objects.get(name, namespace=namespace)
        except NotFound:
            return None
        minimum = found["spec"].get("minReplicas")
        return 1 if minimum is None else int(minimum)


def _is_paused(found: JsonObject) -> bool:
    conditions = (found.get("status") or {}).get("conditions") or ()
    return any(c.get("type") == "Paused" and c.get("status") == "True" for c in conditions)
