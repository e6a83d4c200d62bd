"""What a seed decides before its run: features, faults, and the plots and subjects that they are of."""

from __future__ import annotations

import dataclasses
import random

from tests.swarm.faults import KINDS, OF_PLOTS, Fault

# What makes a moment in which an order of events is worth trying.
MOMENTS = (
    "our slice comes", "an engage settle ends", "Proxy", "Waking", "a release settle ends", "Serve",
    "a park is written", "parked", "scaled up", "no resolver is ready", "a resolver is quiet", "a pod is ready", "our slice goes",
    "deleted", "a program ends", "a fault",
)  # fmt: skip

# Kinds that meet each other; one that stands twice is drawn twice as often.
SUBJECTS: tuple[tuple[str, ...], ...] = (
    ("a person scales up", "a person scales", "a person asks for a wake-up"),
    ("the leader crashes", "a person asks for sleep", "a person asks for sleep"),
    ("the leader crashes", "an operator is replaced", "an operator is cut off"),
    ("an ElastiService is created again", "the API server refuses", "etcd is full"),
    ("an ElastiService is created again", "writes are done and time out", "writes conflict"),
    ("an ElastiService is created again",),
    ("a Service's port is renumbered", "a port is claimed twice"),
    ("a Service's port is renumbered", "a resolver is replaced"),
    ("a resolver is replaced",),
    ("a resolver is cut off", "a resolver is replaced", "a program is slow"),
    ("a resolver's watches are dead", "an app is rolled out"),
    ("no resolver is left", "a program is slow"),
    ("a pod is unready", "a pod crashes", "an app is rolled out"),
)

# What has to come in one order within seconds: kind, moment, and how long after it.
Plot = tuple[tuple[str, str, tuple[float, float]], ...]
_AWAKE = ("a person asks for a wake-up", "", (0.0, 0.0))
# Each begins with a target that is awake, and falls asleep a cooldown later.
PLOTS: tuple[Plot, ...] = (
    # Other writers, around a park.
    (_AWAKE, ("a person scales up", "our slice comes", (0.2, 5.0))),
    (
        _AWAKE,
        ("a program is slow", "our slice comes", (2.0, 4.5)),
        ("a person scales up", "parked", (0.0, 0.08)),
    ),
    (
        _AWAKE,
        ("a resolver is cut off", "parked", (0.0, 0.0)),
        ("a person scales up", "parked", (0.01, 0.4)),
    ),
    # Clients, around a park.
    (
        _AWAKE,
        *[("a slow client comes", "a resolver is quiet", (0.0, 0.005))] * 2,
        ("a slow client comes", "a park is written", (0.0, 0.001)),
    ),
    (_AWAKE, *[("a client comes", "parked", (0.05, 3.0))] * 2),
    # Resolvers that go while a park is decided on, and while a target sleeps.
    (
        _AWAKE,
        ("a resolver is replaced", "our slice comes", (0.0, 1.0)),
        ("a slow client comes", "our slice comes", (0.8, 2.5)),
        ("a slow client comes", "a program ends", (0.0, 0.4)),
    ),
    (
        _AWAKE,
        *[("a slow client comes", "our slice comes", (0.8, 2.0))] * 2,
        ("a resolver is cut off", "our slice comes", (2.0, 4.9)),
    ),
    (
        _AWAKE,
        ("a resolver is replaced", "Proxy", (0.0, 3.0)),
        *[("clients come", "a program ends", (0.0, 0.8))] * 2,
    ),
    (
        _AWAKE,
        ("no resolver is left", "Proxy", (0.0, 3.0)),
        ("the API server is slow", "no resolver is ready", (9.0, 14.5)),
        ("a person edits a cooldown", "no resolver is ready", (14.5, 15.1)),
    ),
    # Wake-ups while something does not hear.
    (
        _AWAKE,
        ("a resolver's watches are dead", "Proxy", (0.0, 4.0)),
        *[("a client comes", "Proxy", (1.0, 8.0))] * 2,
    ),
    (
        _AWAKE,
        ("an operator is cut off", "Proxy", (0.5, 3.0)),
        *[("a client comes", "Proxy", (1.0, 8.0))] * 2,
    ),
    (
        _AWAKE,
        ("the leader crashes", "Proxy", (0.0, 2.0)),
        ("a slow client comes", "Proxy", (2.0, 4.0)),
        ("a person asks for sleep", "Proxy", (6.0, 10.0)),
    ),
    # The end of an ElastiService.
    (
        _AWAKE,
        ("an ElastiService is created again", "Proxy", (0.5, 3.0)),
        ("a slow client comes", "our slice goes", (0.02, 0.4)),
        ("a slow client comes", "our slice goes", (0.2, 0.9)),
    ),
    (
        _AWAKE,
        ("a node stands still", "Proxy", (0.0, 3.0)),
        ("an ElastiService is created again", "Proxy", (0.5, 3.0)),
        ("a resolver is slow", "our slice goes", (4.0, 4.6)),
        *[("clients come", "our slice goes", (4.7, 5.05))] * 3,
    ),
    (
        _AWAKE,
        *[("a client keeps its connection", "Proxy", (0.5, 3.0))] * 2,
        ("an ElastiService is created again", "Serve", (0.0, 3.0)),
    ),
    (
        _AWAKE,
        ("a Service is created again", "Proxy", (0.5, 3.0)),
        ("an ElastiService is created again", "Proxy", (3.5, 6.0)),
        ("writes conflict", "deleted", (0.0, 0.0)),
    ),
)


