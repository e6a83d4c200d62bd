"""When a pod may be given traffic, as a decision about facts. Pure and total.

    Ready           Kubernetes' word, always enough.
    Auto            the port accepts, then the pod's own probes pass; or Kubernetes' word where they
                    cannot be asked.
    TCP             the port accepts.

A pod that refused a connection must accept one again before anything else counts, Ready included: the
word of Kubernetes is older than the refusal.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Literal, TypeAlias

if TYPE_CHECKING:
    from elasti.resolver.probes import PodPlan

Policy: TypeAlias = Literal["Auto", "Ready", "TCP"]


class Step(enum.Enum):
    """What to do next about a pod that somebody waits for."""

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
class Facts:
    """What is known of a pod. `plan` is None before it was read; `passed`: all probes did."""

    policy: Policy
    ready: bool
    has_refused: bool = False
    accepts: bool = False
    plan: PodPlan | None = None
    passed: bool = False


def next_step(facts: Facts) -> Step:
    """Decide."""
    if facts.has_refused and not facts.accepts:
        return Step.CONNECT
    if facts.ready:
        return Step.RELEASE
    if facts.policy == "Ready":
        return Step.AWAIT_READY
    if not facts.accepts:
        return Step.CONNECT
    if facts.policy == "TCP" or facts.passed:
        return Step.RELEASE
    return _by_plan(facts.plan)


def _by_plan(plan: PodPlan | None) -> Step:
    if plan is None:
        return Step.LEARN
    if plan.only_ready:
        return Step.AWAIT_READY
    return Step.PROBE if plan.questions else Step.RELEASE
