"""Which ElastiService owns a Service, and who shares a target. Kept on every replica, by a handler.

If two ElastiServices name one Service, the older owns it; if both were created in the same second, the
one with the smaller uid does. The answer changes only with the objects, never with the order of events.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Collection, Iterator
from typing import Any

import msgspec

from elasti.api.dependencies import DependencyGraph
from elasti.api.names import DOZE_GUARD, FINALIZER, KEEP_AWAKE_ANNOTATION
from elasti.api.states import State
from elasti.api.triggers.registry import redacted_metadata
from elasti.api.types import ElastiService, ElastiServiceSpec, ElastiServiceStatus
from elasti.api.validation import SpecProblem, problems_of
from elasti.logger import get_logger
from elasti.operator.model.state import StateStore
from elasti.operator.model.targets import ScaleTarget, target_of, workers_of
from elasti.operator.watch.workers import WorkerIndex
from kubeloop.controller.reconcile import Request
from kubeloop.informer import Deleted, Updated
from kubeloop.informer.handlers import Notification
from kubeloop.objects.meta import ObjectMeta
from kubeloop.objects.times import unix_seconds

_log = get_logger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class CRDDetails:
    """One ElastiService as the directory knows it.

    What every decision asks for is found out once for each version: what is wrong with the spec, and
    times as seconds since 1970.
    """

    name: str
    namespace: str
    uid: str
    created: str
    spec: ElastiServiceSpec
    status: ElastiServiceStatus
    problems: tuple[SpecProblem, ...] = ()
    created_at: float = -math.inf
    last_scaled_up: float = -math.inf
    keep_awake_until: float = -math.inf
    is_deleted: bool = False  #: its deletion is under way
    is_held: bool = False  #: something of ours may be in its traffic

    @property
    def is_left_alone(self) -> bool:
        """Whether no other ElastiService's wake-up may wake it."""
        refused = self.spec.suspended or bool(self.problems)
        return refused or self.spec.observes or self.is_deleted

    @property
    def request(self) -> Request:
        """The reconcile key."""
        return Request(self.namespace, self.name)

    @property
    def age(self) -> tuple[str, str]:
        """Sorts the older first."""
        return self.created, self.uid

    def reference(self) -> ElastiService:
        """Return enough of the object to wake its target, and to report that."""
        meta = ObjectMeta(name=self.name, namespace=self.namespace, uid=self.uid)
        return ElastiService(spec=self.spec, metadata=meta, status=self.status)

    def shown(self) -> dict[str, Any]:
        """Return it for people and resolvers, without any trigger's secrets."""
        spec = msgspec.to_builtins(self.spec)
        for trigger in spec.get("triggers", ()):
            trigger["metadata"] = redacted_metadata(trigger["type"], trigger.get("metadata") or {})
        return {"name": self.name, "spec": spec, "status": msgspec.to_builtins(self.status)}


