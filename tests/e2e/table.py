"""The table of scenarios: what plays where, under which installation, with which expectation."""

from __future__ import annotations

import dataclasses
from collections.abc import Awaitable, Callable

from tests.e2e.bundle import Installation
from tests.e2e.play import Play
from tests.e2e.scenarios import control, crowds, cycles, hands, outages, programs

USUAL = Installation()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One row. `loses`: the control run, whose point is to lose."""

    name: str
    play: Callable[[Play], Awaitable[None]]
    installation: Installation = USUAL
    loses: bool = False
    picture: bool = False
    """Whether the report's timeline is of this one."""

    @property
    def title(self) -> str:
        """What happens, in a sentence."""
        return (self.play.__doc__ or self.name).strip().partition("\n")[0].rstrip(".")


# What a settle is for is that nodes hear late; so it is longer than they are late.
_PATIENT = Installation(engage_settle=outages.LATE + 2)

SCENARIOS = (
    Scenario(name="wake", play=cycles.wake),
    Scenario(name="cycle", play=cycles.cycle, picture=True),
    Scenario(name="last-moment", play=cycles.sleep_at_the_last_moment),
    Scenario(name="last-moment-exiting", play=cycles.sleep_at_the_last_moment_and_exit_at_once),
    Scenario(name="idle-metric", play=cycles.idle_by_its_metric),
    Scenario(name="cycles", play=cycles.cycles),
    Scenario(name="cycles-exiting", play=cycles.cycles_of_an_app_that_exits_at_once),
    Scenario(name="rollout", play=programs.resolver_rollout),
    Scenario(name="leader-engaging", play=programs.leader_killed_while_engaging),
    Scenario(name="leader-parking", play=programs.leader_killed_while_parking),
    Scenario(name="leader-waking", play=programs.leader_killed_while_waking),
    Scenario(name="api-away", play=outages.api_away),
    Scenario(name="etcd", play=outages.etcd_restarted),
    Scenario(name="watches", play=outages.watches_dropped),
    Scenario(name="pod-leaves", play=hands.pod_leaves_and_comes_back),
    Scenario(name="pod-dies", play=hands.pod_dies_and_comes_back),
    Scenario(name="by-hand", play=hands.scaled_to_zero_by_hand),
    Scenario(name="by-hand-exiting", play=hands.scaled_to_zero_by_hand_and_exits_at_once),
    Scenario(name="deleted", play=hands.deleted_at_zero),
    Scenario(name="takeover", play=hands.taken_over_from_kubeelasti),
    # Before the hundred, each of which keeps a share of the resolvers' descriptors while it is there.
    Scenario(name="held", play=crowds.ten_thousand_held),
    Scenario(name="hundred", play=crowds.hundred_services),
    Scenario(name="upgrade", play=programs.upgrade),
    Scenario(name="late-endpoints", play=outages.late_endpoints, installation=_PATIENT),
    Scenario(
        name="control",
        play=control.slice_removed_at_zero,
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
