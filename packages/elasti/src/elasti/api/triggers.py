"""What a trigger's metadata says, per type, checked with messages for people."""

from __future__ import annotations

import math
import re
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
from msgspec import Meta

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elasti.api.types import ScaleTrigger

Threshold = float | str

_REDACTED = "(redacted)"
_CREDENTIALS = re.compile(r"(//|\A)[^/]*@")
_NOT_SECRET = frozenset(
    {"query", "threshold", "uptimeFilter", "metric", "port", "path", "kind", "labels"}
)


class PrometheusMetadata(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A query whose single value is compared with the threshold.

    `server_address` may be left out where the operator has a default. `headers` may hold
    credentials: they never appear in logs, events, status or metrics.
    """

    query: Annotated[str, Meta(min_length=1)]
    threshold: Threshold
    server_address: str = ""
    uptime_filter: str = 'container="prometheus"'
    headers: dict[str, str] = {}

    def __repr__(self) -> str:
        return f"PrometheusMetadata(query={self.query!r}, threshold={self.threshold!r})"


class PodsMetadata(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A metric that the target's own pods serve, summed over all of them.

    A counter is compared by its rate per second, a gauge by its value. `kind` left out means
    counter for names that end in `_total` and gauge otherwise. `port` left out is the Service's
    first target port.
    """

    metric: Annotated[str, Meta(pattern=r"^[a-zA-Z_:][a-zA-Z0-9_:]*$")]
    threshold: Threshold
    port: int | str = 0
    path: Annotated[str, Meta(pattern="^/")] = "/metrics"
    kind: Literal["", "counter", "gauge"] = ""
    labels: dict[str, str] = {}

    @property
    def is_counter(self) -> bool:
        """Whether the metric is compared by its rate."""
        return self.kind == "counter" or (not self.kind and self.metric.endswith("_total"))


TriggerMetadata = PrometheusMetadata | PodsMetadata

_TYPES: dict[str, type[PrometheusMetadata | PodsMetadata]] = {
    "prometheus": PrometheusMetadata,
    "pods": PodsMetadata,
}


def trigger_metadata(trigger: ScaleTrigger) -> TriggerMetadata:
    """Read the metadata of a trigger; raises ValueError naming the field and the remedy."""
    try:
        metadata = msgspec.convert(trigger.metadata, _TYPES[trigger.type])
    except msgspec.ValidationError as error:
        raise ValueError(f"{trigger.type} trigger: {error}") from None
    threshold_of(metadata)
    return metadata


def threshold_of(metadata: TriggerMetadata) -> float:
    """Return the threshold as a number, written as number or string."""
    try:
        threshold = float(metadata.threshold)
    except ValueError:
        threshold = math.nan
    if not math.isfinite(threshold):
        raise ValueError(f"threshold {metadata.threshold!r} is not a number; write it like 0.5")
    return threshold


def without_credentials(address: str) -> str:
    """Return an address without the user and password that may stand in it."""
    return _CREDENTIALS.sub(r"\1", address)


def redacted_metadata(metadata: Mapping[str, Any]) -> dict[str, Any]:
    """Return a trigger's metadata for others' eyes: only what is known to be no secret."""
    return {key: _redacted(key, value) for key, value in metadata.items()}


def _redacted(key: str, value: Any) -> Any:
    if key in _NOT_SECRET:
        return value
    if key == "serverAddress" and isinstance(value, str):
        return without_credentials(value)
    if key == "headers" and isinstance(value, dict):
        return dict.fromkeys(value, _REDACTED)
    return _REDACTED
