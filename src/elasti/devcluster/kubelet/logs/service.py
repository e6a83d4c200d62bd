"""The logs of a node's pods, for whoever answers requests for them.

`NodeLogs` is the small seam between a kubelet and the API server: in one process it is called
directly, over the network it is behind `server`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from elasti.devcluster.kubelet.logs.queries import LogError
from elasti.devcluster.kubelet.logs.reading import read

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable

    from elasti.devcluster.kubelet.logs.files import LogFile
    from elasti.devcluster.kubelet.logs.reading import LogOptions
    from elasti.devcluster.kubelet.objects.pods import Pod
    from elasti.devcluster.kubelet.objects.status import PodStatus


class HasLogs(Protocol):
    """A pod's worker, as seen from here."""

    @property
    def pod(self) -> Pod:
        """The pod."""

    @property
    def status(self) -> PodStatus:
        """Its newest status."""

    def log(self, container: str, *, previous: bool = False) -> LogFile | None:
        """Return a container's log."""


class LogSource(Protocol):
    """Where logs come from."""

    def open(
        self, namespace: str, pod: str, container: str, options: LogOptions
    ) -> AsyncIterator[bytes]:
        """Return a log piece by piece. Raises LogError, before the first piece."""


class NodeLogs:
    """The logs of one kubelet's pods."""

    def __init__(self, find: Callable[[str, str], HasLogs | None]) -> None:
        self._find = find

    def open(
        self, namespace: str, pod: str, container: str, options: LogOptions
    ) -> AsyncIterator[bytes]:
        """Return a log piece by piece. Raises LogError."""
        worker = self._find(namespace, pod)
        if worker is None:
            raise LogError(f'pod "{pod}" cannot be found - no logs available', code=404)
        log = worker.log(container, previous=options.previous)
        if log is None:
            raise LogError(_why_not(worker, container, options))
        return read(log, options)


def _why_not(worker: HasLogs, container: str, options: LogOptions) -> str:
    name = worker.pod.metadata.name
    status = worker.status.container(container)
    if status is None:
        return f'container "{container}" in pod "{name}" is not available'
    if options.previous:
        return f'previous terminated container "{container}" in pod "{name}" not found'
    reason = status.state.waiting.reason if status.state.waiting is not None else ""
    if reason:
        return f'container "{container}" in pod "{name}" is waiting to start: {reason}'
    return f'container "{container}" in pod "{name}" is waiting to start - no logs yet'
