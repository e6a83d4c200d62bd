"""A trial as a history: what the probers, the apps' books and the watches say, as events of one file."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from tests.e2e import observer
from tests.e2e.account import Window
from tests.e2e.prober.plan import Record
from tests.e2e.probing import Probe
from tests.history.events import Answer, Call, Event, Excused, Executed, Pod, Rotation, Scaled

_PHASES = ("ready", "leaving", "gone")


def of_requests(outcomes: Iterable[tuple[Probe, Sequence[Record]]]) -> Iterator[Event]:
    """Return the clients' part."""
    for probe, records in outcomes:
        for one in records:
            service = probe.services[one.target] if probe.services else ""
            yield Call(at=one.sent, id=one.id, service=service)
            yield Answer(
                at=one.answered,
                id=one.id,
                status=one.status,
                pod=one.pod,
                held=one.held,
                fault=one.fault.value,
            )


def of_books(directory: Path) -> list[Event]:
    """Return the apps' part: each line of a book is a moment and a request's id."""
    found: list[Event] = []
    for path in sorted(directory.glob("[!.]*")):  # a scenario's own notes begin with a dot
        pod = path.name.rpartition(".")[0]
        for line in path.read_text().splitlines():
            at, _, name = line.partition(" ")
            found.append(Executed(at=float(at), id=name, pod=pod))
    return found


def of_cluster(seen: Iterable[observer.Event]) -> Iterator[Event]:
    """Return the cluster's part, as its watches showed it."""
    slices: defaultdict[str, dict[str, tuple[int, int]]] = defaultdict(dict)
    for event in seen:
        match event.kind:
            case "pod":
                phase = event.what if event.what in _PHASES else "there"
                yield Pod(at=event.at, name=event.subject, phase=phase)
            case "replicas":
                yield Scaled(at=event.at, service=event.subject, replicas=int(event.what))
            case "endpoints":
                service, ready, _, ending, _ = event.what.split(" ")
                slices[service][event.subject] = (int(ready), int(ending))
                counts = slices[service].values()
                used = sum(ready for ready, _ in counts) or sum(ending for _, ending in counts)
                yield Rotation(at=event.at, service=service, endpoints=used)


def of_windows(windows: Iterable[Window]) -> Iterator[Event]:
    """Return when something was broken that costs requests without Elasti, too."""
    for window in windows:
        yield Excused(at=window.began, until=window.ended, why=window.why)
