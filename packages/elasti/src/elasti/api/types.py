"""The ElastiService object: what users write and what the operator reports.

Every field of KubeElasti v0.1.30 with its meaning, and ours beside them. Constraints stand in the
annotations: the CRD is generated from them, and decoding checks them again.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, TypeVar

import msgspec
from msgspec import Meta

from elasti.api.conditions import WakeCause
from elasti.api.defaults import COOLDOWN, MAX_PAGE_BYTES
from elasti.api.names import PAGE_CONFIG_MAP
from elasti.triggers.registry import Role, TriggerMetadata, read_metadata, trigger_types
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
    name: Annotated[ObjectName, Meta(description="The workload's name, in the same namespace.")]


class ScaleTrigger(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """One source of evidence that the target is in use."""

    type: Annotated[NonEmpty, Meta(description="How it is read.")]
    metadata: Annotated[
        dict[str, Any], Meta(description="What the type needs; the guide has the keys of each.")
    ] = msgspec.field(default_factory=dict)
    role: Annotated[
        Role | None,
        Meta(
            description="Signal: its quiet lets the target sleep, its use wakes it. Veto: its use keeps"
            " the target awake, and that is all. Left out: the type's own."
        ),
    ] = None

    @property
    def effective_role(self) -> Role:
        """The role that is written, or the type's own."""
        known = trigger_types().get(self.type)
        return self.role or (known.role if known else Role.SIGNAL)

    @property
    def vetoes(self) -> tuple[str, ...]:
        """Types that keep the target awake beside it, where the installation can read them."""
        found = self._read()
        return found.vetoes if found else ()

    @property
    def look_seconds(self) -> float:
        """For how long the resolver must look for arrivals before the target sleeps."""
        found = self._read()
        return found.look_seconds if found else 0.0

    def _read(self) -> TriggerMetadata | None:
        """Return its metadata; None where the spec is refused because of it."""
        try:
            return read_metadata(self.type, self.metadata)
        except ValueError:
            return None


class AutoscalerSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """The autoscaler that owns the target while it is awake."""

    type: Annotated[
        Literal["hpa", "keda"],
        Meta(description="hpa: a HorizontalPodAutoscaler; keda: a ScaledObject, paused meanwhile."),
    ]
    name: Annotated[ObjectName, Meta(description="Its name, in the same namespace.")]


