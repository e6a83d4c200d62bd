"""The readiness policy: when a pod may receive traffic, decided from facts. Pure and total.

    Ready           the pod's Ready condition, always enough.
    Auto            the port accepts, then the pod's own probes pass; or the Ready condition where they
                    cannot be asked, or only ask for a connection while the client does not speak HTTP:
                    databases accept connections before they serve.
    Protocol        the port accepts, then the database says that it serves; else as Auto.
    TCP             the port accepts.

A pod that refused a connection must accept one again before anything else counts, Ready included: the
condition is older than the refusal.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from elasti.resolver.readiness.plan import ProbePlan


ReadinessPolicy: TypeAlias = Literal["Auto", "Ready", "TCP", "Protocol"]


class ReadinessStep(enum.Enum):
    """What to do next about a pod that connections wait for."""

    # It serves: give it traffic.
    RELEASE = "release"
    # See whether its port accepts.
    CONNECT = "connect"
    # Find out which probes it has.
    LEARN = "learn"
    # Ask its probes.
    PROBE = "probe"
    # Nothing to do but wait for Kubernetes.
    AWAIT_READY = "await-ready"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ReadinessFacts:
    """What is known of a pod. `plan` is None before it was read; `passed`: all probes did.

    `is_http`: the client that waits speaks HTTP or gRPC.
    """

    policy: ReadinessPolicy
    ready: bool
    has_refused: bool = False
    accepts: bool = False
    plan: ProbePlan | None = None
    passed: bool = False
    is_http: bool = True


def next_step(facts: ReadinessFacts) -> ReadinessStep:
    """Decide."""
    if facts.has_refused and not facts.accepts:
        return ReadinessStep.CONNECT
    if facts.ready:
        return ReadinessStep.RELEASE
    if facts.policy == "Ready":
        return ReadinessStep.AWAIT_READY
    if not facts.accepts:
        return ReadinessStep.CONNECT
    if facts.policy == "TCP" or facts.passed:
        return ReadinessStep.RELEASE
    return _by_plan(facts.plan, is_http=facts.is_http)


def _by_plan(plan: ProbePlan | None, *, is_http: bool) -> ReadinessStep:
    if plan is None:
        return ReadinessStep.LEARN
    if plan.only_ready or (plan.only_connects and not is_http):
        return ReadinessStep.AWAIT_READY
    # Without a probe a pod is Ready as soon as it runs, which says less than a connection.
    return ReadinessStep.PROBE if plan.questions else ReadinessStep.RELEASE
