"""What one probe found."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasti.devcluster.kubelet.objects.containers import Container, Port


@dataclasses.dataclass(frozen=True, slots=True)
class Outcome:
    """Healthy or not, and what to say about it; a `warning` is healthy and worth a word."""

    healthy: bool
    message: str = ""
    warning: bool = False


class ProbeError(Exception):
    """A probe that cannot be made as it is written; its result does not count."""


def port_number(port: Port, container: Container) -> int:
    """Return a port's number. Raises ProbeError for a name that the container does not have."""
    if isinstance(port, str):
        named = {item.name: item.container_port for item in container.ports if item.name}
        number = named.get(port, int(port) if port.isdecimal() else 0)
    else:
        number = port
    if not 0 < number < 65536:
        raise ProbeError(f"invalid port number: {port}")
    return number


def seconds(timeout: float) -> str:
    """Write a timeout as messages do."""
    return f"{timeout:g}s"
