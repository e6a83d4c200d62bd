"""The conditions of an ElastiService with every reason one may have, and why it changes state. Pure."""

from __future__ import annotations

import dataclasses
import enum
from typing import Self

READY = "Ready"
TARGET_FOUND = "TargetFound"
SERVICE_FOUND = "ServiceFound"
RESOLVER_AVAILABLE = "ResolverAvailable"
TRIGGERS_HEALTHY = "TriggersHealthy"
SCALE_CONTESTED = "ScaleContested"
MAY_SLEEP = "MaySleep"
TRAFFIC_PATH = "TrafficPath"
DOZE_STUCK = "DozeStuck"
TROUBLES = (
    (READY, "False"),
    (RESOLVER_AVAILABLE, "False"),
    (SCALE_CONTESTED, "True"),
    (DOZE_STUCK, "True"),
)
"""Problems that do not pass by themselves: a condition and its bad status."""


class Reason(enum.StrEnum):
    """Reasons, by the condition that has them. From 1.0 on none is renamed: scripts know them."""

    # Ready
    VALID = "Valid"
    INVALID_SPEC = "InvalidSpec"
    TARGET_MISSING = "TargetMissing"
    SERVICE_MISSING = "ServiceMissing"
    SERVICE_OWNED_BY_ANOTHER = "ServiceOwnedByAnother"
    EXTERNAL_NAME_SERVICE = "ExternalNameService"
    HEADLESS_SERVICE = "HeadlessService"
    INTERNAL_TRAFFIC_POLICY_LOCAL = "InternalTrafficPolicyLocal"
    EXTERNAL_TRAFFIC_POLICY_LOCAL = "ExternalTrafficPolicyLocal"
    PUBLISH_NOT_READY_ADDRESSES = "PublishNotReadyAddresses"
    NO_SELECTOR = "NoSelector"
    NO_TCP_PORT = "NoTCPPort"
    SELECTS_OTHER_PODS = "SelectsOtherPods"
    NO_SUCH_PORT = "NoSuchPort"
    PORTS_EXHAUSTED = "PortsExhausted"
    DOZE_NOT_ENABLED = "DozeNotEnabled"
    DOZE_UNSUPPORTED = "DozeUnsupported"
    DOZE_BEST_EFFORT = "DozeBestEffort"
    DOZE_GUARANTEED = "DozeGuaranteed"
    DOZE_RESTARTS_CONTAINER = "DozeRestartsContainer"
    DOZE_POD_LEVEL_REQUESTS = "DozePodLevelRequests"
    DOZE_UNEVEN_REQUESTS = "DozeUnevenRequests"
    DOZE_HPA = "DozeHPA"
    DOZE_VPA = "DozeVPA"
    DOZE_SHARED_TARGET = "DozeSharedTarget"
    DOZE_UNSEEN_USE = "DozeUnseenUse"
    # Ready, as warnings
    PORTS_IGNORED = "PortsIgnored"
    SESSION_AFFINITY = "SessionAffinity"
    SHARED_PODS = "SharedPods"
    NO_READINESS_PROBE = "NoReadinessProbe"
    HPA_SCALES_TO_ZERO = "HPAScalesToZero"
    KEDA_SCALES_TO_ZERO = "KEDAScalesToZero"
    THRESHOLD_ZERO = "ThresholdZero"
    DEFINITION_OUTDATED = "DefinitionOutdated"
    KEEP_AWAKE_IGNORED = "KeepAwakeIgnored"
    PAGE_INVALID = "PageInvalid"
    FLAPPING = "Flapping"
    DEPENDENCY_IGNORED = "DependencyIgnored"
    DRAIN_IGNORED = "DrainIgnored"
    TARGET_IGNORED = "TargetIgnored"
    SCHEDULE_INVALID = "ScheduleInvalid"
    SCHEDULE_OVERLAP = "ScheduleOverlap"
    NOT_SUSPENDED = "NotSuspended"
    # TargetFound, ServiceFound
    FOUND = "Found"
    NOT_FOUND = "NotFound"
    # ResolverAvailable
    AVAILABLE = "Available"
    NONE_READY = "NoneReady"
    # TriggersHealthy
    HEALTHY = "Healthy"
    FAILING = "Failing"
    NOT_READ_YET = "NotReadYet"
    NO_DEFAULT_TRIGGERS = "NoDefaultTriggers"
    # ScaleContested
    UNDONE_REPEATEDLY = "UndoneRepeatedly"
    NOT_CONTESTED = "NotContested"
    # TrafficPath
    CLEAR = "Clear"
    CLOUD_FIREWALL = "CloudFirewall"
    MESH_PORT = "MeshPort"
    NO_TARGET_REF = "NoTargetRef"
    UNREADABLE = "Unreadable"
    # DozeStuck
    NOT_STUCK = "NotStuck"
    DEFERRED = "Deferred"
    INFEASIBLE = "Infeasible"
    QUOTA_EXCEEDED = "QuotaExceeded"
    RESIZE_REFUSED = "ResizeRefused"
    # MaySleep
    DOZING = "Dozing"
    DOZE_REFUSED = "DozeRefused"
    ASLEEP = "Asleep"
    FALLING_ASLEEP = "FallingAsleep"
    IDLE = "Idle"
    WAKING = "Waking"
    INVALID = "Invalid"
    CONTESTED = "Contested"
    SUSPENDED = "Suspended"
    OBSERVED = "Observed"
    KEPT_AWAKE = "KeptAwake"
    OUTSIDE_PERIOD = "OutsidePeriod"
    SCHEDULED_AWAKE = "ScheduledAwake"
    NEEDED_BY = "NeededBy"
    # MaySleep, TriggersHealthy
    NO_TRIGGERS = "NoTriggers"
    # MaySleep
    NO_SIGNAL = "NoSignal"
    TRIGGERS_UNREAD = "TriggersUnread"
    TRIGGERS_FAILING = "TriggersFailing"
    ATTEMPT_ENDED = "AttemptEnded"
    COOLDOWN = "Cooldown"
    IN_USE = "InUse"
    SHARED_TARGET = "SharedTarget"
    NO_RESOLVER = "NoResolver"
    # Not of a condition: why a request to sleep was refused, beside the reasons above and transitions
    SUPERSEDED = "Superseded"
    EXPIRED = "Expired"
    # Not of a condition: what a view shows if the operator has reported nothing
    DELETING = "Deleting"
    DELETED = "Deleted"
    NOT_SEEN = "NotSeen"
    NOT_REPORTED = "NotReported"


