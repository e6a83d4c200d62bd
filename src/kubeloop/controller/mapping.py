"""Which objects to reconcile because of a notification.

A mapping turns a notification into requests. An update is looked at from both sides: whoever owned
or was named by the old object has lost something, whoever the new one names has gained it. Each
request is given once.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

from kubeloop.controller.reconcile import Request
from kubeloop.informer.notifications import Notification, Updated
from kubeloop.objects.meta import access_for
from kubeloop.objects.names import split_key
from kubeloop.objects.owners import is_of_kind

if TYPE_CHECKING:
    from kubeloop.objects.gvk import GroupVersionKind
    from kubeloop.objects.meta import OwnerReference

T = TypeVar("T")

Mapping: TypeAlias = Callable[[Notification[T]], Iterable[Request]]
MapFunction: TypeAlias = Callable[[T], Iterable[Request]]

_log = logging.getLogger(__name__)


def for_object() -> Mapping[Any]:
    """Reconcile the object itself."""
    return lambda event: (split_key(event.key),)


def map_func(function: MapFunction[T]) -> Mapping[T]:
    """Reconcile what a function says, of an update for the old and the new object."""

    def requests(event: Notification[T]) -> Iterable[Request]:
        if isinstance(event, Updated):
            return dict.fromkeys((*function(event.old), *function(event.new)))
        return dict.fromkeys(function(event.obj))

    return requests


def for_owner(
    owner: GroupVersionKind, *, controller_only: bool = False, namespaced: bool = True
) -> Mapping[Any]:
    """Reconcile the owners of a kind, of any version of it.

    `controller_only`: only the owner that is marked as the controller. `namespaced=False`: owners of
    this kind are cluster-scoped, so their requests have no namespace.
    """

    def owners(obj: Any) -> Iterable[Request]:
        access = access_for(type(obj))
        namespace = access.namespace(obj) if namespaced else ""
        for reference in access.owners(obj):
            if _refers_to(reference, owner) and (reference.controller or not controller_only):
                yield Request(namespace, reference.name)

    return map_func(owners)


def _refers_to(reference: OwnerReference, owner: GroupVersionKind) -> bool:
    try:
        return is_of_kind(reference, owner.group, owner.kind)
    except ValueError:
        _log.warning(
            "owner reference to %s %s is ignored: its apiVersion %r is malformed",
            *(reference.kind, reference.name, reference.api_version),
        )
        return False
