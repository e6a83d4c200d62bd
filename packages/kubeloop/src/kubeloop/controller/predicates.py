"""Which notifications are worth a reconcile.

A predicate is a function from a notification to bool; those of one source are ANDed. The ready-made
ones judge updates and let adds and deletes pass, so that they combine. `generation_changed` keeps
out everything but a changed specification: resyncs, status, label, annotation and finalizer changes
(a Deployment's annotations are an exception: they raise its generation; so is every change of a
custom resource without the status subresource). Setting a deletionTimestamp raises it too, so a
graceful deletion passes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias, TypeVar

from kubeloop.informer.handlers import Added, Deleted, Notification, Updated
from kubeloop.objects.meta import MetaAccess, access_for
from kubeloop.objects.selectors import LabelSelector

T = TypeVar("T")

Predicate: TypeAlias = Callable[[Notification[T]], bool]


def always(_event: Notification[T]) -> bool:
    """Let everything pass."""
    return True


def all_of(*predicates: Predicate[T]) -> Predicate[T]:
    """Let pass what every predicate lets pass; without any, everything."""
    return lambda event: all(predicate(event) for predicate in predicates)


def any_of(*predicates: Predicate[T]) -> Predicate[T]:
    """Let pass what some predicate lets pass; without any, nothing."""
    return lambda event: any(predicate(event) for predicate in predicates)


def negate(predicate: Predicate[T]) -> Predicate[T]:
    """Let pass exactly what the predicate keeps out."""
    return lambda event: not predicate(event)


def by_kind(
    *,
    added: Callable[[Added[T]], bool] = lambda _event: True,
    updated: Callable[[Updated[T]], bool] = lambda _event: True,
    deleted: Callable[[Deleted[T]], bool] = lambda _event: True,
) -> Predicate[T]:
    """Decide by a function for each kind of notification; those not given let pass."""

    def decide(event: Notification[T]) -> bool:
        match event:
            case Added():
                return added(event)
            case Updated():
                return updated(event)
            case Deleted():
                return deleted(event)

    return decide


def version_changed() -> Predicate[Any]:
    """Keep out updates that repeat the same resourceVersion: resyncs and relists."""
    return _update_changes(lambda access, obj: access.version(obj))


def generation_changed() -> Predicate[Any]:
    """Keep out updates that do not change the specification."""
    return _update_changes(lambda access, obj: access.generation(obj))


def labels_changed() -> Predicate[Any]:
    """Keep out updates that do not change a label."""
    return _update_changes(lambda access, obj: access.labels(obj))


def annotations_changed() -> Predicate[Any]:
    """Keep out updates that do not change an annotation."""
    return _update_changes(lambda access, obj: access.annotations(obj))


def labels_match(selector: LabelSelector | str) -> Predicate[Any]:
    """Keep out objects whose labels do not match; of an update the new object counts."""
    parsed = LabelSelector.parse(selector)

    def decide(event: Notification[Any]) -> bool:
        obj = event.new if isinstance(event, Updated) else event.obj
        return parsed.matches(access_for(type(obj)).labels(obj))

    return decide


def _update_changes(read: Callable[[MetaAccess, Any], object]) -> Predicate[Any]:
    def changed(event: Updated[Any]) -> bool:
        old_access, new_access = access_for(type(event.old)), access_for(type(event.new))
        return read(old_access, event.old) != read(new_access, event.new)

    return by_kind(updated=changed)
