"""Triggers that ask KEDA: the condition Active of a ScaledObject says whether its scalers see work.

KEDA does not update the condition of a paused ScaledObject, so it proves nothing. A target that sleeps (we
have paused it, if `spec.autoscaler` names it) counts as idle, and traffic or another trigger wakes it; one that is
awake stays awake until the pause is over.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elasti.api.names import PAUSED, PAUSED_REPLICAS
from elasti.api.types import AUTOSCALER_KINDS
from elasti.triggers.reader import ReadContext, ReaderSettings, TriggerReader, TriggerReading
from kubeloop.client.errors import Forbidden, KubeError, NotFound

if TYPE_CHECKING:
    from elasti.api.triggers.cluster import KedaMetadata
    from kubeloop.client.client import Client
    from kubeloop.objects.meta import JsonObject

SCALED_OBJECTS = AUTOSCALER_KINDS["keda"].resource
_TIMEOUT = 5.0


class KedaReader(TriggerReader):
    """Reads ScaledObjects one by one, each time: they are not watched."""

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
    """Return the reading of a ScaledObject."""
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


def make_reader(settings: ReaderSettings) -> KedaReader:
    """Make the reader."""
    assert settings.client is not None
    return KedaReader(settings.client)
