"""Shared informers: one watch, one store, any number of handlers, with client-go's guarantees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubeloop._lazy import lazy_attributes

if TYPE_CHECKING:
    from kubeloop.informer.errors import ListFailed as ListFailed
    from kubeloop.informer.errors import ReflectorError as ReflectorError
    from kubeloop.informer.errors import WatchFailed as WatchFailed
    from kubeloop.informer.factory import SharedInformerFactory as SharedInformerFactory
    from kubeloop.informer.handle import Handle as Handle
    from kubeloop.informer.indexers import NAMESPACE as NAMESPACE
    from kubeloop.informer.indexers import IndexFunction as IndexFunction
    from kubeloop.informer.indexers import UnknownIndex as UnknownIndex
    from kubeloop.informer.intake import Rejected as Rejected
    from kubeloop.informer.intake import Transform as Transform
    from kubeloop.informer.lister import Lister as Lister
    from kubeloop.informer.lister import NamespaceLister as NamespaceLister
    from kubeloop.informer.metrics import InformerMetrics as InformerMetrics
    from kubeloop.informer.metrics import MetricsProvider as MetricsProvider
    from kubeloop.informer.metrics import NoMetrics as NoMetrics
    from kubeloop.informer.mutation_detector import CacheMutated as CacheMutated
    from kubeloop.informer.mutation_detector import MutationDetector as MutationDetector
    from kubeloop.informer.names import InformerNames as InformerNames
    from kubeloop.informer.notifications import Added as Added
    from kubeloop.informer.notifications import Deleted as Deleted
    from kubeloop.informer.notifications import Notification as Notification
    from kubeloop.informer.notifications import Updated as Updated
    from kubeloop.informer.options import ReflectorOptions as ReflectorOptions
    from kubeloop.informer.reflector import Reflector as Reflector
    from kubeloop.informer.selection import Selection as Selection
    from kubeloop.informer.shared_informer import InformerStopped as InformerStopped
    from kubeloop.informer.shared_informer import SharedInformer as SharedInformer
    from kubeloop.informer.shared_informer import State as State
    from kubeloop.informer.source import ListWatch as ListWatch
    from kubeloop.informer.source import WatchStream as WatchStream
    from kubeloop.informer.store import StoreView as StoreView
    from kubeloop.informer.sync import NotSynced as NotSynced
    from kubeloop.informer.sync import SyncGate as SyncGate
    from kubeloop.informer.sync import SyncResult as SyncResult
    from kubeloop.informer.sync import wait_for_gates as wait_for_gates
    from kubeloop.informer.transforms import drop_managed_fields as drop_managed_fields

_EXPORTS = {
    "Added": "kubeloop.informer.notifications",
    "CacheMutated": "kubeloop.informer.mutation_detector",
    "Deleted": "kubeloop.informer.notifications",
    "Handle": "kubeloop.informer.handle",
    "IndexFunction": "kubeloop.informer.indexers",
    "InformerMetrics": "kubeloop.informer.metrics",
    "InformerNames": "kubeloop.informer.names",
    "InformerStopped": "kubeloop.informer.shared_informer",
    "ListFailed": "kubeloop.informer.errors",
    "ListWatch": "kubeloop.informer.source",
    "Lister": "kubeloop.informer.lister",
    "MetricsProvider": "kubeloop.informer.metrics",
    "MutationDetector": "kubeloop.informer.mutation_detector",
    "NAMESPACE": "kubeloop.informer.indexers",
    "NamespaceLister": "kubeloop.informer.lister",
    "NoMetrics": "kubeloop.informer.metrics",
    "NotSynced": "kubeloop.informer.sync",
    "Notification": "kubeloop.informer.notifications",
    "Reflector": "kubeloop.informer.reflector",
    "ReflectorError": "kubeloop.informer.errors",
    "ReflectorOptions": "kubeloop.informer.options",
    "Rejected": "kubeloop.informer.intake",
    "Selection": "kubeloop.informer.selection",
    "SharedInformer": "kubeloop.informer.shared_informer",
    "SharedInformerFactory": "kubeloop.informer.factory",
    "State": "kubeloop.informer.shared_informer",
    "StoreView": "kubeloop.informer.store",
    "SyncGate": "kubeloop.informer.sync",
    "SyncResult": "kubeloop.informer.sync",
    "Transform": "kubeloop.informer.intake",
    "UnknownIndex": "kubeloop.informer.indexers",
    "Updated": "kubeloop.informer.notifications",
    "WatchFailed": "kubeloop.informer.errors",
    "WatchStream": "kubeloop.informer.source",
    "drop_managed_fields": "kubeloop.informer.transforms",
    "wait_for_gates": "kubeloop.informer.sync",
}

__all__ = list(_EXPORTS)
if not TYPE_CHECKING:
    __getattr__ = lazy_attributes(__name__, _EXPORTS)
