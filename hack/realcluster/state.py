"""What a cluster's directory says about it: whether its owner lives, and what it has.

The owner holds a lock on a file for as long as it lives, however it ends: a lock that is free means
that nobody owns the cluster any more. `state.json` is the owner's report, replaced as a whole.
"""

from __future__ import annotations

import fcntl
import json
import os
from dataclasses import asdict, dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

FILE = "state.json"
LOCK = "owner.lock"


@dataclass(frozen=True, slots=True)
class Place:
    """Namespaces that something runs in: its name, and a process that is in them."""

    name: str
    pid: int
    address: str


@dataclass(frozen=True, slots=True)
class State:
    """The owner's report."""

    owner: int
    nodes: int
    proxy: str
    ready: bool = False
    kubeconfig: str = ""
    seconds: float = 0.0
    """How long it took to be ready."""
    places: list[Place] = field(default_factory=list)

    def write(self, directory: Path) -> None:
        """Replace the report."""
        half = directory / f".{FILE}"
        half.write_text(json.dumps(asdict(self), indent=2))
        half.rename(directory / FILE)

    @classmethod
    def read(cls, directory: Path) -> State | None:
        """The last report, if there is one; its owner may have gone."""
        try:
            fields = json.loads((directory / FILE).read_text())
        except FileNotFoundError:
            return None
        return cls(**{**fields, "places": [Place(**place) for place in fields["places"]]})

    @property
    def nodes_places(self) -> list[Place]:
        """Those that run pods."""
        return [place for place in self.places if place.name.startswith("node-")]

    def place(self, name: str) -> Place:
        """One of them, by its name; KeyError with the names that there are."""
        for place in self.places:
            if place.name == name:
                return place
        raise KeyError(f"no {name!r} here: {', '.join(place.name for place in self.places)}")


def try_lock(directory: Path) -> int | None:
    """Become the owner: a descriptor that holds the lock, or None while another one lives.

    The lock is the open file's and not the process': a child that inherits the descriptor has it too.
    """
    fd = os.open(directory / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(fd)
        return None
    return fd


def is_owned(directory: Path) -> bool:
    """Whether an owner lives."""
    if not (directory / LOCK).exists():
        return False
    fd = try_lock(directory)
    if fd is None:
        return True
    os.close(fd)
    return False
