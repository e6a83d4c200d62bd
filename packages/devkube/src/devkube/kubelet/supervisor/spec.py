"""A program for the supervisor to run. Travels as JSON in an anonymous file."""

from __future__ import annotations

import dataclasses
import enum
import json


class Isolation(enum.Enum):
    """The isolation that this machine allows."""

    PRIVILEGED = "privileged"
    """Namespaces, plainly."""
    USER = "user"
    """Namespaces inside a user namespace."""
    NONE = "none"
    """Nothing but a process tree."""

    @property
    def has_namespaces(self) -> bool:
        """Whether a container has a mount namespace of its own."""
        return self is not Isolation.NONE


@dataclasses.dataclass(frozen=True, slots=True)
class Mount:
    """A directory or file of the host, seen at another place."""

    source: str
    target: str
    read_only: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ProcessSpec:
    """A program to run. `join` is the PID of a container's first process to run it beside."""

    argv: tuple[str, ...]
    env: dict[str, str]
    cwd: str = "/"
    hostname: str = ""
    mounts: tuple[Mount, ...] = ()
    join: int = 0

    def encode(self) -> bytes:
        """Return the JSON form."""
        return json.dumps(dataclasses.asdict(self)).encode()

    @classmethod
    def decode(cls, data: bytes) -> ProcessSpec:
        """Read the JSON form."""
        fields = json.loads(data)
        fields["argv"] = tuple(fields["argv"])
        fields["mounts"] = tuple(Mount(**mount) for mount in fields["mounts"])
        return cls(**fields)