class WakeCause(enum.StrEnum):
    """Why a target was woken. The last three are not requests: an external scale-up, or a safety wake-up."""

    REQUEST = "Request"
    TRIGGER = "Trigger"
    SCHEDULE = "Schedule"
    DEPENDENCY = "Dependency"
    MANUAL = "Manual"
    SCALED = "Scaled"
    NO_RESOLVER = "NoResolver"
    INVALID = "Invalid"


class TransitionReason(enum.StrEnum):
    """Why the hand-over went from one state to the next; `text` says it in words.

    The name is the label of metrics and the reason in logs and status; the text may be reworded.
    """

    text: str

    def __new__(cls, name: str, text: str) -> Self:
        member = str.__new__(cls, name)
        member._value_ = name
        member.text = text
        return member

    IDLE = "Idle", "idle for the cooldown"
    UNUSED = "Unused", "nothing arrived while the resolver was in rotation"
    PARKED = "Parked", "parked"
    SCALED_TO_ZERO = "ScaledToZero", "scaled to zero"
    BACK_AT_ZERO = "BackAtZero", "back at zero"
    STUCK = "Stuck", "not ready for a cooldown, and no connection is held"
    # An attempt to sleep ends
    NO_RESOLVER = "NoResolver", "no resolver is ready"
    IN_USE = "InUse", "in use again"
    TRAFFIC_ARRIVED = "TrafficArrived", "traffic arrived"
    RESOLVER_SILENT = "ResolverSilent", "a resolver did not answer"
    NO_ENDPOINT = "NoEndpoint", "no endpoint is ready; elasti describe shows its pods"
    NOT_DRAINED = "NotDrained", "the pods could not be taken out of rotation"
    NOT_PARKED = "Refused", "the target could not be parked"
    # A target wakes
    SCALED_UP = "ScaledUp", "scaled up"
    WANTED = "Wanted", "pods are wanted"
    ENDPOINT_READY = "EndpointReady", "an endpoint is ready"
    RELEASED = "Released", "traffic goes to the pods"


@dataclasses.dataclass(frozen=True, slots=True)
class Obstacle:
    """The obstacle that keeps a target awake: a reason and a message; empty without an obstacle."""

    reason: str = ""
    message: str = ""
    until: float | None = None
    """When it ends, in seconds since 1970; None if that is not known."""

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else self.reason


NO_OBSTACLE = Obstacle()