@dataclasses.dataclass(frozen=True)
class Features:
    """What a whole run is like. Each is on in some seeds only, so that none hides what another shows."""

    #: How probably clients come at each of `MOMENTS`, and how many of all requests are slow.
    bursts: float
    slow: float
    #: Pods are unready once more after they became ready.
    flaps: bool
    #: How long a turn of the loop takes.
    quantum: float
    polling: float
    cooldown: int
    both: bool
    #: For how long there is no load at most: what a plot needs must come alone.
    pause: float = 40.0
    #: How old what the trigger reads is: a scrape and an evaluation take their time.
    scrape: float = 0.0


def features(seed: int) -> Features:
    """Return the features of a seed."""
    chance, plot = random.Random(f"features of {seed}"), has_plot(seed)
    return Features(
        bursts=chance.choice((0.0, 0.0, 0.0, 0.4) if plot else (0.0, 0.15, 0.4, 0.8)),
        slow=chance.choice((0.0, 0.0, 0.3)),
        flaps=chance.random() < 0.3,
        quantum=chance.choice((0.0, 0.0, 0.005, 0.05)),
        polling=chance.choice((3.0, 30.0)),
        cooldown=10 if plot else chance.choice((10, 10, 60)),
        both=chance.random() < 0.5,
        pause=200.0 if plot else 40.0,
        scrape=chance.choice((0.0, 8.0)),
    )


def draw(seed: int, seconds: float) -> list[Fault]:
    """Return the faults of a seed; a seed plays a few kinds often rather than all of them once.

    Half of the seeds have a plot. Of the others half have a subject, whose kinds meet each other. Some wait for their
    moments.
    """
    if has_plot(seed):
        chance = random.Random(f"plot of {seed}")
        plot = chance.choice(PLOTS)
        acts = chance.choice((2, 2, 3))
        begins = [chance.uniform(2.0, 8.0) + n * seconds / acts for n in range(acts)]
        return [fault for at in begins for fault in _played(plot, chance, at)]
    chance = random.Random(f"faults of {seed}")
    if chance.random() < 0.5:
        kinds = chance.choice(SUBJECTS)
    else:
        kinds = tuple(chance.sample(sorted(KINDS.keys() - OF_PLOTS), chance.randint(1, 4)))
    waits, most = chance.choice((0.0, 0.5, 0.9)), chance.choice((0, 4, 8, 12))
    found = []
    for _ in range(chance.randint(0, most)):
        moment = chance.choice(MOMENTS) if chance.random() < waits else ""
        after = chance.uniform(0.0, chance.choice((0.005, 0.5, 5.0))) if moment else 0.0
        found.append(
            Fault(
                round(chance.uniform(2.0, seconds), 3),
                chance.choice(kinds),
                chance.randrange(1000),
                round(chance.random(), 3),
                moment,
                round(after, 4),
            )
        )
    return sorted(found, key=lambda fault: fault.at)


def has_plot(seed: int) -> bool:
    return random.Random(f"whether {seed} has a plot").random() < 0.5


def _played(plot: Plot, chance: random.Random, at: float) -> list[Fault]:
    """Return the faults of a plot, which all happen or wait from the same time on."""
    which = chance.randrange(1000)
    return [
        Fault(
            round(at, 3),
            kind,
            which,
            round(chance.random(), 3),
            moment,
            round(chance.uniform(*after), 4),
        )
        for kind, moment, after in plot
    ]
