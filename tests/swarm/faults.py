"""What goes wrong in a run, as data, so that it can be taken away one by one to shrink a failure."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from tests.history.events import Excused
from tests.swarm.cluster import NODES, OPERATOR_SERVICE, RESOLVER_SERVICE
from tests.swarm.loop import Process
from tests.swarm.world import World

# For how long a client may find nothing after something died without notice.
_UNNOTICED = 6.0


@dataclasses.dataclass(frozen=True)
class Fault:
    """One thing that goes wrong: when, what, and two numbers of which its kind makes what it needs."""

    at: float
    kind: str
    which: int
    amount: float
    #: The first moment of this name from `at` on, so many seconds after it; empty: `at` itself.
    moment: str = ""
    after: float = 0.0

    def __str__(self) -> str:
        when = f" {self.after:.3f} s after {self.moment!r}" if self.moment else ""
        return f"{self.at:7.2f} {self.kind} which={self.which} amount={self.amount:.2f}{when}"


def _program(world: World, service: str, which: int) -> Process | None:
    word = "operator" if service == OPERATOR_SERVICE else "resolver"
    found = [one for name, one in sorted(world.programs.running.items()) if name.startswith(word)]
    return found[which % len(found)] if found else None


def _excuse(world: World, seconds: float, why: str) -> None:
    """Excuse requests that fail: the fault would cost them with any system."""
    now = world.loop.now
    world.books.note(Excused(at=now - 2.0, until=now + seconds, why=why))


def _crash_operator(world: World, fault: Fault) -> None:
    if (process := _program(world, OPERATOR_SERVICE, fault.which)) is not None:
        world.programs.crash(process, 0.5 + 20 * fault.amount)


def _crash_leader(world: World, fault: Fault) -> None:
    for process in list(world.programs.running.values()):
        if world.programs.leads(process):
            world.programs.crash(process, 0.5 + 20 * fault.amount)


def _crash_resolver(world: World, fault: Fault) -> None:
    if (process := _program(world, RESOLVER_SERVICE, fault.which)) is not None:
        _excuse(world, _UNNOTICED, "a resolver died")
        world.programs.crash(process, 0.5 + 10 * fault.amount)


def _roll(service: str) -> Callable[[World, Fault], None]:
    def roll(world: World, fault: Fault) -> None:
        if (process := _program(world, service, fault.which)) is not None:
            world.process.start(world.programs.roll(process), f"roll {process.name}")

    return roll


def _crash_pod(world: World, fault: Fault) -> None:
    pods = [pod for _, pod in sorted(world.cluster.pods.items()) if pod.process.alive]
    if pods:
        _excuse(world, _UNNOTICED, "a pod died")
        world.cluster.crash_pod(pods[fault.which % len(pods)])


def _unready_pod(world: World, fault: Fault) -> None:
    pods = [pod for _, pod in sorted(world.cluster.pods.items()) if pod.ready]
    if pods:
        pod = pods[fault.which % len(pods)]
        _excuse(world, _UNNOTICED, "a pod is unready")
        world.cluster._set_ready(pod, False)
        world.later(0.5 + 5 * fault.amount, world.cluster._set_ready, pod, True)


def _cut(service: str) -> Callable[[World, Fault], None]:
    def cut(world: World, fault: Fault) -> None:
        if (process := _program(world, service, fault.which)) is not None:
            seconds = 1.0 + 25 * fault.amount
            if service == RESOLVER_SERVICE:
                _excuse(world, seconds + _UNNOTICED, "a resolver cannot be reached")
            process.cut_until = world.loop.now + seconds

    return cut


def _slow(world: World, fault: Fault, service: str = "") -> None:
    programs = sorted(world.programs.running.items())
    processes = [one for name, one in programs if name.startswith(service)]
    if processes:
        process = processes[fault.which % len(processes)]
        process.slowness = 2.0 + 60 * fault.amount
        world.later(10.0, setattr, process, "slowness", 1.0)


def _deaf(world: World, fault: Fault) -> None:
    """The peer of a resolver's watches has vanished; the kernel notices after 45 seconds."""
    if (process := _program(world, RESOLVER_SERVICE, fault.which)) is not None:
        process.deaf_from, process.deaf_until = world.loop.now, world.loop.now + 45.0


