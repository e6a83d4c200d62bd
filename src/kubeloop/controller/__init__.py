"""Work queues, controllers, managers, leader election, events: what reconciles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubeloop._lazy import lazy_attributes

if TYPE_CHECKING:
    from kubeloop.controller.cached_reader import CachedReader as CachedReader
    from kubeloop.controller.caches import Caches as Caches
    from kubeloop.controller.consistency import ConsistencyGuard as ConsistencyGuard
    from kubeloop.controller.controller import Controller as Controller
    from kubeloop.controller.controller import SyncTimeout as SyncTimeout
    from kubeloop.controller.controller_metrics import ControllerMetrics as ControllerMetrics
    from kubeloop.controller.controller_metrics import Outcome as Outcome
    from kubeloop.controller.delaying import DelayingQueue as DelayingQueue
    from kubeloop.controller.election import Election as Election
    from kubeloop.controller.election import LeaderCallbacks as LeaderCallbacks
    from kubeloop.controller.election import LeaderElector as LeaderElector
    from kubeloop.controller.election_thread import ElectionThread as ElectionThread
    from kubeloop.controller.election_thread import LeaseFactory as LeaseFactory
    from kubeloop.controller.event_correlator import EventCorrelator as EventCorrelator
    from kubeloop.controller.event_series import EventSeries as EventSeries
    from kubeloop.controller.event_sink import CORE_EVENTS as CORE_EVENTS
    from kubeloop.controller.event_sink import SERIES_EVENTS as SERIES_EVENTS
    from kubeloop.controller.event_sink import ApiEventSink as ApiEventSink
    from kubeloop.controller.event_sink import EventSink as EventSink
    from kubeloop.controller.events import EventRecorder as EventRecorder
    from kubeloop.controller.finalizers import FinalizerResult as FinalizerResult
    from kubeloop.controller.finalizers import Finalizers as Finalizers
    from kubeloop.controller.finalizers import add_finalizers as add_finalizers
    from kubeloop.controller.finalizers import remove_finalizers as remove_finalizers
    from kubeloop.controller.health import HealthAnswer as HealthAnswer
    from kubeloop.controller.health import HealthChecks as HealthChecks
    from kubeloop.controller.health_server import HealthServer as HealthServer
    from kubeloop.controller.kind_cache import CacheError as CacheError
    from kubeloop.controller.kind_cache import CacheOptions as CacheOptions
    from kubeloop.controller.lease import ElectionConfig as ElectionConfig
    from kubeloop.controller.lease import ElectionConfigError as ElectionConfigError
    from kubeloop.controller.lease_api import ApiLease as ApiLease
    from kubeloop.controller.lease_api import own_connection as own_connection
    from kubeloop.controller.lease_keeper import LeaseClient as LeaseClient
    from kubeloop.controller.lifecycle import Group as Group
    from kubeloop.controller.manager import GracePeriodExpired as GracePeriodExpired
    from kubeloop.controller.manager import LeaderElectionLost as LeaderElectionLost
    from kubeloop.controller.manager import Manager as Manager
    from kubeloop.controller.mapping import MapFunction as MapFunction
    from kubeloop.controller.mapping import Mapping as Mapping
    from kubeloop.controller.mapping import for_object as for_object
    from kubeloop.controller.mapping import for_owner as for_owner
    from kubeloop.controller.mapping import map_func as map_func
    from kubeloop.controller.occurrences import Reporter as Reporter
    from kubeloop.controller.predicates import Predicate as Predicate
    from kubeloop.controller.predicates import all_of as all_of
    from kubeloop.controller.predicates import always as always
    from kubeloop.controller.predicates import annotations_changed as annotations_changed
    from kubeloop.controller.predicates import any_of as any_of
    from kubeloop.controller.predicates import by_kind as by_kind
    from kubeloop.controller.predicates import generation_changed as generation_changed
    from kubeloop.controller.predicates import labels_changed as labels_changed
    from kubeloop.controller.predicates import labels_match as labels_match
    from kubeloop.controller.predicates import negate as negate
    from kubeloop.controller.predicates import version_changed as version_changed
    from kubeloop.controller.priority_queue import PriorityQueue as PriorityQueue
    from kubeloop.controller.queue_metrics import QueueMetrics as QueueMetrics
    from kubeloop.controller.ratelimited import RateLimitedQueue as RateLimitedQueue
    from kubeloop.controller.ratelimiters import BucketLimiter as BucketLimiter
    from kubeloop.controller.ratelimiters import ExponentialLimiter as ExponentialLimiter
    from kubeloop.controller.ratelimiters import FastSlowLimiter as FastSlowLimiter
    from kubeloop.controller.ratelimiters import MaxOfLimiter as MaxOfLimiter
    from kubeloop.controller.ratelimiters import MaxWaitLimiter as MaxWaitLimiter
    from kubeloop.controller.ratelimiters import RateLimiter as RateLimiter
    from kubeloop.controller.ratelimiters import default_limiter as default_limiter
    from kubeloop.controller.reconcile import Reconcile as Reconcile
    from kubeloop.controller.reconcile import ReconcileTimeout as ReconcileTimeout
    from kubeloop.controller.reconcile import Request as Request
    from kubeloop.controller.reconcile import Result as Result
    from kubeloop.controller.reconcile import TerminalError as TerminalError
    from kubeloop.controller.runnables import Runnable as Runnable
    from kubeloop.controller.signals import run_until_signal as run_until_signal
    from kubeloop.controller.sources import LOW_PRIORITY as LOW_PRIORITY
    from kubeloop.controller.sources import EventSource as EventSource
    from kubeloop.controller.upsert import WriteOutcome as WriteOutcome
    from kubeloop.controller.upsert import create_or_update as create_or_update
    from kubeloop.controller.workqueue import QueueShutDown as QueueShutDown
    from kubeloop.controller.workqueue import WorkQueue as WorkQueue

_EXPORTS = {
    "ApiEventSink": "kubeloop.controller.event_sink",
    "ApiLease": "kubeloop.controller.lease_api",
    "BucketLimiter": "kubeloop.controller.ratelimiters",
    "CORE_EVENTS": "kubeloop.controller.event_sink",
    "CacheError": "kubeloop.controller.kind_cache",
    "CacheOptions": "kubeloop.controller.kind_cache",
    "CachedReader": "kubeloop.controller.cached_reader",
    "Caches": "kubeloop.controller.caches",
    "ConsistencyGuard": "kubeloop.controller.consistency",
    "Controller": "kubeloop.controller.controller",
    "ControllerMetrics": "kubeloop.controller.controller_metrics",
    "DelayingQueue": "kubeloop.controller.delaying",
    "Election": "kubeloop.controller.election",
    "ElectionConfig": "kubeloop.controller.lease",
    "ElectionConfigError": "kubeloop.controller.lease",
    "ElectionThread": "kubeloop.controller.election_thread",
    "EventCorrelator": "kubeloop.controller.event_correlator",
    "EventRecorder": "kubeloop.controller.events",
    "EventSeries": "kubeloop.controller.event_series",
    "EventSink": "kubeloop.controller.event_sink",
    "EventSource": "kubeloop.controller.sources",
    "ExponentialLimiter": "kubeloop.controller.ratelimiters",
    "FastSlowLimiter": "kubeloop.controller.ratelimiters",
    "FinalizerResult": "kubeloop.controller.finalizers",
    "Finalizers": "kubeloop.controller.finalizers",
    "GracePeriodExpired": "kubeloop.controller.manager",
    "Group": "kubeloop.controller.lifecycle",
    "HealthAnswer": "kubeloop.controller.health",
    "HealthChecks": "kubeloop.controller.health",
    "HealthServer": "kubeloop.controller.health_server",
    "LOW_PRIORITY": "kubeloop.controller.sources",
    "LeaderCallbacks": "kubeloop.controller.election",
    "LeaderElectionLost": "kubeloop.controller.manager",
    "LeaderElector": "kubeloop.controller.election",
    "LeaseClient": "kubeloop.controller.lease_keeper",
    "LeaseFactory": "kubeloop.controller.election_thread",
    "Manager": "kubeloop.controller.manager",
    "MapFunction": "kubeloop.controller.mapping",
    "Mapping": "kubeloop.controller.mapping",
    "MaxOfLimiter": "kubeloop.controller.ratelimiters",
    "MaxWaitLimiter": "kubeloop.controller.ratelimiters",
    "Outcome": "kubeloop.controller.controller_metrics",
    "Predicate": "kubeloop.controller.predicates",
    "PriorityQueue": "kubeloop.controller.priority_queue",
    "QueueMetrics": "kubeloop.controller.queue_metrics",
    "QueueShutDown": "kubeloop.controller.workqueue",
    "RateLimitedQueue": "kubeloop.controller.ratelimited",
    "RateLimiter": "kubeloop.controller.ratelimiters",
    "Reconcile": "kubeloop.controller.reconcile",
    "ReconcileTimeout": "kubeloop.controller.reconcile",
    "Reporter": "kubeloop.controller.occurrences",
    "Request": "kubeloop.controller.reconcile",
    "Result": "kubeloop.controller.reconcile",
    "Runnable": "kubeloop.controller.runnables",
    "SERIES_EVENTS": "kubeloop.controller.event_sink",
    "SyncTimeout": "kubeloop.controller.controller",
    "TerminalError": "kubeloop.controller.reconcile",
    "WorkQueue": "kubeloop.controller.workqueue",
    "WriteOutcome": "kubeloop.controller.upsert",
    "add_finalizers": "kubeloop.controller.finalizers",
    "all_of": "kubeloop.controller.predicates",
    "always": "kubeloop.controller.predicates",
    "annotations_changed": "kubeloop.controller.predicates",
    "any_of": "kubeloop.controller.predicates",
    "by_kind": "kubeloop.controller.predicates",
    "create_or_update": "kubeloop.controller.upsert",
    "default_limiter": "kubeloop.controller.ratelimiters",
    "for_object": "kubeloop.controller.mapping",
    "for_owner": "kubeloop.controller.mapping",
    "generation_changed": "kubeloop.controller.predicates",
    "labels_changed": "kubeloop.controller.predicates",
    "labels_match": "kubeloop.controller.predicates",
    "map_func": "kubeloop.controller.mapping",
    "negate": "kubeloop.controller.predicates",
    "own_connection": "kubeloop.controller.lease_api",
    "remove_finalizers": "kubeloop.controller.finalizers",
    "run_until_signal": "kubeloop.controller.signals",
    "version_changed": "kubeloop.controller.predicates",
}

__all__ = list(_EXPORTS)
if not TYPE_CHECKING:
    __getattr__ = lazy_attributes(__name__, _EXPORTS)
