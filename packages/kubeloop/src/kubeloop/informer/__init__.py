"""Shared informers: one watch, one store, any number of handlers, with client-go's guarantees."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubeloop._lazy import lazy_attributes

if TYPE_CHECKING:
    from kubeloop.informer.factory import InformerNames as InformerNames
    from kubeloop.informer.factory import Selection as Selection
    from kubeloop.informer.factory import SharedInformerFactory as SharedInformerFactory
    from kubeloop.informer.handlers import Added as Added
    from kubeloop.informer.handlers import Deleted as Deleted
    from kubeloop.informer.handlers import Notification as Notification
    from kubeloop.informer.handlers import Updated as Updated
    from kubeloop.informer.listener import Handle as Handle
    from kubeloop.informer.lister import Lister as Lister
    from kubeloop.informer.lister import NamespaceLister as NamespaceLister
    from kubeloop.informer.metrics import InformerMetrics as InformerMetrics
    from kubeloop.informer.metrics import MetricsProvider as MetricsProvider
    from kubeloop.informer.metrics import NoMetrics as NoMetrics
    from kubeloop.informer.mutation_detector import CacheMutated as CacheMutated
    from kubeloop.informer.mutation_detector import MutationDetector as MutationDetector
    from kubeloop.informer.reflector.events import Rejected as Rejected
    from kubeloop.informer.reflector.events import Transform as Transform
    from kubeloop.informer.reflector.events import drop_managed_fields as drop_managed_fields
    from kubeloop.informer.reflector.reflector import Reflector as Reflector
    from kubeloop.informer.reflector.source import ListFailed as ListFailed
    from kubeloop.informer.reflector.source import ListWatch as ListWatch
    from kubeloop.informer.reflector.source import ReflectorError as ReflectorError
    from kubeloop.informer.reflector.source import ReflectorOptions as ReflectorOptions
    from kubeloop.informer.reflector.source import WatchFailed as WatchFailed
    from kubeloop.informer.reflector.source import WatchStream as WatchStream
    from kubeloop.informer.shared_informer import InformerStopped as InformerStopped
    from kubeloop.informer.shared_informer import SharedInformer as SharedInformer
    from kubeloop.informer.shared_informer import State as State
    from kubeloop.informer.store import NAMESPACE as NAMESPACE
    from kubeloop.informer.store import IndexFunction as IndexFunction
    from kubeloop.informer.store import StoreView as StoreView
    from kubeloop.informer.store import UnknownIndex as UnknownIndex
    from kubeloop.informer.sync import NotSynced as NotSynced
    from kubeloop.informer.sync import SyncGate as SyncGate
    from kubeloop.informer.sync import SyncResult as SyncResult
    from kubeloop.informer.sync import wait_for_gates as wait_for_gates

_EXPORTS = {
    "Added": "kubeloop.informer.handlers",
    "CacheMutated": "kubeloop.informer.mutation_detector",
    "Deleted": "kubeloop.informer.handlers",
    "Handle": "kubeloop.informer.listener",
    "IndexFunction": "kubeloop.informer.store",
    "InformerMetrics": "kubeloop.informer.metrics",
    "InformerNames": "kubeloop.informer.factory",
    "InformerStopped": "kubeloop.informer.shared_informer",
    "ListFailed": "kubeloop.informer.reflector.source",
    "ListWatch": "kubeloop.informer.reflector.source",
    "Lister": "kubeloop.informer.lister",
    "MetricsProvider": "kubeloop.informer.metrics",
    "MutationDetector": "kubeloop.informer.mutation_detector",
    "NAMESPACE": "kubeloop.informer.store",
    "NamespaceLister": "kubeloop.informer.lister",
    "NoMetrics": "kubeloop.informer.metrics",
    "NotSynced": "kubeloop.informer.sync",
    "Notification": "kubeloop.informer.handlers",
    "Reflector": "kubeloop.informer.reflector.reflector",
    "ReflectorError": "kubeloop.informer.reflector.source",
    "ReflectorOptions": "kubeloop.informer.reflector.source",
    "Rejected": "kubeloop.informer.reflector.events",
    "Selection": "kubeloop.informer.factory",
    "SharedInformer": "kubeloop.informer.shared_informer",
    "SharedInformerFactory": "kubeloop.informer.factory",
    "State": "kubeloop.informer.shared_informer",
    "StoreView": "kubeloop.informer.store",
    "SyncGate": "kubeloop.informer.sync",
    "SyncResult": "kubeloop.informer.sync",
    "Transform": "kubeloop.informer.reflector.events",
    "UnknownIndex": "kubeloop.informer.store",
    "Updated": "kubeloop.informer.handlers",
    "WatchFailed": "kubeloop.informer.reflector.source",
    "WatchStream": "kubeloop.informer.reflector.source",
    "drop_managed_fields": "kubeloop.informer.reflector.events",
    "wait_for_gates": "kubeloop.informer.sync",
}

__all__ = list(_EXPORTS)
if not TYPE_CHECKING:
    __getattr__ = lazy_attributes(__name__, _EXPORTS)