def _no_resolvers(world: World, fault: Fault) -> None:
    """All resolvers die, and are away for longer than the operator waits for them."""
    seconds = 10.0 + 40 * fault.amount
    _excuse(world, seconds + 15.0, "there is no resolver")
    for name, process in sorted(world.programs.running.items()):
        if name.startswith("resolver"):
            world.programs.crash(process, seconds)


def _clock(world: World, fault: Fault) -> None:
    if (process := _program(world, OPERATOR_SERVICE, fault.which)) is not None:
        process.clock_error += (fault.amount - 0.5) * 240


def _api(field: str, most: float, seconds: float = 8.0) -> Callable[[World, Fault], None]:
    def trouble(world: World, fault: Fault) -> None:
        before = getattr(world.server.trouble, field)
        value = True if isinstance(before, bool) else most * (0.2 + 0.8 * fault.amount)
        setattr(world.server.trouble, field, value)
        world.later(
            seconds,
            setattr,
            world.server.trouble,
            field,
            type(world.server.trouble)().__dict__[field],
        )

    return trouble


def _gone(world: World, _fault: Fault) -> None:
    world.server.forget_history()


def _scale(world: World, fault: Fault) -> None:
    """A person scales by hand; to zero without notice, which costs what is not yet published."""
    app = world.app(fault.which)
    world.cluster.by_hand.add(app)
    wanted = int(fault.amount * 3)
    if not wanted and world.cluster.replicas(app):
        _excuse(world, _UNNOTICED, "a person scaled to zero")
    world.cluster.scale(app, wanted)


def _scale_up(world: World, fault: Fault) -> None:
    app = world.app(fault.which)
    world.cluster.by_hand.add(app)
    world.cluster.scale(app, 1 + (world.cluster.replicas(app) or 0) % 3)


def _renumber(world: World, fault: Fault) -> None:
    """A person gives a Service's port another number, and later yet another."""
    world.cluster.add_service(world.app(fault.which), 80 + int(fault.amount * 1000))


def _claim(world: World, fault: Fault) -> None:
    """A person writes another Service's ports into a status."""
    app = world.app(fault.which)
    world.claim_port(app, world.app(fault.which + 1))
    world.later(1.0 + 10 * fault.amount, world.claim_port, app, world.app(fault.which + 1))


def _restart_app(world: World, fault: Fault) -> None:
    """A rollout of the app: a new pod, then the old one ends."""
    app = world.app(fault.which)
    old = [pod for _, pod in sorted(world.cluster.pods.items()) if pod.app == app and pod.ready]
    if old and app not in world.cluster.recreates:
        world.cluster._start_pod(app)
        world.later(4.0, world.finish_rollout, app, old)


def _recreate_elastiservice(world: World, fault: Fault) -> None:
    """A person deletes an ElastiService and creates it again."""
    app = world.app(fault.which)
    world.delete_elastiservice(app)
    world.later(5.0 + 60 * fault.amount, world.restore_elastiservice, app)


def _edit(world: World, fault: Fault) -> None:
    world.edit_elastiservice(world.app(fault.which), cooldownPeriod=5 + int(20 * fault.amount))


def _recreate_service(world: World, fault: Fault) -> None:
    """A person deletes a Service and creates it again; until then nothing answers."""
    app, seconds = world.app(fault.which), 8.0 + 20 * fault.amount
    _excuse(world, seconds + _UNNOTICED, "there is no Service")
    world.cluster.remove_service(app)
    world.later(seconds, world.cluster.add_service, app)


