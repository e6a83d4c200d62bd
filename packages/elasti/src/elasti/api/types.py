"""The ElastiService object: what users write and what the operator reports.

Every field of KubeElasti v0.1.30 with its meaning, and ours beside them. Constraints stand in the
annotations: the CRD is generated from them, and decoding checks them again.
"""

from __future__ import annotations

from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from elasti.api.defaults import COOLDOWN
from kubeloop.objects.meta import ObjectMeta

_LABEL = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN = rf"{_LABEL}(\.{_LABEL})*"


def _named(pattern: str, longest: int, description: str = "") -> Meta:
    """Return the constraint of a name that becomes part of a URL."""
    # In Python `$` is also before a line's end; in the API server's schema it is the end.
    return Meta(
        min_length=1,
        max_length=longest,
        pattern=rf"^{pattern}\Z",
        description=description or None,
        extra_json_schema={"pattern": f"^{pattern}$"},
    )


NonEmpty = Annotated[str, Meta(min_length=1)]
ServiceName = Annotated[str, _named(_LABEL, 63)]
ObjectName = Annotated[str, _named(_SUBDOMAIN, 253)]


def is_object_name(text: str) -> bool:
    """Whether an object of most kinds can have a name."""
    return _converted(text, ObjectName, None) is not None


class ScaleTargetRef(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """The workload that sleeps: any kind with a scale subresource."""

    api_version: Annotated[str, _named(rf"({_SUBDOMAIN}/)?{_LABEL}", 317, "Such as apps/v1.")]
    kind: Annotated[str, _named("[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?", 63, "Such as Deployment.")]
    name: ObjectName


class ScaleTrigger(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """One source of evidence that the target is in use."""

    type: NonEmpty
    metadata: dict[str, Any] = msgspec.field(default_factory=dict)


class AutoscalerSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """The autoscaler that owns the target while it is awake."""

    type: Literal["hpa", "keda"]
    name: ObjectName


class EnabledPeriod(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """When sleeping is allowed: from each time of the schedule, for the duration."""

    schedule: Annotated[str, Meta(description="A cron expression of five fields.")] = "0 0 * * *"
    duration: Annotated[str, Meta(description="How long each period lasts, such as 8h30m.")] = "24h"
    timezone: Annotated[str, Meta(description="An IANA name such as Europe/Berlin.")] = "UTC"


class NamedMatch(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A header or query parameter that must have a value."""

    name: Annotated[str, Meta(min_length=1, max_length=256)]
    value: Annotated[str, Meta(max_length=4096)] = ""
    type: Literal["Exact", "RegularExpression"] = "Exact"


class PathMatch(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A path that must match; a prefix matches whole segments."""

    type: Literal["Exact", "PathPrefix", "RegularExpression"] = "PathPrefix"
    value: Annotated[str, Meta(max_length=1024)] = "/"


class LocalResponse(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What the resolver answers itself."""

    status: Literal[200, 204, 400, 401, 403, 404, 500, 502, 503, 504] = 200
    body: str = ""


Method = Literal["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"]


class ProbeResponse(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """A request that is answered while the target sleeps, without waking it. All parts must match."""

    path: PathMatch = PathMatch()
    headers: Annotated[tuple[NamedMatch, ...], Meta(max_length=16)] = ()
    query_params: Annotated[tuple[NamedMatch, ...], Meta(max_length=16)] = ()
    method: Method | None = None
    response: LocalResponse = LocalResponse()


class WakeSpec(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """How connections are held while the target wakes."""

    timeout_seconds: Annotated[int, Meta(ge=1, le=86400)] = 600
    max_held: Annotated[int, Meta(ge=1, le=1_000_000)] = 10_000
    probe: Literal["Auto", "Ready", "TCP"] = "Auto"
    replicas: Annotated[
        Literal["Minimum", "Previous"],
        Meta(
            description="Scale up to spec.minTargetReplicas, or to what the target had before it"
            " slept. A target with spec.autoscaler always wakes with the minimum."
        ),
    ] = "Minimum"


class ElastiServiceSpec(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """What the user asks for."""

    scale_target_ref: ScaleTargetRef
    service: ServiceName
    min_target_replicas: Annotated[int, Meta(ge=1, le=2_147_483_647)] = 1
    cooldown_period: Annotated[int, Meta(ge=0, le=604_800)] = COOLDOWN
    triggers: tuple[ScaleTrigger, ...] = ()
    autoscaler: AutoscalerSpec | None = None
    enabled_period: EnabledPeriod | None = None
    probe_response: Annotated[tuple[ProbeResponse, ...], Meta(max_length=32)] = ()
    wake: WakeSpec = WakeSpec()
    deletion_policy: Literal["ScaleUp", "Leave"] = "ScaleUp"
    suspend: Annotated[
        bool,
        Meta(
            description="Wake the target once, take the resolver out of its traffic, and then leave"
            " both alone until this is false."
        ),
    ] = False


class StatusCondition(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A Kubernetes condition."""

    type: NonEmpty
    status: Literal["True", "False", "Unknown"]
    reason: NonEmpty
    message: str = ""
    last_transition_time: str = ""
    observed_generation: int = 0


class ResolverPort(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """The resolver's port for one port of the Service."""

    port: Annotated[int, Meta(ge=1, le=65535)]
    resolver_port: Annotated[int, Meta(ge=1, le=65535)]
    name: str = ""


class ElastiServiceStatus(
    msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False
):
    """What the operator reports."""

    mode: Literal["", "proxy", "serve"] = ""
    last_reconciled_time: str | None = None
    last_scaled_up_time: str | None = None
    observed_generation: int = 0
    state: str = ""
    replicas: int = 0
    previous_replicas: Annotated[
        int,
        Meta(
            description="What the target had before it slept, where spec.wake.replicas asks for it."
        ),
    ] = 0
    resolver_ports: tuple[ResolverPort, ...] = ()
    conditions: tuple[StatusCondition, ...] = ()


class ElastiService(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """A Service and its workload that may sleep."""

    spec: ElastiServiceSpec
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    status: ElastiServiceStatus = ElastiServiceStatus()
    api_version: str = ""
    kind: str = ""
    unreadable: str = ""

    @classmethod
    def salvaged(cls, data: bytes, error: str) -> ElastiService:
        """Return what can be made of an object that an older or newer definition let pass.

        Which Service and which target it is for is kept where it can be read, and its status; nothing
        else is believed, and `unreadable` says what is wrong.
        """
        loose = msgspec.json.decode(data, type=_LooseService)
        return cls(
            spec=ElastiServiceSpec(
                scale_target_ref=_converted(
                    loose.spec.get("scaleTargetRef"), ScaleTargetRef, ScaleTargetRef("", "", "")
                ),
                service=_converted(loose.spec.get("service"), ServiceName, ""),
            ),
            metadata=loose.metadata,
            status=_converted(loose.status, ElastiServiceStatus, ElastiServiceStatus()),
            unreadable=_located(error),
        )


class _LooseService(msgspec.Struct, gc=False):
    metadata: ObjectMeta
    spec: dict[str, Any] = {}
    status: Any = None


_T = TypeVar("_T")


def _converted(value: Any, kind: Any, otherwise: _T) -> _T:
    try:
        found: _T = msgspec.convert(value, kind)
        return found
    except msgspec.ValidationError:
        return otherwise


def _located(error: str) -> str:
    """Return msgspec's message with the field in front, as people write it."""
    message, _, place = error.partition(" - at `$.")
    return f"{place.rstrip('`')}: {message}" if place else message