class Directory:
    """Finds ElastiServices by Service and by target."""

    def __init__(self) -> None:
        self._by_request: dict[Request, CRDDetails] = {}
        self._targets: dict[Request, ScaleTarget] = {}
        self._by_service: dict[tuple[str, str], set[Request]] = {}
        self._by_target: dict[ScaleTarget, set[Request]] = {}
        self.graph = DependencyGraph(self._by_request.__contains__)
        self.workers = WorkerIndex(lambda target: self._by_target.get(target, ()))

    def __len__(self) -> int:
        return len(self._by_request)

    def on_event(self, event: Notification[ElastiService]) -> None:
        """Take in what an informer says."""
        if isinstance(event, Deleted):
            self.remove(Request(event.obj.metadata.namespace, event.obj.metadata.name))
        else:
            self.put(event.new if isinstance(event, Updated) else event.obj)

    def put(self, obj: ElastiService) -> None:
        """Add or replace one; does nothing if this version is known."""
        meta = obj.metadata
        request = Request(meta.namespace, meta.name)
        present = self._by_request.get(request)
        if present is not None and self._is_same(present, obj):
            return
        target = target_of(obj)
        self._drop(request)
        self._by_request[request] = self._details(obj, present)
        self._targets[request] = target
        self._by_service.setdefault((meta.namespace, obj.spec.service), set()).add(request)
        self._by_target.setdefault(target, set()).add(request)
        if obj.spec.depends_on or present is not None:
            self.graph.put(request, tuple(one.name for one in obj.spec.depends_on))
        if obj.spec.targets or (present is not None and present.spec.targets):
            self.workers.put(request, workers_of(obj))
        if present is None:
            self.graph.changed(request)

    def _is_same(self, present: CRDDetails, obj: ElastiService) -> bool:
        return (
            present.spec is obj.spec
            and present.status is obj.status
            and present.uid == obj.metadata.uid
        )

    def _details(self, obj: ElastiService, present: CRDDetails | None) -> CRDDetails:
        meta, created = obj.metadata, obj.metadata.creation_timestamp or ""
        found = () if self._is_known_good(obj, present) else _problems(obj)
        return CRDDetails(
            meta.name,
            meta.namespace,
            meta.uid,
            created,
            obj.spec,
            obj.status,
            found,
            unix_seconds(created),
            unix_seconds(obj.status.last_scaled_up_time),
            unix_seconds(_kept_until(obj)),
            meta.deletion_timestamp is not None,
            FINALIZER in (meta.finalizers or ()),
        )

    def _is_known_good(self, obj: ElastiService, present: CRDDetails | None) -> bool:
        """Whether nothing was wrong with the same spec before, which need not be found out again."""
        return (
            present is not None
            and not present.problems
            and not obj.unreadable
            and present.spec == obj.spec
        )

    def remove(self, request: Request) -> None:
        """Forget one; safe if it is unknown."""
        self._drop(request)
        self.graph.put(request, ())
        self.graph.changed(request)
        self.workers.put(request, ())

    def _drop(self, request: Request) -> None:
        details = self._by_request.pop(request, None)
        if details is None:
            return
        _discard(self._by_service, (details.namespace, details.spec.service), request)
        _discard(self._by_target, self._targets.pop(request), request)

    def get(self, request: Request) -> CRDDetails | None:
        """Return one by its own name."""
        return self._by_request.get(request)

    def awaited(
        self,
        request: Request,
        serves: Callable[[str, str, Collection[str]], bool],
        states: StateStore | None,
    ) -> Iterator[CRDDetails]:
        """Yield the dependencies that do not serve, and may do so soon: what is left alone or refused may not.

        `states`: the leader's, if this replica leads.
        """
        for one in self.needed(request):
            state = states.find(one.request) if states is not None else None
            if state is not None and state.handover.refused:
                continue
            # A pod of a target that was parked is ready until the slices say otherwise.
            stopping = state.handover.stopping if state is not None else ()
            parking = state is not None and state.current is State.PARKING
            if parking or not serves(one.namespace, one.spec.service, stopping):
                yield one

    def needed(self, request: Request) -> Iterator[CRDDetails]:
        """Yield the dependencies of an ElastiService that are not left alone."""
        for one in map(self._by_request.get, self.graph.dependencies(request)):
            if one is not None and not one.is_left_alone:
                yield one

    def owner(self, namespace: str, service: str) -> CRDDetails | None:
        """Return the ElastiService that owns a Service: the oldest that names it."""
        requests = self._by_service.get((namespace, service), ())
        found = [self._by_request[request] for request in requests]
        return min(found, key=lambda details: details.age, default=None)

    def naming(self, namespace: str, service: str) -> tuple[Request, ...]:
        """Return every ElastiService that names a Service, its owner or not."""
        return tuple(sorted(self._by_service.get((namespace, service), ())))

    def targets(self) -> tuple[ScaleTarget, ...]:
        """Return every target, once."""
        return tuple(self._by_target)

    def sharing(self, request: Request) -> tuple[Request, ...]:
        """Return the ElastiServices with the same target, itself included, in a fixed order."""
        target = self._targets.get(request)
        return tuple(sorted(self._by_target.get(target, ()))) if target else ()

    def shown(self) -> dict[str, Any]:
        """Return all owners, by `namespace/service`, for `GET /crd-cache`."""
        owners = (self.owner(*key) for key in sorted(self._by_service))
        return {
            f"{details.namespace}/{details.spec.service}": details.shown()
            for details in owners
            if details is not None
        }


def _discard(index: dict[Any, set[Request]], key: object, request: Request) -> None:
    members = index.get(key, set())
    members.discard(request)
    if not members:
        index.pop(key, None)


def _kept_until(obj: ElastiService) -> str | None:
    """Return the time until which a person wants it awake; the guard against older operators is not a person's."""
    found = (obj.metadata.annotations or {}).get(KEEP_AWAKE_ANNOTATION)
    return None if found == DOZE_GUARD else found


def _problems(obj: ElastiService) -> tuple[SpecProblem, ...]:
    try:
        return tuple(problems_of(obj))
    except Exception as error:  # noqa: BLE001 -- one object must not stop the watch of all
        _log.exception(
            "spec could not be checked", namespace=obj.metadata.namespace, name=obj.metadata.name
        )
        return (SpecProblem("spec", f"it cannot be checked ({type(error).__name__})"),)
