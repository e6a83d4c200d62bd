"""Triggers that ask KEDA: the condition Active of a ScaledObject says whether its scalers see work.

KEDA does not update the condition of a paused ScaledObject, so it proves nothing. A target that sleeps (we
have paused it, if `spec.autoscaler` names it) counts as idle, and traffic or another trigger wakes it; one that is
awake stays awake until the pause is over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Hashable
from typing import Any

import msgspec

from elasti.api.names import PAUSED, PAUSED_REPLICAS, UNPAUSED
from elasti.api.triggers.cluster import KedaMetadata
from elasti.api.types import AUTOSCALER_KINDS
from elasti.triggers.reader import (
    FindObject,
    ReadContext,
    ReaderSettings,
    TriggerReader,
    TriggerReading,
)
from kubeloop.client.errors import Forbidden, KubeError, NotFound
from kubeloop.informer import Updated
from kubeloop.informer.handlers import Notification
from kubeloop.objects.meta import LabeledMeta, ObjectName

SCALED_OBJECTS = AUTOSCALER_KINDS["keda"].resource
_TIMEOUT = 5.0


class _Status(msgspec.Struct, gc=False):
    conditions: list[dict[str, Any]] | None = None


class ScaledObject(msgspec.Struct, gc=False):
    """A ScaledObject, as far as it says whether there is work."""

    metadata: LabeledMeta
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def shown(self) -> tuple[bool, str]:
        """Whether it is paused, and its condition Active."""
        annotations = self.metadata.annotations or {}
        paused = annotations.get(PAUSED) not in UNPAUSED or PAUSED_REPLICAS in annotations
        found = (c.get("status") for c in self.status.conditions or () if c.get("type") == "Active")
        return paused, str(next(found, "Unknown"))


class KedaReader(TriggerReader):
    """Follows ScaledObjects: a change is read at once, and a reading asks the server nothing."""

    def __init__(self, find: FindObject, leave: Callable[[Hashable], None]) -> None:
        self._find = find
        self._leave = leave

    async def read(self, metadata: KedaMetadata, context: ReadContext) -> TriggerReading:
        """Return whether the ScaledObject is active."""

        def heard(event: Notification[ScaledObject]) -> None:
            # KEDA writes status with every poll of an active one.
            if not isinstance(event, Updated) or event.old.shown != event.new.shown:
                context.changed()

        name = metadata.scaled_object
        at = ObjectName(context.namespace, name)
        try:
            async with asyncio.timeout(_TIMEOUT):
                found = await self._find(context.key, SCALED_OBJECTS, ScaledObject, at, heard)
        except NotFound:
            error = "the cluster has no ScaledObjects (keda.sh/v1alpha1): install KEDA, or remove the trigger"
        except Forbidden:
            error = f"the operator may not read ScaledObject {name}: grant it the verbs list and watch on scaledobjects of keda.sh"
        except (KubeError, TimeoutError) as failure:
            error = f"ScaledObject {name} cannot be read ({type(failure).__name__})"
        else:
            if found is not None:
                return reading_of(found, name, asleep=context.asleep)
            error = f"there is no ScaledObject {name} in namespace {at.namespace}: create it, or name another"
        return TriggerReading(error=error)

    def forget(self, key: Hashable) -> None:
        """Follow its object no longer."""
        self._leave(key)


def reading_of(found: ScaledObject, name: str, *, asleep: bool) -> TriggerReading:
    """Return the reading of a ScaledObject."""
    paused, active = found.shown
    if paused and asleep:
        return TriggerReading(0.0)
    if paused:
        return TriggerReading(
            error=f"ScaledObject {name} is paused, so KEDA does not say whether it is active; remove"
            f" its annotation {PAUSED} or {PAUSED_REPLICAS}"
        )
    if active in ("True", "False"):
        return TriggerReading(float(active == "True"))
    return TriggerReading(
        error=f"KEDA does not say whether ScaledObject {name} is active (its condition Active is"
        f" {active[:40]}); kubectl describe scaledobject {name} says why"
    )


def make_reader(settings: ReaderSettings) -> KedaReader:
    """Make the reader."""
    assert settings.find is not None
    return KedaReader(settings.find, settings.leave)
