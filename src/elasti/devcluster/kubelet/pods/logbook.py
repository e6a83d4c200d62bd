"""The logs of one pod: of every container the present run and the one before."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.devcluster.kubelet.logs.files import LogFile

if TYPE_CHECKING:
    from pathlib import Path

    from kubeloop.aio.clock import Clock

_KEPT = 2


class Logbook:
    """Opens, keeps and forgets logs; what an earlier kubelet left is there from the beginning."""

    def __init__(self, directory: Path, *, clock: Clock, limit: int) -> None:
        self._directory = directory
        self._clock = clock
        self._limit = limit
        self._logs: dict[str, list[LogFile]] = {}
        for path in sorted(directory.glob("*/*.log"), key=lambda path: int(path.stem)):
            log = LogFile.left_by(path, clock=clock)
            self._logs.setdefault(path.parent.name, []).append(log)

    def find(self, container: str, *, previous: bool = False) -> LogFile | None:
        """Return the log of a container's present run, or of the one before."""
        logs = self._logs.get(container, [])
        at = 2 if previous else 1
        return logs[-at] if len(logs) >= at else None

    def open(self, container: str, attempt: int) -> LogFile:
        """Begin the log of a run; the oldest is forgotten."""
        path = self._directory / container / f"{attempt}.log"
        log = LogFile(path, clock=self._clock, limit=self._limit)
        logs = self._logs.setdefault(container, [])
        logs[:] = [known for known in logs if known.path != path]
        logs.append(log)
        while len(logs) > _KEPT:
            logs.pop(0).remove()
        return log

    def close(self) -> None:
        """Close every log."""
        for logs in self._logs.values():
            for log in logs:
                log.close()