class EnabledPeriod(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """When sleeping is allowed: from each time of the schedule, for the duration."""

    schedule: Annotated[str, Meta(description="A cron expression of five fields.")] = "0 0 * * *"
    duration: Annotated[str, Meta(description="How long each period lasts, such as 8h30m.")] = "24h"
    timezone: Annotated[str, Meta(description="An IANA name such as Europe/Berlin.")] = "UTC"


class NamedMatch(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A header or query parameter that must have a value."""

    name: Annotated[str, Meta(min_length=1, max_length=256, description="Which one it is.")]
    value: Annotated[
        str, Meta(max_length=4096, description="What its value must be, or match.")
    ] = ""
    type: Annotated[
        Literal["Exact", "RegularExpression"], Meta(description="How the value is compared.")
    ] = "Exact"


class PathMatch(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A path that must match; a prefix matches whole segments."""

    type: Annotated[
        Literal["Exact", "PathPrefix", "RegularExpression"],
        Meta(description="How the path is compared."),
    ] = "PathPrefix"
    value: Annotated[str, Meta(max_length=1024, description="The path, or an expression.")] = "/"


class LocalResponse(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What the resolver answers itself."""

    status: Annotated[
        Literal[200, 204, 400, 401, 403, 404, 500, 502, 503, 504],
        Meta(description="The HTTP status."),
    ] = 200
    body: Annotated[str, Meta(description="The body, as it is sent.")] = ""


Method = Literal["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"]


class ProbeResponse(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """A request that is answered while the target sleeps, without waking it. All parts must match."""

    path: PathMatch = PathMatch()
    headers: Annotated[
        tuple[NamedMatch, ...], Meta(max_length=16, description="Headers that must match.")
    ] = ()
    query_params: Annotated[
        tuple[NamedMatch, ...], Meta(max_length=16, description="Query parameters that must match.")
    ] = ()
    method: Annotated[Method | None, Meta(description="The method; any, where it is left out.")] = (
        None
    )
    response: LocalResponse = LocalResponse()


class PageConfigMap(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A page in a ConfigMap of the same namespace."""

    name: Annotated[
        ObjectName,
        Meta(description="Its name. Others than elasti-page need a Role for the resolver: get it."),
    ] = PAGE_CONFIG_MAP
    key: Annotated[
        str, Meta(min_length=1, max_length=253, description="The key that has the HTML.")
    ] = "index.html"

    def text_in(self, data: Mapping[str, str] | None) -> str:
        """Return the HTML in a ConfigMap's data. Raises ValueError, with what to do, where there is none."""
        text = (data or {}).get(self.key, "")
        if not text.strip():
            raise ValueError(f"ConfigMap {self.name} has nothing under the key {self.key}")
        if (size := len(text.encode())) > MAX_PAGE_BYTES:
            raise ValueError(
                f"ConfigMap {self.name} has {size} bytes under {self.key}; write at most {MAX_PAGE_BYTES}"
            )
        return text


class PageTemplate(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """Where HTML of your own is."""

    config_map: PageConfigMap = PageConfigMap()


class PageSpec(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """The page that a browser shows while the target wakes."""

    mode: Annotated[
        Literal["Off", "Auto"] | None,
        Meta(
            description="Auto: a top-level navigation of a browser gets the page; every other request is"
            " held. Left out: as the installation says, which is Off unless it was changed."
        ),
    ] = None
    after: Annotated[
        str,
        Meta(
            max_length=16,
            pattern=r"^([0-9]+(ms|s|m))+\Z",
            extra_json_schema={"pattern": "^([0-9]+(ms|s|m))+$"},
            description="How long a navigation is held first, such as 3s: a faster wake shows no page.",
        ),
    ] = "3s"
    title: Annotated[
        str, Meta(max_length=100, description="What people call it; the Service's name by default.")
    ] = ""
    status: Annotated[Literal[200, 202, 503], Meta(description="The page's HTTP status.")] = 503
    require_click: Annotated[
        bool,
        Meta(description="A navigation does not wake the target: the page has a button that does."),
    ] = False
    template: PageTemplate | None = None


class WakeSpec(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """How connections are held while the target wakes."""

    timeout_seconds: Annotated[
        int, Meta(ge=1, le=86400, description="How long a connection may be held; then 504.")
    ] = 600
    max_held: Annotated[
        int,
        Meta(
            ge=1, le=1_000_000, description="How many a resolver replica may hold; beyond it 503."
        ),
    ] = 10_000
    probe: Annotated[
        Literal["Auto", "Ready", "TCP", "Protocol"],
        Meta(
            description="When a starting pod gets traffic: by its own probes, when Ready, on TCP, or"
            " when PostgreSQL, MySQL or Redis says that it serves."
        ),
    ] = "Auto"
    replicas: Annotated[
        Literal["Minimum", "Previous"],
        Meta(
            description="Scale up to spec.minTargetReplicas, or to what the target had before it"
            " slept. A target with spec.autoscaler always wakes with the minimum."
        ),
    ] = "Minimum"
    page: PageSpec = PageSpec()


class SleepSpec(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """How the target is put to sleep."""

    drain: Annotated[
        Literal["None", "Selector"],
        Meta(
            description="Selector: take pods out of the Service's rotation before they get SIGTERM, by a"
            " key in its selector that none has. None: Kubernetes does both at about the same time."
        ),
    ] = "None"


class ElastiServiceSpec(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """What the user asks for."""

    scale_target_ref: ScaleTargetRef
    service: Annotated[ServiceName, Meta(description="The Service whose traffic wakes the target.")]
    min_target_replicas: Annotated[
        int, Meta(ge=1, le=2_147_483_647, description="How many replicas a wake-up asks for.")
    ] = 1
    cooldown_period: Annotated[
        int, Meta(ge=0, le=604_800, description="Seconds without use before it sleeps; 0: 900.")
    ] = COOLDOWN
    given_triggers: Annotated[
        tuple[ScaleTrigger, ...] | None,
        Meta(
            description="What shows that it is used: all must be quiet to sleep, and one of them a"
            " Signal; any one Signal wakes. Left out: the installation's default. Empty: nothing, so it"
            " never sleeps by itself."
        ),
    ] = msgspec.field(name="triggers", default=None)
    autoscaler: AutoscalerSpec | None = None
    enabled_period: EnabledPeriod | None = None
    probe_response: Annotated[
        tuple[ProbeResponse, ...],
        Meta(max_length=32, description="Requests that are answered without waking it."),
    ] = ()
    wake: WakeSpec = WakeSpec()
    sleep: SleepSpec = SleepSpec()
    deletion_policy: Annotated[
        Literal["ScaleUp", "Leave"],
        Meta(description="When this is deleted: wake the target first, or leave it as it is."),
    ] = "ScaleUp"
    suspend: Annotated[
        bool,
        Meta(
            description="Wake the target once, take the resolver out of its traffic, and then leave"
            " both alone until this is false."
        ),
    ] = False

    @property
    def triggers(self) -> tuple[ScaleTrigger, ...]:
        """The triggers that are written; none where they are left out."""
        return self.given_triggers or ()


class StatusCondition(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A Kubernetes condition."""

    type: Annotated[NonEmpty, Meta(description="What it is about.")]
    status: Annotated[Literal["True", "False", "Unknown"], Meta(description="Whether that is so.")]
    reason: Annotated[NonEmpty, Meta(description="Why, in one word.")]
    message: Annotated[str, Meta(description="Why, in a sentence, and what to do.")] = ""
    last_transition_time: Annotated[str, Meta(description="When its status changed.")] = ""
    observed_generation: Annotated[int, Meta(description="Of which spec this was said.")] = 0


class ResolverPort(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """The resolver's port for one port of the Service."""

    port: Annotated[int, Meta(ge=1, le=65535, description="The Service's port.")]
    resolver_port: Annotated[
        int, Meta(ge=1, le=65535, description="Where resolvers listen for it.")
    ]
    name: Annotated[str, Meta(description="The name of the Service's port.")] = ""


class TriggerStatus(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """What one trigger has shown, in the order of spec.triggers; written when it changes.

    The live value is in `elasti describe`.
    """

    type: Annotated[str, Meta(description="The trigger's type.")]
    threshold: Annotated[str, Meta(description="Below it the trigger is quiet.")] = ""
    quiet_since: Annotated[
        str | None, Meta(description="Since when it is quiet, after a minute of that; else empty.")
    ] = None
    last_error: Annotated[
        str, Meta(description="Why the last reading failed; empty where it did not.")
    ] = ""
    role: Annotated[str, Meta(description="Signal or Veto.")] = ""


class LastWake(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """The last wake-up: when, why, for whom, and how long it took until traffic went to the pods."""

    time: Annotated[str, Meta(description="When it began.")]
    cause: Annotated[WakeCause, Meta(description="What woke it.")]
    client: Annotated[
        str,
        Meta(description="Whose request it was, or the field manager that scaled it up."),
    ] = ""
    seconds: Annotated[
        float | None, Meta(description="How long it took until traffic went to the pods.")
    ] = None


class UsageStatus(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """How long the target has slept, and how often it was woken, since it is counted."""

    since: Annotated[str, Meta(description="When counting began.")]
    asleep_seconds: Annotated[
        int, Meta(description="Seconds asleep, without the present sleep (asleepSince).")
    ] = 0
    wakes: Annotated[int, Meta(description="How often it was woken.")] = 0
    cpu_millicore_seconds: Annotated[
        int, Meta(description="CPU released, without the present sleep (releasedSince).")
    ] = 0
    memory_byte_seconds: Annotated[
        int, Meta(description="Memory released, without the present sleep (releasedSince).")
    ] = 0


class CapacityStatus(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What the target's minimum of replicas requests; absent where its pods request nothing."""

    cpu_millicores: Annotated[int, Meta(description="CPU, in thousandths of a core.")] = 0
    memory_bytes: Annotated[int, Meta(description="Memory, in bytes.")] = 0


class SleepRecord(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """One sleep that is over."""

    since: Annotated[str, Meta(description="When it began.")]
    until: Annotated[str, Meta(description="When it ended.")]
    cause: Annotated[str, Meta(description="What ended it; empty if unknown.")] = ""
    seconds: Annotated[
        float | None, Meta(description="How long it took until traffic went to the pods.")
    ] = None


class ElastiServiceStatus(
    msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False
):
    """What the operator reports."""

    mode: Annotated[
        Literal["", "proxy", "serve"],
        Meta(description="proxy: the resolver takes the traffic; serve: the pods do."),
    ] = ""
    last_reconciled_time: Annotated[
        str | None, Meta(description="When status was last written.")
    ] = None
    last_scaled_up_time: Annotated[
        str | None, Meta(description="When the target was last asked to wake.")
    ] = None
    observed_generation: Annotated[int, Meta(description="The spec that status is about.")] = 0
    phase: Annotated[
        str, Meta(description="Awake, GoingToSleep, Asleep or Waking; empty: not in order.")
    ] = ""
    since: Annotated[str | None, Meta(description="Since when it is in that phase.")] = None
    state: Annotated[str, Meta(description="The state of the hand-over behind the phase.")] = ""
    replicas: Annotated[int, Meta(description="The replicas that the target asks for.")] = 0
    previous_replicas: Annotated[
        int,
        Meta(
            description="What the target had before it slept, where spec.wake.replicas asks for it."
        ),
    ] = 0
    resolver_ports: Annotated[
        tuple[ResolverPort, ...], Meta(description="Where resolvers listen for the Service.")
    ] = ()
    conditions: Annotated[
        tuple[StatusCondition, ...], Meta(description="What holds; MaySleep says why it is awake.")
    ] = ()
    quiet_since: Annotated[
        str | None, Meta(description="Since when every trigger is quiet, after a minute of that.")
    ] = None
    sleeps_at: Annotated[
        str | None, Meta(description="When it sleeps if it is used no more; empty if unknown.")
    ] = None
    asleep_since: Annotated[
        str | None, Meta(description="Since when the target is at zero; empty while awake.")
    ] = None
    triggers: Annotated[
        tuple[TriggerStatus, ...], Meta(description="What the triggers have shown.")
    ] = ()
    last_wake: LastWake | None = None
    usage: UsageStatus | None = None
    capacity: CapacityStatus | None = None
    released_since: Annotated[
        str | None,
        Meta(description="Since when no pod is left, and its capacity is released; else empty."),
    ] = None
    recent: Annotated[
        tuple[SleepRecord, ...], Meta(description="The last 20 sleeps that are over.")
    ] = ()


class ElastiService(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """A Service and its workload that may sleep."""

    spec: ElastiServiceSpec
    metadata: ObjectMeta = msgspec.field(default_factory=ObjectMeta)
    status: ElastiServiceStatus = ElastiServiceStatus()
    api_version: str = ""
    kind: str = ""
    unreadable: str = ""

    def with_default_triggers(
        self, defaults: Sequence[str], vetoes: Sequence[str] = ()
    ) -> ElastiService:
        """Return the object with the installation's triggers, by type, where it leaves them out.

        One that an operator had in hand before without any is left without: it must not begin to sleep.
        Of `vetoes`, those that a trigger wants beside it are added.
        """
        seen = self.status.observed_generation or self.status.mode or self.status.phase
        known_without = self.unreadable or (seen and not self.status.triggers)
        triggers = self.spec.given_triggers
        if triggers is None and not known_without:
            triggers = tuple(ScaleTrigger(name) for name in defaults)
        wanted = {name for trigger in triggers or () for name in trigger.vetoes}
        missing = wanted.intersection(vetoes) - {trigger.type for trigger in triggers or ()}
        if not missing and (triggers or ()) == self.spec.triggers:
            return self
        triggers = (triggers or ()) + tuple(
            ScaleTrigger(name, role=Role.VETO) for name in sorted(missing)
        )
        return msgspec.structs.replace(
            self, spec=msgspec.structs.replace(self.spec, given_triggers=triggers)
        )

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
