"""The audit trail: who woke, put to sleep, suspended or contested what, one line of the log each.

Every line has the message `audit`, and an Event about the ElastiService is beside it. `actor` is the client's address, or
the field manager that wrote the replicas, if it is known; people who ask by annotations and `spec.suspend` are in the
API server's own audit log. `wake_id` is there if a request started the wake-up, of this target or of one that depends on
it; the resolver's lines about that request have the same.
"""

from __future__ import annotations

import enum
from typing import Any

from elasti.api.types import ElastiService
from elasti.logger import get_logger

_log = get_logger(__name__)


class AuditAction(enum.StrEnum):
    """What was done."""

    WAKE = "wake"
    SLEEP = "sleep"
    SUSPEND = "suspend"
    RESUME = "resume"
    CONTEST = "contest"


def audit(
    action: AuditAction, es: ElastiService, *, cause: str, actor: str = "", wake_id: str = ""
) -> None:
    """Write a line of the trail; the caller records the Event."""
    meta = es.metadata
    known: dict[str, Any] = {"wake_id": wake_id} if wake_id else {}
    _log.info(
        "audit",
        action=action.value,
        namespace=meta.namespace,
        name=meta.name,
        cause=cause,
        actor=actor,
        **known,
    )