def _stand_still(world: World, fault: Fault) -> None:
    """A node's service proxy hears of nothing, for longer than settles allow for."""
    seconds = 8.0 + 15 * fault.amount
    _excuse(world, seconds + _UNNOTICED, "a node hears of nothing")
    world.cluster.still_until[fault.which % len(NODES)] = world.loop.now + seconds


def _many_clients(world: World, fault: Fault) -> None:
    for n in range(10):
        world.later(n * 0.03 * fault.amount, world.clients.send, world.app(fault.which))


def _ask(annotation: str) -> Callable[[World, Fault], None]:
    return lambda world, fault: world.annotate(world.app(fault.which), annotation)


KINDS: dict[str, Callable[[World, Fault], None]] = {
    "an operator crashes": _crash_operator,
    "the leader crashes": _crash_leader,
    "a resolver crashes": _crash_resolver,
    "an operator is replaced": _roll(OPERATOR_SERVICE),
    "a resolver is replaced": _roll(RESOLVER_SERVICE),
    "a pod crashes": _crash_pod,
    "a pod is unready": _unready_pod,
    "an operator is cut off": _cut(OPERATOR_SERVICE),
    "a resolver is cut off": _cut(RESOLVER_SERVICE),
    "a resolver's watches are dead": _deaf,
    "no resolver is left": _no_resolvers,
    "a program is slow": _slow,
    "a resolver is slow": lambda world, fault: _slow(world, fault, "resolver"),
    "an operator's clock is set": _clock,
    "the API server refuses": _api("refuses", 0.6),
    "the API server is slow": _api("latency", 0.15),
    "writes are done and time out": _api("lies", 0.7),
    "writes conflict": _api("conflicts", 0.9),
    "etcd is full": _api("full", 1.0),
    "watches lag": _api("watch_lag", 3.0, 15.0),
    "watches are too old": _gone,
    "a person scales": _scale,
    "an app is rolled out": _restart_app,
    "an ElastiService is created again": _recreate_elastiservice,
    "a person edits a cooldown": _edit,
    "a person asks for sleep": _ask("elasti.dev/sleep"),
    "a person asks for a wake-up": _ask("elasti.dev/wake"),
    "a person scales up": _scale_up,
    "a Service's port is renumbered": _renumber,
    "a port is claimed twice": _claim,
    "a Service is created again": _recreate_service,
    "a node stands still": _stand_still,
    "a client comes": lambda world, fault: world.clients.send(world.app(fault.which)),
    "clients come": _many_clients,
    "a slow client comes": lambda world, fault: world.clients.send(
        world.app(fault.which), slow=True
    ),
    "a client keeps its connection": lambda world, fault: world.clients.send(
        world.app(fault.which), keeps=3.0 + 12 * fault.amount
    ),
}
# Only plots have them.
OF_PLOTS = {
    "a client comes", "clients come", "a slow client comes", "a client keeps its connection", "a resolver is slow",
}  # fmt: skip

# What delays no wake-up and no answer, as long as one operator is there and the client's resolver is.
HINDERS_NOT = frozenset(
    {
        "an operator crashes", "the leader crashes", "an operator is replaced", "an operator is cut off",
        "a resolver crashes", "a resolver is replaced", "a resolver's watches are dead", "no resolver is left",
        "a person asks for sleep", "a person asks for a wake-up", "a person scales up",
        "an app is rolled out", "a person edits a cooldown", "a slow client comes", "a client comes", "clients come",
        "a client keeps its connection", "a node stands still", "the API server is slow",
    }
)  # fmt: skip

# What does not change when an operator does what is due by time alone.
DISTURBS_NOT = frozenset(
    {
        "no resolver is left", "a resolver crashes", "a person edits a cooldown", "a slow client comes",
        "a client comes", "clients come", "a client keeps its connection", "the API server is slow",
    }
)  # fmt: skip
