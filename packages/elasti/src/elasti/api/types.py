"""The ElastiService object: the user's spec and the operator's status.

It has every field of KubeElasti v0.1.30 with the same meaning, and our own. The annotations have the
constraints: the CRD is generated from them, and decoding checks them again.
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from msgspec import Meta

from elasti.api.conditions import TRIGGERS_HEALTHY, Reason, WakeCause
from elasti.api.defaults import CLOUD_ENGAGE_SETTLE, COOLDOWN, ENGAGE_SETTLE, MAX_PAGE_BYTES
from elasti.api.descriptions import about
from elasti.api.names import PAGE_CONFIG_MAP
from elasti.api.states import SleepOutcome
from elasti.api.triggers.registry import Role, TriggerMetadata, read_metadata, trigger_types
from kubeloop.crd import validations
from kubeloop.objects.meta import ObjectMeta
from kubeloop.objects.names import DNS_LABEL, DNS_SUBDOMAIN


def _named(pattern: str, longest: int, description: str = "") -> Meta:
    """Return the constraint of a name that becomes part of a URL."""
    # In Python `$` also matches before a final newline; in the API server's schema it does not.
    return Meta(
        min_length=1,
        max_length=longest,
        pattern=rf"^{pattern}\Z",
        description=description or None,
        extra_json_schema={"pattern": f"^{pattern}$"},
    )


MAX_DEPENDENCIES = 32
MAX_DEPENDENCY_DEPTH = 8
MAX_WORKERS = 16
LONGEST_ENGAGE_SETTLE = 600
ENGAGE_SETTLE_REMEDY = f"write Auto, or whole seconds from 1 to {LONGEST_ENGAGE_SETTLE}"
NonEmpty = Annotated[str, Meta(min_length=1)]
ServiceName = Annotated[str, _named(DNS_LABEL, 63)]
ObjectName = Annotated[str, _named(DNS_SUBDOMAIN, 253)]


def is_object_name(text: str) -> bool:
    """Whether an object of most kinds can have a name."""
    return _converted(text, ObjectName, None) is not None


class ScaleTargetRef(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """The workload that sleeps: any kind with a scale subresource."""

    api_version: Annotated[str, _named(rf"({DNS_SUBDOMAIN}/)?{DNS_LABEL}", 317, "Such as apps/v1.")]
    kind: Annotated[str, _named("[A-Za-z]([-A-Za-z0-9]*[A-Za-z0-9])?", 63, "Such as Deployment.")]
    name: Annotated[ObjectName, about("The workload's name, in the same namespace.")]


class ScaleTrigger(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """One source of evidence that the target is in use."""

    type: Annotated[NonEmpty, about("The type of trigger.")]
    metadata: Annotated[
        dict[str, Any], about("Settings of the trigger; the keys depend on its type.")
    ] = msgspec.field(default_factory=dict)
    role: Annotated[
        Role | None,
        about(
            "Signal: lets the target sleep when quiet, wakes it when in use. Veto: only keeps"
            " the target awake. Default: depends on the type."
        ),
    ] = None

    @property
    def effective_role(self) -> Role:
        """The role in the spec, or the type's default."""
        known = trigger_types().get(self.type)
        return self.role or (known.role if known else Role.SIGNAL)

    @property
    def vetoes(self) -> tuple[str, ...]:
        """Types to add as vetoes, if the installation can read them."""
        found = self._read()
        return found.vetoes if found else ()

    @property
    def look_seconds(self) -> float:
        """How long the resolver must watch for arrivals before the target sleeps."""
        found = self._read()
        return found.look_seconds if found else 0.0

    def _read(self) -> TriggerMetadata | None:
        """Return its metadata; None if it is invalid."""
        try:
            return read_metadata(self.type, self.metadata)
        except ValueError:
            return None


class AutoscalerKind(NamedTuple):
    """An autoscaler that `spec.autoscaler` can name."""

    kind: str
    resource: str
    about: str


