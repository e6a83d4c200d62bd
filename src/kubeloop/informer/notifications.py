"""What a handler is told: an object was added, updated or deleted.

One notification is made for each change and shared by all handlers. They are Structs that the
cyclic collector does not track: one is made for every event, and a store full of them must not
cost a collection.
"""

from __future__ import annotations

from typing import Generic, TypeAlias, TypeVar

import msgspec

from kubeloop.objects.names import Key

T = TypeVar("T")


class Added(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """An object appeared. `initial`: it was there before the informer, or the handler, started."""

    key: Key
    obj: T
    initial: bool = False


class Updated(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """An object changed, or is repeated by a resync or a relist (then both versions are equal).

    `old` is what the handler's previous notification for the key carried, or another copy of the
    same version. The uid may differ: a name that was deleted and made again while nobody watched is
    one update.
    """

    key: Key
    old: T
    new: T


class Deleted(msgspec.Struct, Generic[T], frozen=True, gc=False):
    """An object is gone; `obj` is its last known state.

    `stale` (client-go's DeletedFinalStateUnknown, a tombstone): the deletion itself was missed and
    found by a relist, so the object's final state is not known. Otherwise `obj` came with the
    deletion and carries its resourceVersion.
    """

    key: Key
    obj: T
    stale: bool = False


Notification: TypeAlias = Added[T] | Updated[T] | Deleted[T]
