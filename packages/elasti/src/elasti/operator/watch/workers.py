"""Which workloads ElastiServices name beside their targets. Kept by the directory, on every replica.

An entry counts if no other ElastiService names the same workload, as a target or beside one: two would contradict each
other, so neither puts it to sleep. The reason is in `problems`.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator

from elasti.api.types import MAX_WORKERS
from elasti.operator.model.targets import ScaleTarget
from kubeloop.controller.reconcile import Request


class WorkerIndex:
    """The workloads, by ElastiService and the other way round. `targeting`: whose target a workload is."""

    def __init__(self, targeting: Callable[[ScaleTarget], Collection[Request]]) -> None:
        self._targeting = targeting
        self._named: dict[Request, tuple[ScaleTarget, ...]] = {}
        self._naming: dict[ScaleTarget, set[Request]] = {}

    def put(self, request: Request, targets: tuple[ScaleTarget, ...]) -> None:
        """Note what a spec names; nothing: it names none, or is gone."""
        for former in self._named.pop(request, ()):
            naming = self._naming.get(former, set())
            naming.discard(request)
            if not naming:
                self._naming.pop(former, None)
        if targets:
            self._named[request] = targets
        for target in targets:
            self._naming.setdefault(target, set()).add(request)

    def of(self, request: Request) -> tuple[ScaleTarget, ...]:
        """Return the workloads that sleep and wake with an ElastiService's target."""
        named = enumerate(self._named.get(request, ()))
        return tuple(one for index, one in named if not self._ignored(request, index, one))

    def problems(self, request: Request) -> Iterator[str]:
        """Yield why entries of an ElastiService are ignored."""
        for index, one in enumerate(self._named.get(request, ())):
            if why := self._ignored(request, index, one):
                yield f"spec.targets[{index}] names {one.kind} {one.name}, {why}; the entry is ignored"

    def concerned(self, targets: tuple[ScaleTarget, ...]) -> tuple[Request, ...]:
        """Return the ElastiServices that name one of these beside their target."""
        if not self._naming:
            return ()
        return tuple(sorted({one for target in targets for one in self._naming.get(target, ())}))

    def _ignored(self, request: Request, index: int, target: ScaleTarget) -> str:
        targeting = self._targeting(target)
        if request in targeting:
            return "which is spec.scaleTargetRef; remove it"
        if targeting:
            other = min(targeting).name
            return f"which is the target of ElastiService {other}; name that in spec.dependsOn"
        if others := self._naming[target] - {request}:
            return (
                f"which ElastiService {min(others).name} names as well; remove one of these entries"
            )
        if index >= MAX_WORKERS:
            return f"and the list is longer than {MAX_WORKERS}; shorten it"
        return ""