# Each has a module of its name in `elasti.operator.autoscalers`.
AUTOSCALER_KINDS = {
    "hpa": AutoscalerKind(
        "HorizontalPodAutoscaler",
        "autoscaling/v2/horizontalpodautoscalers",
        "a HorizontalPodAutoscaler",
    ),
    "keda": AutoscalerKind(
        "ScaledObject",
        "keda.sh/v1alpha1/scaledobjects",
        "a ScaledObject, paused while the target sleeps",
    ),
}


class AutoscalerSpec(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """The autoscaler that owns the target while it is awake."""

    type: Annotated[
        str,
        about(
            "; ".join(f"{name}: {k.about}" for name, k in AUTOSCALER_KINDS.items()) + ".",
            enum=sorted(AUTOSCALER_KINDS),
        ),
    ]
    name: Annotated[ObjectName, about("The autoscaler's name, in the same namespace.")]


class EnabledPeriod(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """When sleeping is allowed: from each time of the schedule, for the duration."""

    # The bounds are the API server's alone: it needs them to judge its rules' cost.
    schedule: Annotated[str, about("A cron expression of five fields.", maxLength=128)] = (
        "0 0 * * *"
    )
    duration: Annotated[str, about("How long each period lasts, such as 8h30m.", maxLength=32)] = (
        "24h"
    )
    timezone: Annotated[str, about("An IANA name such as Europe/Berlin.", maxLength=64)] = "UTC"


class Schedule(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """A window of local time that keeps the target awake or asleep, or lifts the other windows."""

    # The constraints are the API server's alone: one entry that cannot be read must not make the object unreadable.
    name: Annotated[
        str,
        about("A name, which messages use.", minLength=1, maxLength=63, pattern=f"^{DNS_LABEL}$"),
    ]
    keep: Annotated[
        str,
        about(
            "Awake: the target is awake. Asleep: triggers are ignored; traffic still wakes it, and"
            " it sleeps again a cooldown later. Free: lifts every Awake and Asleep window.",
            enum=["Awake", "Asleep", "Free"],
        ),
    ]
    during: Annotated[
        str,
        about(
            "A weekly window: days and times such as Mon-Fri 08:00-19:00, or a span such as"
            " Fri 21:00 - Mon 06:00. A window that passes midnight belongs to the day on which it starts.",
            maxLength=64,
        ),
    ] = ""
    dates: Annotated[
        str, about("Whole days instead, the last included: 2026-12-24/2027-01-01.", maxLength=21)
    ] = ""
    timezone: Annotated[str, about("An IANA name such as Europe/Berlin.", maxLength=64)] = "UTC"
    warm_by: Annotated[
        bool,
        about(
            "Wake the target early: by the p95 of its own cold starts, and by up to five more minutes"
            " to spread the starts; ten minutes at most."
        ),
    ] = False


class DependencyRef(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """Another ElastiService of the namespace that this one needs."""

    name: Annotated[
        str,
        about(
            "The name of the ElastiService.",
            minLength=1,
            maxLength=253,
            pattern=f"^{DNS_SUBDOMAIN}$",
        ),
    ]


class NamedMatch(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A header or query parameter that must have a value."""

    name: Annotated[str, Meta(min_length=1, max_length=256, description="The name to match.")]
    value: Annotated[
        str, Meta(max_length=4096, description="The value, or an expression that it must match.")
    ] = ""
    type: Annotated[Literal["Exact", "RegularExpression"], about("How the value is compared.")] = (
        "Exact"
    )


class PathMatch(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A path that must match; a prefix matches whole segments."""

    type: Annotated[
        Literal["Exact", "PathPrefix", "RegularExpression"], about("How the path is compared.")
    ] = "PathPrefix"
    value: Annotated[str, Meta(max_length=1024, description="The path, or an expression.")] = "/"


class LocalResponse(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """The response that the resolver sends itself."""

    status: Annotated[
        Literal[200, 204, 400, 401, 403, 404, 500, 502, 503, 504], about("The HTTP status.")
    ] = 200
    body: Annotated[str, about("The body, sent verbatim.")] = ""


Method = Literal["GET", "HEAD", "POST", "PUT", "DELETE", "CONNECT", "OPTIONS", "TRACE", "PATCH"]


class ProbeResponse(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """A request that the resolver answers while the target sleeps. All parts must match."""

    path: PathMatch = PathMatch()
    headers: Annotated[
        tuple[NamedMatch, ...], Meta(max_length=16, description="Headers that must match.")
    ] = ()
    query_params: Annotated[
        tuple[NamedMatch, ...], Meta(max_length=16, description="Query parameters that must match.")
    ] = ()
    method: Annotated[Method | None, about("The method. Default: any.")] = None
    response: LocalResponse = LocalResponse()


class PageConfigMap(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A page in a ConfigMap of the same namespace."""

    name: Annotated[
        ObjectName,
        about(
            "The ConfigMap's name. Any name other than elasti-page needs a Role that lets"
            " the resolver get it."
        ),
    ] = PAGE_CONFIG_MAP
    key: Annotated[
        str, Meta(min_length=1, max_length=253, description="The key that has the HTML.")
    ] = "index.html"

    def text_in(self, data: Mapping[str, str] | None) -> str:
        """Return the HTML in a ConfigMap's data. Raises ValueError with the remedy if it is unusable."""
        text = (data or {}).get(self.key, "")
        if not text.strip():
            raise ValueError(f"ConfigMap {self.name} has nothing under the key {self.key}")
        if (size := len(text.encode())) > MAX_PAGE_BYTES:
            raise ValueError(
                f"ConfigMap {self.name} has {size} bytes under {self.key}; write at most {MAX_PAGE_BYTES}"
            )
        return text


class PageTemplate(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """The source of your own HTML."""

    config_map: PageConfigMap = PageConfigMap()


class PageSpec(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """The page that a browser shows while the target wakes."""

    mode: Annotated[
        Literal["Off", "Auto"] | None,
        about(
            "Auto: a browser's top-level navigation gets the page; every other request is"
            " held. Default: the installation's setting, which is Off unless you change it."
        ),
    ] = None
    after: Annotated[
        str,
        Meta(
            max_length=16,
            pattern=r"^([0-9]+(ms|s|m))+\Z",
            extra_json_schema={"pattern": "^([0-9]+(ms|s|m))+$"},
            description="How long a navigation is held first, such as 3s. A faster wake-up shows no page.",
        ),
    ] = "3s"
    title: Annotated[
        str, Meta(max_length=100, description="The title. Default: the Service's name.")
    ] = ""
    status: Annotated[Literal[200, 202, 503], about("The page's HTTP status.")] = 503
    require_click: Annotated[
        bool, about("A navigation does not wake the target; the page has a button that does.")
    ] = False
    template: PageTemplate | None = None


class IgnorePreset(enum.StrEnum):
    """Programs whose requests do not wake a target, known by their User-Agent."""

    LOAD_BALANCERS = "LoadBalancers"
    PROBES = "Probes"
    UPTIME_MONITORS = "UptimeMonitors"
    LINK_PREVIEWS = "LinkPreviews"
    CRAWLERS = "Crawlers"
    SCRAPERS = "Scrapers"


class IgnoreRule(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """Requests of your own programs, and the response to them."""

    user_agents: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=256)], ...],
        Meta(
            min_length=1,
            max_length=16,
            description="Regular expressions (RE2); one of them is found in the User-Agent.",
        ),
    ]
    response: LocalResponse = LocalResponse()


class IgnoreSpec(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """Requests that the resolver answers without a wake-up while the target sleeps.

    A request with a cookie or an Authorization header always wakes, unless a load balancer sent it.
    """

    presets: Annotated[
        tuple[IgnorePreset, ...] | None,
        about(
            "Known programs. LoadBalancers, Probes and UptimeMonitors get 200; LinkPreviews,"
            " Crawlers and Scrapers get 503 with Retry-After. Default: the installation's setting, which is"
            " LoadBalancers and Probes unless you change it. Empty: every request wakes."
        ),
    ] = None
    rules: Annotated[
        tuple[IgnoreRule, ...], Meta(max_length=16, description="Your own programs.")
    ] = ()

    def extended_by(self, other: IgnoreSpec) -> IgnoreSpec:
        """Return another one, with these presets if it leaves them out."""
        return other if other.presets is not None else IgnoreSpec(self.presets, other.rules)


class WakeSpec(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """How connections are held while the target wakes."""

    timeout_seconds: Annotated[
        int, Meta(ge=1, le=86400, description="How long a connection may be held. After that: 504.")
    ] = 600
    max_held: Annotated[
        int,
        Meta(
            ge=1,
            le=1_000_000,
            description="How many connections a resolver replica may hold. Above that: 503.",
        ),
    ] = 10_000
    probe: Annotated[
        Literal["Auto", "Ready", "TCP", "Protocol"],
        about(
            "When a starting pod gets traffic. Auto: its own probes pass. Ready: it is Ready."
            " TCP: its port accepts. Protocol: PostgreSQL, MySQL or Redis reports that it serves."
        ),
    ] = "Auto"
    replicas: Annotated[
        Literal["Minimum", "Previous"],
        about(
            "Minimum: wake with spec.minTargetReplicas. Previous: with the replicas from before"
            " the sleep. A target with spec.autoscaler always wakes with the minimum."
        ),
    ] = "Minimum"
    page: PageSpec = PageSpec()
    ignore: IgnoreSpec = IgnoreSpec()
    tcp: Annotated[
        Literal["Connect", "FirstByte", "Protocol"],
        about(
            "When a connection that does not speak HTTP wakes the target. Connect: with its"
            " first byte, or after a second without one. FirstByte: with its first byte only. Protocol: with a"
            " well-formed first message of TLS, PostgreSQL or Redis; other bytes end the connection. A"
            " MySQL client waits for the server, so its port always behaves as Connect."
        ),
    ] = "Connect"


class DozeSpec(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """What the pods of a dozing target request."""

    cpu: Annotated[
        str,
        Meta(
            max_length=16,
            description="The CPU that each container requests while it dozes, at least 1m. A LimitRange's"
            " minimum is used if it is higher. Limits do not change.",
        ),
        validations(
            ("isQuantity(self)", "write CPU as a quantity, such as 1m"),
            (
                "!isQuantity(self) || quantity(self).compareTo(quantity('1m')) >= 0",
                "write at least 1m",
            ),
        ),
    ] = "1m"
    memory: Annotated[
        Literal["Keep", "Usage"],
        about(
            "Keep: memory requests stay. Usage: they shrink to what metrics-server says is in"
            " use, with a tenth on top."
        ),
    ] = "Keep"
    zero_after: Annotated[
        str,
        Meta(
            max_length=16,
            pattern=r"^([0-9]+(ms|s|m|h))+\Z",
            extra_json_schema={"pattern": "^([0-9]+(ms|s|m|h))+$"},
            description="With DozeThenZero: how long it dozes before it sleeps at zero, such as 24h.",
        ),
    ] = "24h"


class SleepSpec(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """How the target is put to sleep."""

    mode: Annotated[
        Literal["Zero", "Doze", "DozeThenZero"],
        about(
            "Zero: no pods. Doze: the pods stay and serve, and their CPU requests shrink until"
            " the target is used again. DozeThenZero: Doze first, Zero after doze.zeroAfter. Doze must be"
            " enabled in the installation."
        ),
    ] = "Zero"
    doze: DozeSpec = DozeSpec()
    drain: Annotated[
        Literal["None", "Selector"],
        about(
            "Selector: take pods out of the Service's rotation before they get SIGTERM, with a"
            " selector key that no pod has. None: Kubernetes does both at about the same time."
        ),
    ] = "None"


class HandoverSpec(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """How traffic moves between pods and resolver."""

    engage_settle: Annotated[
        int | str,
        about(
            "For how many seconds resolver and pods are both in rotation before the target sleeps, at most"
            f" {LONGEST_ENGAGE_SETTLE}. Auto: {CLOUD_ENGAGE_SETTLE:g} if a TargetGroupBinding or a network endpoint group"
            f" of GKE names the Service. Never shorter than the installation's, {ENGAGE_SETTLE:g} by default."
        ),
        validations(
            (
                f"type(self) == int ? self >= 1 && self <= {LONGEST_ENGAGE_SETTLE} : self == 'Auto'",
                ENGAGE_SETTLE_REMEDY,
            )
        ),
    ] = "Auto"


class ElastiServiceSpec(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """The desired behavior."""

    scale_target_ref: ScaleTargetRef
    service: Annotated[ServiceName, about("The Service whose traffic wakes the target.")]
    min_target_replicas: Annotated[
        int, Meta(ge=1, le=2_147_483_647, description="How many replicas a wake-up asks for.")
    ] = 1
    cooldown_period: Annotated[
        int,
        Meta(
            ge=0,
            le=604_800,
            description="Seconds without use before the target sleeps. 0 means 900.",
        ),
    ] = COOLDOWN
    given_triggers: Annotated[
        tuple[ScaleTrigger, ...] | None,
        about(
            "How use is measured. The target sleeps when all triggers are quiet and one of them"
            " is a Signal; any Signal wakes it. Left out at creation: the installation's default. Empty:"
            " it never sleeps by itself."
        ),
    ] = msgspec.field(name="triggers", default=None)
    autoscaler: AutoscalerSpec | None = None
    enabled_period: EnabledPeriod | None = None
    schedules: Annotated[
        tuple[Schedule, ...],
        about(
            "Windows that keep the target awake or asleep. Free comes before Awake, Awake before Asleep.",
            maxItems=32,
        ),
    ] = ()
    depends_on: Annotated[
        tuple[DependencyRef, ...],
        about(
            "ElastiServices that must serve before this one starts. A wake-up wakes all of them, and waits"
            " for them for 30 s at most. They do not sleep while this one is awake.",
            maxItems=MAX_DEPENDENCIES,
        ),
    ] = ()
    targets: Annotated[
        tuple[ScaleTargetRef, ...],
        about(
            "Workloads without a Service, such as workers: they are scaled to zero after this target"
            " and restored to their previous replicas after it wakes.",
            maxItems=MAX_WORKERS,
        ),
    ] = ()
    probe_response: Annotated[
        tuple[ProbeResponse, ...],
        Meta(max_length=32, description="Requests that the resolver answers without a wake-up."),
    ] = ()
    wake: WakeSpec = WakeSpec()
    sleep: SleepSpec = SleepSpec()
    handover: HandoverSpec = HandoverSpec()
    deletion_policy: Annotated[
        Literal["ScaleUp", "Leave"],
        about(
            "When this object is deleted: wake the target first, or leave its replicas unchanged."
        ),
    ] = "ScaleUp"
    suspend: Annotated[
        bool,
        about(
            "Wake the target once, take the resolver out of its traffic, and leave both alone"
            " until this is false."
        ),
    ] = False
    policy: Annotated[
        Literal["Enforce", "Observe"],
        about(
            "Enforce: the target sleeps and wakes. Observe: make the same decisions, record them"
            " in status.observed, change nothing else. Observe needs suspend: true, so that a version without"
            " this field leaves the target alone."
        ),
    ] = "Enforce"

    @property
    def observes(self) -> bool:
        """Whether everything is decided and nothing is done."""
        return self.policy == "Observe"

    @property
    def suspended(self) -> bool:
        """Whether the target is left alone, and nothing is decided about it."""
        return self.suspend and not self.observes

    @property
    def triggers(self) -> tuple[ScaleTrigger, ...]:
        """The triggers in the spec; empty if they are left out."""
        return self.given_triggers or ()

    @property
    def cooldown(self) -> float:
        """The cooldown in seconds; zero means the default, as in KubeElasti."""
        return float(self.cooldown_period or COOLDOWN)

    @property
    def look_seconds(self) -> float:
        """For how many seconds the resolver looks for arrivals before a sleep; 0: as it always does."""
        longest = max((trigger.look_seconds for trigger in self.triggers), default=0.0)
        return min(longest, self.cooldown)


class StatusCondition(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """A Kubernetes condition."""

    type: Annotated[NonEmpty, about("The condition's type.")]
    status: Annotated[Literal["True", "False", "Unknown"], about("True, False or Unknown.")]
    reason: Annotated[NonEmpty, about("The reason, in one word.")]
    message: Annotated[str, about("The reason as a sentence, with a remedy.")] = ""
    last_transition_time: Annotated[str, about("When the status last changed.")] = ""
    observed_generation: Annotated[int, about("The generation that this was computed from.")] = 0


class ResolverPort(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """The resolver's port for one port of the Service."""

    port: Annotated[int, Meta(ge=1, le=65535, description="The Service's port.")]
    resolver_port: Annotated[
        int, Meta(ge=1, le=65535, description="The port on which resolvers listen for it.")
    ]
    name: Annotated[str, about("The name of the Service's port.")] = ""


class TriggerStatus(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """A trigger's last evidence, in the order of spec.triggers; written when it changes.

    The live value is in `elasti describe`.
    """

    type: Annotated[str, about("The trigger's type.")]
    threshold: Annotated[str, about("The trigger is quiet below this value.")] = ""
    quiet_since: Annotated[
        str | None, about("When it became quiet; set after a minute of quiet, otherwise empty.")
    ] = None
    last_error: Annotated[str, about("Why the last reading failed; empty if it succeeded.")] = ""
    role: Annotated[str, about("Signal or Veto.")] = ""


_TOOK = "How long the first client waited, in seconds; without a client, until traffic went to the pods."


class LastWake(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """The last wake-up: when, why, for which client, and how long it took."""

    time: Annotated[str, about("When it began.")]
    # Not the enum: programs of different versions read it.
    cause: Annotated[str, about(f"The cause: {', '.join(WakeCause)}.")]
    client: Annotated[
        str, about("The client of the request, or the field manager that scaled it up.")
    ] = ""
    seconds: Annotated[float | None, about(_TOOK)] = None
    wake_id: Annotated[
        str, about("The request's wake_id in the logs of resolver and operator.")
    ] = ""


class SleepRequestStatus(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """The outcome of the last request to sleep."""

    request: Annotated[str, about("The value of the annotation sleep-requested-at.")]
    outcome: Annotated[SleepOutcome, about("Whether the target fell asleep.")]
    reason: Annotated[str, about("Why it was refused, in one word.")] = ""
    message: Annotated[str, about("Why it was refused, in a sentence.")] = ""


class UsageStatus(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """How long the target has slept, and how often it was woken, since counting began."""

    since: Annotated[str, about("When counting began.")]
    asleep_seconds: Annotated[
        int, about("Seconds asleep, without the current sleep (asleepSince).")
    ] = 0
    wakes: Annotated[int, about("How often it was woken.")] = 0
    cpu_millicore_seconds: Annotated[
        int, about("CPU released, without the current sleep (releasedSince).")
    ] = 0
    memory_byte_seconds: Annotated[
        int, about("Memory released, without the current sleep (releasedSince).")
    ] = 0
    dozing_seconds: Annotated[
        int, about("Seconds in which it dozed, without the current doze (doze.since).")
    ] = 0


class CapacityStatus(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """Requests of the target's minimum replicas, or while it dozes what its pods gave back.

    Absent if its pods have no requests.
    """

    cpu_millicores: Annotated[int, about("CPU, in thousandths of a core.")] = 0
    memory_bytes: Annotated[int, about("Memory, in bytes.")] = 0


class SleepRecord(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """One past sleep, or doze."""

    since: Annotated[str, about("When it began.")]
    until: Annotated[str, about("When it ended.")]
    cause: Annotated[str, about("The cause of the wake-up; empty if unknown.")] = ""
    seconds: Annotated[float | None, about(_TOOK)] = None
    mode: Annotated[str, about("Doze, if it dozed; empty if it slept at zero.")] = ""


class DozedContainer(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """What a container of a template requested before the doze, and what it requests during the doze."""

    template: Annotated[str, about("The template's hash, from the pods' labels.")]
    name: Annotated[str, about("The container's name.")]
    cpu: Annotated[str, about("Its CPU request; empty: not changed.")] = ""
    dozed_cpu: Annotated[str, about("Its CPU request during the doze.")] = ""
    memory: Annotated[str, about("Its memory request; empty: not changed.")] = ""
    dozed_memory: Annotated[str, about("Its memory request during the doze.")] = ""


class DozeStatus(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """The present doze; absent when every request is the original one.

    Written before the first request changes, so that the originals are never on the pods alone.
    """

    # Not the enum: programs of different versions read it.
    state: Annotated[str, about("Shrinking, Dozing, Growing or Stuck.")]
    since: Annotated[str, about("When the doze began.")]
    selector: Annotated[str, about("Selects the pods.")] = ""
    containers: Annotated[
        tuple[DozedContainer, ...], about("The originals, by template and container.")
    ] = ()
    pods: Annotated[int, about("Pods whose requests match the current state.")] = 0
    pending: Annotated[int, about("Pods whose requests do not match it yet.")] = 0
    replicas: Annotated[
        int, about("Replicas before a spare pod was requested for a stuck one; otherwise 0.")
    ] = 0


class TargetStatus(msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False):
    """A workload of spec.targets that sleeps, or is about to; it is listed until it was woken."""

    api_version: Annotated[str, about("Such as apps/v1.")]
    kind: Annotated[str, about("Such as Deployment.")]
    name: Annotated[str, about("The workload's name.")]
    replicas: Annotated[int, about("The replicas that it gets back.")] = 1
    asleep: Annotated[
        bool, about("Elasti scaled it to zero; any later replica count was set by another writer.")
    ] = False


class ColdStartStatus(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """How long the target's pods take to be ready."""

    p50: Annotated[float, about("Median start-up time, in seconds.")]
    p95: Annotated[float, about("95th percentile of the start-up time, in seconds.")]
    basis: Annotated[
        str,
        about(
            "Measured: its own last wake-ups. Rollouts: from creation to Ready of the present pods."
        ),
    ] = "Rollouts"


class ObservedStatus(msgspec.Struct, rename="camel", frozen=True, gc=False):
    """What sleep would have saved and cost, with spec.policy: Observe; written for each new spec, then hourly at most."""

    since: Annotated[str, about("When observing began.")]
    observed_seconds: Annotated[
        int, about("Seconds for which triggers were read; other time does not count.")
    ] = 0
    asleep_seconds: Annotated[int, about("Seconds for which it would have been asleep.")] = 0
    wakes: Annotated[int, about("How often use would have woken it, as triggers saw it.")] = 0
    cpu_millicore_seconds: Annotated[int, about("CPU that would be released.")] = 0
    memory_byte_seconds: Annotated[int, about("Memory that would be released.")] = 0
    cold_start_seconds: ColdStartStatus | None = None
    verdict: Annotated[str, about("Recommended, TooBusy, TooSlow, NotEnoughData or Unsafe.")] = (
        "NotEnoughData"
    )
    reasons: Annotated[tuple[str, ...], about("Why it has this verdict, in one word each.")] = ()


class ElastiServiceStatus(
    msgspec.Struct, rename="camel", frozen=True, omit_defaults=True, gc=False
):
    """The state that the operator reports."""

    mode: Annotated[
        Literal["", "proxy", "serve"],
        about("proxy: the resolver takes the traffic; serve: the pods do."),
    ] = ""
    last_reconciled_time: Annotated[str | None, about("When status was last written.")] = None
    last_scaled_up_time: Annotated[str | None, about("When the target was last asked to wake.")] = (
        None
    )
    observed_generation: Annotated[int, about("The generation that status was computed from.")] = 0
    phase: Annotated[str, about("Awake, FallingAsleep, Asleep, Dozing, Waking or NotReady.")] = ""
    since: Annotated[str | None, about("When it entered that phase.")] = None
    state: Annotated[str, about("The state of the hand-over behind the phase.")] = ""
    replicas: Annotated[int, about("The replicas in the target's spec.")] = 0
    held: Annotated[
        int, about("Connections held by resolvers, read every few seconds of a wake-up.")
    ] = 0
    previous_replicas: Annotated[
        int, about("The replicas from before the sleep, if spec.wake.replicas is Previous.")
    ] = 0
    resolver_ports: Annotated[
        tuple[ResolverPort, ...], about("The resolver's ports for the Service.")
    ] = ()
    conditions: Annotated[
        tuple[StatusCondition, ...], about("The conditions; MaySleep says why the target is awake.")
    ] = ()
    quiet_since: Annotated[
        str | None, about("When the last trigger became quiet; set after a minute of quiet.")
    ] = None
    sleeps_at: Annotated[
        str | None, about("When it will sleep if it stays unused; empty if unknown.")
    ] = None
    awake_until: Annotated[
        str | None, about("When the reason of MaySleep ends; empty if unknown.")
    ] = None
    warnings: Annotated[
        tuple[str, ...], about("Reasons of all problems and warnings; Ready has their messages.")
    ] = ()
    asleep_since: Annotated[
        str | None, about("When the target reached zero; empty while awake.")
    ] = None
    triggers: Annotated[tuple[TriggerStatus, ...], about("The triggers' last evidence.")] = ()
    last_wake: LastWake | None = None
    sleep_request: SleepRequestStatus | None = None
    usage: UsageStatus | None = None
    capacity: CapacityStatus | None = None
    released_since: Annotated[
        str | None,
        about(
            "When its capacity was released: with the last pod gone, or as a doze began; otherwise"
            " empty."
        ),
    ] = None
    doze: DozeStatus | None = None
    recent: Annotated[tuple[SleepRecord, ...], about("The last 20 past sleeps.")] = ()
    targets: Annotated[
        tuple[TargetStatus, ...],
        about("The workloads of spec.targets that sleep, and what each gets back."),
    ] = ()
    observed: ObservedStatus | None = None


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
        """Return the object with the installation's triggers, by type, if it leaves out its own.

        An object that left them out before the installation had a default keeps none: it must not start to
        sleep. Its condition says so; KubeElasti's objects have no conditions. The `vetoes` that a trigger asks
        for are added.
        """
        status = self.status
        seen = status.observed_generation or status.mode or status.phase
        found = (item.reason for item in status.conditions if item.type == TRIGGERS_HEALTHY)
        undefaulted = next(found, "") in ("", Reason.NO_DEFAULT_TRIGGERS)
        known_without = self.unreadable or (seen and undefaulted and not status.triggers)
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
        """Return the readable parts of an object that an older or newer definition let pass.

        These are its Service, its target and its status; nothing else is trusted, and `unreadable` has
        the error.
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
