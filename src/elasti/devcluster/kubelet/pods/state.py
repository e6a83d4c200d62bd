"""What is known of a pod that runs here. Pure.

A pod's worker owns one `PodState`. Times are pairs: the loop's, for durations, and the wall's, for
people.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Mapping

    from elasti.devcluster.kubelet.objects.status import Waiting


@dataclasses.dataclass(frozen=True, slots=True)
class Moment:
    """A point in time, on both clocks."""

    loop: float
    wall: dt.datetime


class Stage(enum.Enum):
    """Where a container is in its life."""

    WAITING = enum.auto()
    STARTING = enum.auto()
    RUNNING = enum.auto()
    EXITED = enum.auto()


class ProbeKind(enum.Enum):
    """What a probe decides."""

    STARTUP = "Startup"
    LIVENESS = "Liveness"
    READINESS = "Readiness"


class Why(enum.Enum):
    """Why a container, or the whole pod, is stopped."""

    DELETED = enum.auto()
    DEADLINE = enum.auto()
    COMPLETED = enum.auto()
    INIT_FAILED = enum.auto()
    LIVENESS = enum.auto()
    STARTUP = enum.auto()
    POST_START = enum.auto()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Exit:
    """How a run ended."""

    code: int
    reason: str
    at: Moment
    message: str = ""
    container_id: str = ""
    started_at: dt.datetime | None = None


@dataclasses.dataclass(frozen=True, slots=True)
class Backoff:
    """How long a container that ended must rest before it runs again; see `restarts`."""

    delay: float = 0.0
    since: float = 0.0


@dataclasses.dataclass(frozen=True, slots=True)
class Stopping:
    """A stop under way; `deadline` (loop time) is when patience ends."""

    why: Why
    deadline: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ContainerRun:
    """One container. `exit` is how the present run ended, `last` the one before."""

    stage: Stage = Stage.WAITING
    attempt: int = 0
    """The number of the present or coming run, from 0: the restart count."""
    container_id: str = ""
    started_at: dt.datetime | None = None
    started: bool = False
    ready: bool = False
    exit: Exit | None = None
    last: Exit | None = None
    waiting: Waiting | None = None
    retry_at: float | None = None
    backoff: Backoff = Backoff()
    unhealthy: Why | None = None
    stopping: Stopping | None = None

    @property
    def is_active(self) -> bool:
        """Whether there is, or will be in a moment, a process."""
        return self.stage in (Stage.STARTING, Stage.RUNNING)

    @property
    def succeeded(self) -> bool:
        """Whether it ran to a good end."""
        return self.stage is Stage.EXITED and self.exit is not None and self.exit.code == 0


@dataclasses.dataclass(frozen=True, slots=True)
class Ending:
    """The pod as a whole is being stopped."""

    why: Why
    grace: float
    deadline: float


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PodState:
    """One pod."""

    containers: Mapping[str, ContainerRun]
    started_at: Moment
    preparing: bool = False
    address: str = ""
    initialized: bool = False
    ending: Ending | None = None
    finished: bool = False
    removed: bool = False

    @property
    def is_prepared(self) -> bool:
        """Whether it has an address and its volumes."""
        return bool(self.address)

    def with_container(self, name: str, run: ContainerRun) -> PodState:
        """Return the state with one container changed."""
        return dataclasses.replace(self, containers={**self.containers, name: run})
