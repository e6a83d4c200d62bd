"""Triggers that ask KEDA: the condition Active of a ScaledObject says whether its scalers see work.

A paused ScaledObject's condition is not kept up to date. So it says nothing: a target that sleeps (we have
paused it, where `spec.autoscaler` names it) is idle, and is woken by traffic or by another trigger; one that
is awake stays so until the pause is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

from msgspec import Meta

from elasti.triggers.registry import (
    ReadContext,
    ReaderSettings,
    Threshold,
    TriggerMetadata,
    TriggerReader,
    TriggerReading,
    TriggerType,
)
from kubeloop.client.errors import Forbidden, KubeError, NotFound

if TYPE_CHECKING:
    from kubeloop.client.client import Client
    from kubeloop.objects.meta import JsonObject

SCALED_OBJECTS = "keda.sh/v1alpha1/scaledobjects"
PAUSED = "autoscaling.keda.sh/paused"
PAUSED_REPLICAS = "autoscaling.keda.sh/paused-replicas"
_TIMEOUT = 5.0


class KedaMetadata(TriggerMetadata, frozen=True, kw_only=True):
    """A ScaledObject of the namespace: 1 while its condition Active is True, 0 while it is False."""

    scaled_object: Annotated[
        str,
        Meta(
            pattern=r"^[a-z0-9]([-.a-z0-9]{0,251}[a-z0-9])?\Z",
            description="The ScaledObject's name, of type keda.",
        ),
    ]
    threshold: Threshold = 1


class KedaReader(TriggerReader):
    """Reads ScaledObjects, one by one, each time: there is no watch on them."""

    def __init__(self, client: Client) -> None:
        self._objects = client.resource(SCALED_OBJECTS)

    async def read(self, metadata: KedaMetadata, context: ReadContext) -> TriggerReading:
        """Return whether the ScaledObject is active."""
        name = metadata.scaled_object
        try:
            found = await self._objects.get(name, namespace=context.namespace, timeout=_TIMEOUT)
        except NotFound as error:
            return TriggerReading(error=_absent(name, context.namespace, error))
        except Forbidden:
            return TriggerReading(
                error=f"the operator may not read ScaledObject {name}: grant it the verb get on"
                " scaledobjects of keda.sh"
            )
        except KubeError as error:
            return TriggerReading(
                error=f"ScaledObject {name} cannot be read ({type(error).__name__})"
            )
        return reading_of(found, name, asleep=context.asleep)


def _absent(name: str, namespace: str, error: NotFound) -> str:
    details = error.status.details
    # An object that is not there is named; a resource that is not there names nothing.
    if details is None or not details.name:
        return "the cluster has no ScaledObjects (keda.sh/v1alpha1): install KEDA, or remove the trigger"
    return f"there is no ScaledObject {name} in namespace {namespace}: create it, or name another"


def reading_of(found: JsonObject, name: str, *, asleep: bool) -> TriggerReading:
    """Return what a ScaledObject shows."""
    annotations = found["metadata"].get("annotations") or {}
    if annotations.get(PAUSED) == "true" or PAUSED_REPLICAS in annotations:
        if asleep:
            return TriggerReading(0.0)
        return TriggerReading(
            error=f"ScaledObject {name} is paused, so KEDA does not say whether it is active; remove"
            f" its annotation {PAUSED} or {PAUSED_REPLICAS}"
        )
    conditions: list[dict[str, Any]] = (found.get("status") or {}).get("conditions") or []
    status = next((c.get("status") for c in conditions if c.get("type") == "Active"), "Unknown")
    if status in ("True", "False"):
        return TriggerReading(float(status == "True"))
    return TriggerReading(
        error=f"KEDA does not say whether ScaledObject {name} is active (its condition Active is"
        f" {str(status)[:40]}); kubectl describe scaledobject {name} says why"
    )


def _make_reader(settings: ReaderSettings) -> KedaReader:
    assert settings.client is not None
    return KedaReader(settings.client)


TRIGGER = TriggerType(name="keda", metadata=KedaMetadata, reader=_make_reader)
