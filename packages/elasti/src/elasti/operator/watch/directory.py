"""Which ElastiService owns a Service, and who shares a target. Kept on every replica, by a handler.

Where two ElastiServices name one Service, the older owns it; where they are of one second, the one
with the smaller uid. The answer changes only with the objects, never with the order of events.
"""

from __future__ import annotations

import dataclasses
import math
from typing import TYPE_CHECKING, Any

import msgspec

from elasti.api.names import KEEP_AWAKE_ANNOTATION
from elasti.api.types import ElastiService, ElastiServiceSpec, ElastiServiceStatus
from elasti.api.validation import SpecProblem, problems_of
from elasti.operator.watch.targets import target_of
from elasti.triggers.registry import redacted_metadata
from kubeloop.controller.reconcile import Request
from kubeloop.informer import Deleted, Updated
from kubeloop.objects.meta import ObjectMeta
from kubeloop.objects.times import unix_seconds

if TYPE_CHECKING:
    from elasti.operator.scale_handler import ScaleTarget
    from kubeloop.informer.handlers import Notification


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

    @property
    def request(self) -> Request:
        """Its name, to be reconciled by."""
        return Request(self.namespace, self.name)

    @property
    def age(self) -> tuple[str, str]:
        """Sorts the older first."""
        return self.created, self.uid

    def reference(self) -> ElastiService:
        """Return enough of the object to tell of it in an event."""
        meta = ObjectMeta(name=self.name, namespace=self.namespace, uid=self.uid)
        return ElastiService(spec=self.spec, metadata=meta)

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

    def __len__(self) -> int:
        return len(self._by_request)

    def on_event(self, event: Notification[ElastiService]) -> None:
        """Take in what an informer says."""
        if isinstance(event, Deleted):
            self.remove(Request(event.obj.metadata.namespace, event.obj.metadata.name))
        else:
            self.put(event.new if isinstance(event, Updated) else event.obj)

    def put(self, obj: ElastiService) -> None:
        """Add or replace one; nothing where this very version is known."""
        meta = obj.metadata
        request = Request(meta.namespace, meta.name)
        present = self._by_request.get(request)
        if present is not None and self._is_same(present, obj):
            return
        target = target_of(obj)
        self.remove(request)
        self._by_request[request] = self._details(obj, present)
        self._targets[request] = target
        self._by_service.setdefault((meta.namespace, obj.spec.service), set()).add(request)
        self._by_target.setdefault(target, set()).add(request)

    def _is_same(self, present: CRDDetails, obj: ElastiService) -> bool:
        return (
            present.spec is obj.spec
            and present.status is obj.status
            and present.uid == obj.metadata.uid
        )

    def _details(self, obj: ElastiService, present: CRDDetails | None) -> CRDDetails:
        meta, created = obj.metadata, obj.metadata.creation_timestamp or ""
        found = () if self._is_known_good(obj, present) else tuple(problems_of(obj))
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
            unix_seconds((meta.annotations or {}).get(KEEP_AWAKE_ANNOTATION)),
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
        """Forget one; safe where it is not there."""
        details = self._by_request.pop(request, None)
        if details is None:
            return
        _discard(self._by_service, (details.namespace, details.spec.service), request)
        _discard(self._by_target, self._targets.pop(request), request)

    def get(self, request: Request) -> CRDDetails | None:
        """Return one by its own name."""
        return self._by_request.get(request)

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
