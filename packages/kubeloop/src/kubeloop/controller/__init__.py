"""Work queues, controllers, managers, leader election, events: what reconciles."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubeloop._lazy import lazy_attributes

if TYPE_CHECKING:
    from kubeloop.controller.cached_reader import CachedReader as CachedReader
    from kubeloop.controller.cached_reader import CacheError as CacheError
    from kubeloop.controller.cached_reader import CacheOptions as CacheOptions
    from kubeloop.controller.controller import Controller as Controller
    from kubeloop.controller.controller import SyncTimeout as SyncTimeout
    from kubeloop.controller.election.elector import Election as Election
    from kubeloop.controller.election.elector import LeaderCallbacks as LeaderCallbacks
    from kubeloop.controller.election.elector import LeaderElector as LeaderElector
    from kubeloop.controller.election.lease import ElectionConfig as ElectionConfig
    from kubeloop.controller.election.lease import ElectionConfigError as ElectionConfigError
    from kubeloop.controller.election.lease_keeper import ApiLease as ApiLease
    from kubeloop.controller.election.lease_keeper import LeaseClient as LeaseClient
    from kubeloop.controller.election.lease_keeper import own_connection as own_connection
    from kubeloop.controller.election.thread import ElectionThread as ElectionThread
    from kubeloop.controller.election.thread import LeaseFactory as LeaseFactory
    from kubeloop.controller.events.correlators import EventCorrelator as EventCorrelator
    from kubeloop.controller.events.correlators import EventSeries as EventSeries
    from kubeloop.controller.events.event_types import Reporter as Reporter
    from kubeloop.controller.events.recorder import CORE_EVENTS as CORE_EVENTS
    from kubeloop.controller.events.recorder import SERIES_EVENTS as SERIES_EVENTS
    from kubeloop.controller.events.recorder import ApiEventSink as ApiEventSink
    from kubeloop.controller.events.recorder import EventRecorder as EventRecorder
    from kubeloop.controller.events.recorder import EventSink as EventSink
    from kubeloop.controller.finalizers import FinalizerResult as FinalizerResult
    from kubeloop.controller.finalizers import Finalizers as Finalizers
    from kubeloop.controller.finalizers import add_finalizers as add_finalizers
    from kubeloop.controller.finalizers import remove_finalizers as remove_finalizers
    from kubeloop.controller.manager.manager import GracePeriodExpired as GracePeriodExpired
    from kubeloop.controller.manager.manager import LeaderElectionLost as LeaderElectionLost
    from kubeloop.controller.manager.manager import Manager as Manager
    from kubeloop.controller.manager.manager import run_until_signal as run_until_signal
    from kubeloop.controller.manager.runnables import Caches as Caches
    from kubeloop.controller.manager.runnables import Group as Group
    from kubeloop.controller.manager.runnables import Runnable as Runnable
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
    from kubeloop.controller.queue.metrics import QueueMetrics as QueueMetrics
    from kubeloop.controller.queue.priority_queue import DelayingQueue as DelayingQueue
    from kubeloop.controller.queue.priority_queue import PriorityQueue as PriorityQueue
    from kubeloop.controller.queue.priority_queue import RateLimitedQueue as RateLimitedQueue
    from kubeloop.controller.queue.ratelimiters import BucketLimiter as BucketLimiter
    from kubeloop.controller.queue.ratelimiters import ExponentialLimiter as ExponentialLimiter
    from kubeloop.controller.queue.ratelimiters import FastSlowLimiter as FastSlowLimiter
    from kubeloop.controller.queue.ratelimiters import MaxOfLimiter as MaxOfLimiter
    from kubeloop.controller.queue.ratelimiters import MaxWaitLimiter as MaxWaitLimiter
    from kubeloop.controller.queue.ratelimiters import RateLimiter as RateLimiter
    from kubeloop.controller.queue.ratelimiters import default_limiter as default_limiter
    from kubeloop.controller.queue.workqueue import QueueShutDown as QueueShutDown
    from kubeloop.controller.queue.workqueue import WorkQueue as WorkQueue
    from kubeloop.controller.reconcile import ControllerMetrics as ControllerMetrics
    from kubeloop.controller.reconcile import Outcome as Outcome
    from kubeloop.controller.reconcile import Reconcile as Reconcile
    from kubeloop.controller.reconcile import ReconcileTimeout as ReconcileTimeout
    from kubeloop.controller.reconcile import Request as Request
    from kubeloop.controller.reconcile import Result as Result
    from kubeloop.controller.reconcile import TerminalError as TerminalError
    from kubeloop.controller.sources import LOW_PRIORITY as LOW_PRIORITY
    from kubeloop.controller.sources import EventSource as EventSource
    from kubeloop.controller.sources import MapFunction as MapFunction
    from kubeloop.controller.sources import Mapping as Mapping
    from kubeloop.controller.sources import for_object as for_object
    from kubeloop.controller.sources import for_owner as for_owner
    from kubeloop.controller.sources import map_func as map_func
    from kubeloop.controller.writes import ConsistencyGuard as ConsistencyGuard
    from kubeloop.controller.writes import WriteOutcome as WriteOutcome
    from kubeloop.controller.writes import create_or_update as create_or_update
    from kubeloop.http.health import HealthAnswer as HealthAnswer
    from kubeloop.http.health import HealthChecks as HealthChecks
    from kubeloop.http.health import HealthServer as HealthServer

_EXPORTS = {
    "ApiEventSink": "kubeloop.controller.events.recorder",
    "ApiLease": "kubeloop.controller.election.lease_keeper",
    "BucketLimiter": "kubeloop.controller.queue.ratelimiters",
    "CORE_EVENTS": "kubeloop.controller.events.recorder",
    "CacheError": "kubeloop.controller.cached_reader",
    "CacheOptions": "kubeloop.controller.cached_reader",
    "CachedReader": "kubeloop.controller.cached_reader",
    "Caches": "kubeloop.controller.manager.runnables",
    "ConsistencyGuard": "kubeloop.controller.writes",
    "Controller": "kubeloop.controller.controller",
    "ControllerMetrics": "kubeloop.controller.reconcile",
    "DelayingQueue": "kubeloop.controller.queue.priority_queue",
    "Election": "kubeloop.controller.election.elector",
    "ElectionConfig": "kubeloop.controller.election.lease",
    "ElectionConfigError": "kubeloop.controller.election.lease",
    "ElectionThread": "kubeloop.controller.election.thread",
    "EventCorrelator": "kubeloop.controller.events.correlators",
    "EventRecorder": "kubeloop.controller.events.recorder",
    "EventSeries": "kubeloop.controller.events.correlators",
    "EventSink": "kubeloop.controller.events.recorder",
    "EventSource": "kubeloop.controller.sources",
    "ExponentialLimiter": "kubeloop.controller.queue.ratelimiters",
    "FastSlowLimiter": "kubeloop.controller.queue.ratelimiters",
    "FinalizerResult": "kubeloop.controller.finalizers",
    "Finalizers": "kubeloop.controller.finalizers",
    "GracePeriodExpired": "kubeloop.controller.manager.manager",
    "Group": "kubeloop.controller.manager.runnables",
    "HealthAnswer": "kubeloop.http.health",
    "HealthChecks": "kubeloop.http.health",
    "HealthServer": "kubeloop.http.health",
    "LOW_PRIORITY": "kubeloop.controller.sources",
    "LeaderCallbacks": "kubeloop.controller.election.elector",
    "LeaderElectionLost": "kubeloop.controller.manager.manager",
    "LeaderElector": "kubeloop.controller.election.elector",
    "LeaseClient": "kubeloop.controller.election.lease_keeper",
    "LeaseFactory": "kubeloop.controller.election.thread",
    "Manager": "kubeloop.controller.manager.manager",
    "MapFunction": "kubeloop.controller.sources",
    "Mapping": "kubeloop.controller.sources",
    "MaxOfLimiter": "kubeloop.controller.queue.ratelimiters",
    "MaxWaitLimiter": "kubeloop.controller.queue.ratelimiters",
    "Outcome": "kubeloop.controller.reconcile",
    "Predicate": "kubeloop.controller.predicates",
    "PriorityQueue": "kubeloop.controller.queue.priority_queue",
    "QueueMetrics": "kubeloop.controller.queue.metrics",
    "QueueShutDown": "kubeloop.controller.queue.workqueue",
    "RateLimitedQueue": "kubeloop.controller.queue.priority_queue",
    "RateLimiter": "kubeloop.controller.queue.ratelimiters",
    "Reconcile": "kubeloop.controller.reconcile",
    "ReconcileTimeout": "kubeloop.controller.reconcile",
    "Reporter": "kubeloop.controller.events.event_types",
    "Request": "kubeloop.controller.reconcile",
    "Result": "kubeloop.controller.reconcile",
    "Runnable": "kubeloop.controller.manager.runnables",
    "SERIES_EVENTS": "kubeloop.controller.events.recorder",
    "SyncTimeout": "kubeloop.controller.controller",
    "TerminalError": "kubeloop.controller.reconcile",
    "WorkQueue": "kubeloop.controller.queue.workqueue",
    "WriteOutcome": "kubeloop.controller.writes",
    "add_finalizers": "kubeloop.controller.finalizers",
    "all_of": "kubeloop.controller.predicates",
    "always": "kubeloop.controller.predicates",
    "annotations_changed": "kubeloop.controller.predicates",
    "any_of": "kubeloop.controller.predicates",
    "by_kind": "kubeloop.controller.predicates",
    "create_or_update": "kubeloop.controller.writes",
    "default_limiter": "kubeloop.controller.queue.ratelimiters",
    "for_object": "kubeloop.controller.sources",
    "for_owner": "kubeloop.controller.sources",
    "generation_changed": "kubeloop.controller.predicates",
    "labels_changed": "kubeloop.controller.predicates",
    "labels_match": "kubeloop.controller.predicates",
    "map_func": "kubeloop.controller.sources",
    "negate": "kubeloop.controller.predicates",
    "own_connection": "kubeloop.controller.election.lease_keeper",
    "remove_finalizers": "kubeloop.controller.finalizers",
    "run_until_signal": "kubeloop.controller.manager.manager",
    "version_changed": "kubeloop.controller.predicates",
}

__all__ = list(_EXPORTS)
if not TYPE_CHECKING:
    __getattr__ = lazy_attributes(__name__, _EXPORTS)
