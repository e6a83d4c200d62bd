"""The table of scenarios: what plays where, under which installation, with which expectation."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable

from tests.e2e.bundle import Installation
from tests.e2e.scenarios import control, crowds, cycles, fleet, hands, outages, parts, programs
from tests.e2e.trial import Trial

USUAL = Installation()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One row. `loses`: the control run, whose point is to lose."""

    name: str
    trial: Callable[[Trial], Awaitable[None]]
    installation: Installation = USUAL
    loses: bool = False
    picture: bool = False
    """Whether the report's timeline is of this one."""

    @property
    def title(self) -> str:
        """What happens, in a sentence."""
        return (self.trial.__doc__ or self.name).strip().partition("\n")[0].rstrip(".")


# KubeElasti's slices lead to the shared port, so `elasti install` opens it where KubeElasti is.
_AFTER_KUBEELASTI = Installation(shared_port=True)
_ENROLLING = Installation(enrolment=True)
# What a settle is for is that nodes hear late; so it is longer than they are late.
_PATIENT = Installation(engage_settle=outages.LATE + 2)

SCENARIOS = (
    Scenario(name="wake", trial=cycles.wake),
    Scenario(name="cycle", trial=cycles.cycle, picture=True),
    Scenario(name="last-moment", trial=cycles.sleep_at_the_last_moment),
    Scenario(name="last-moment-exiting", trial=cycles.sleep_at_the_last_moment_and_exit_at_once),
    Scenario(
        name="last-moment-drained",
        trial=cycles.new_connections_at_the_last_moment_of_drained_pods,
    ),
    Scenario(name="idle-metric", trial=cycles.idle_by_its_metric),
    Scenario(name="cycles", trial=cycles.cycles),
    Scenario(name="cycles-exiting", trial=cycles.cycles_of_an_app_that_exits_at_once),
    Scenario(name="rollout", trial=programs.resolver_rollout),
    Scenario(name="leader-engaging", trial=programs.leader_killed_while_engaging),
    Scenario(name="leader-parking", trial=programs.leader_killed_while_parking),
    Scenario(name="leader-waking", trial=programs.leader_killed_while_waking),
    Scenario(name="api-away", trial=outages.api_away),
    Scenario(name="etcd", trial=outages.etcd_restarted),
    Scenario(name="watches", trial=outages.watches_dropped),
    Scenario(name="pod-leaves", trial=hands.pod_leaves_and_comes_back),
    Scenario(name="pod-dies", trial=hands.pod_dies_and_comes_back),
    Scenario(name="by-hand", trial=hands.scaled_to_zero_by_hand),
    Scenario(name="by-hand-exiting", trial=hands.scaled_to_zero_by_hand_and_exits_at_once),
    Scenario(name="deleted", trial=hands.deleted_at_zero),
    Scenario(name="parts", trial=parts.one_app),
    Scenario(name="shared-database", trial=parts.ten_of_forty_apps),
    # Before the hundred, each of which keeps a share of the resolvers' descriptors while it is there.
    Scenario(name="held", trial=crowds.thousands_held),
    Scenario(name="hundred", trial=crowds.hundred_services),
    Scenario(name="fleet", trial=fleet.enrolled, installation=_ENROLLING),
    Scenario(name="upgrade", trial=programs.upgrade),
    Scenario(
        name="takeover", trial=hands.taken_over_from_kubeelasti, installation=_AFTER_KUBEELASTI
    ),
    Scenario(name="late-endpoints", trial=outages.late_endpoints, installation=_PATIENT),
    Scenario(
        name="control",
        trial=control.slice_removed_at_zero,
        installation=_PATIENT,
        loses=True,
    ),
)


def by_name(*names: str) -> tuple[Scenario, ...]:
    """Return some of the scenarios, in the table's order. Raises ValueError for an unknown one."""
    known = {scenario.name: scenario for scenario in SCENARIOS}
    if unknown := set(names) - known.keys():
        raise ValueError(f"no scenario {unknown.pop()!r}; there are: {', '.join(known)}")
    return tuple(scenario for scenario in SCENARIOS if scenario.name in names)


def all_but(*names: str) -> tuple[Scenario, ...]:
    """Return the others."""
    without = by_name(*names)
    return tuple(scenario for scenario in SCENARIOS if scenario not in without)
