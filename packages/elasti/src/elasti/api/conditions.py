"""What conditions of an ElastiService are called, and every reason that one may have. Pure."""

from __future__ import annotations

import dataclasses
import enum

READY = "Ready"
TARGET_FOUND = "TargetFound"
SERVICE_FOUND = "ServiceFound"
RESOLVER_AVAILABLE = "ResolverAvailable"
TRIGGERS_HEALTHY = "TriggersHealthy"
SCALE_CONTESTED = "ScaleContested"
MAY_SLEEP = "MaySleep"


class Reason(enum.StrEnum):
    """Reasons, by the condition that has them. Scripts know them: none is ever renamed."""

    # Ready
    IN_ORDER = "InOrder"
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
    PORTS_EXHAUSTED = "PortsExhausted"
    # Ready, as warnings
    PORTS_IGNORED = "PortsIgnored"
    SESSION_AFFINITY = "SessionAffinity"
    SHARED_PODS = "SharedPods"
    NO_READINESS_PROBE = "NoReadinessProbe"
    HPA_SCALES_TO_ZERO = "HPAScalesToZero"
    THRESHOLD_ZERO = "ThresholdZero"
    DEFINITION_OUTDATED = "DefinitionOutdated"
    KEEP_AWAKE_IGNORED = "KeepAwakeIgnored"
    PAGE_INVALID = "PageInvalid"
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
    # ScaleContested
    UNDONE_REPEATEDLY = "UndoneRepeatedly"
    NOT_CONTESTED = "NotContested"
    # MaySleep
    ASLEEP = "Asleep"
    FALLING_ASLEEP = "FallingAsleep"
    IDLE = "Idle"
    WAKING = "Waking"
    NOT_IN_ORDER = "NotInOrder"
    CONTESTED = "Contested"
    SUSPENDED = "Suspended"
    KEPT_AWAKE = "KeptAwake"
    OUTSIDE_PERIOD = "OutsidePeriod"
    NO_TRIGGERS = "NoTriggers"
    NO_SIGNAL = "NoSignal"
    TRIGGERS_UNREAD = "TriggersUnread"
    TRIGGERS_FAILING = "TriggersFailing"
    ATTEMPT_ENDED = "AttemptEnded"
    COOLDOWN = "Cooldown"
    IN_USE = "InUse"
    SHARED_TARGET = "SharedTarget"
    NO_RESOLVER = "NoResolver"
    # Of no condition: what a view says where the operator has reported nothing
    DELETING = "Deleting"
    DELETED = "Deleted"
    NOT_SEEN = "NotSeen"
    NOT_REPORTED = "NotReported"


class WakeCause(enum.StrEnum):
    """Why a target was woken. The last three are no wishes: another writer, and two ways out of trouble."""

    REQUEST = "Request"
    TRIGGER = "Trigger"
    SCHEDULE = "Schedule"
    MANUAL = "Manual"
    SCALED = "Scaled"
    NO_RESOLVER = "NoResolver"
    NOT_IN_ORDER = "NotInOrder"


@dataclasses.dataclass(frozen=True, slots=True)
class Obstacle:
    """What keeps a target awake: a reason for machines, a message for people; empty for nothing."""

    reason: str = ""
    message: str = ""

    def __str__(self) -> str:
        return f"{self.reason}: {self.message}" if self.message else self.reason
