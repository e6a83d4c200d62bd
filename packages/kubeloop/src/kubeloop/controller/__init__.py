"""Controllers, managers, leader election and events: the names that most controllers need.

The rest is imported from its module, such as `kubeloop.controller.predicates`.
"""

from kubeloop.controller.controller import Controller
from kubeloop.controller.election.elector import LeaderElector
from kubeloop.controller.election.lease import ElectionConfig
from kubeloop.controller.election.lease_keeper import own_connection
from kubeloop.controller.election.thread import ElectionThread
from kubeloop.controller.events.recorder import EventRecorder
from kubeloop.controller.finalizers import Finalizers
from kubeloop.controller.manager.manager import Manager, run_until_signal
from kubeloop.controller.manager.runnables import Caches, Group
from kubeloop.controller.predicates import (
    all_of,
    any_of,
    generation_changed,
    labels_changed,
    labels_match,
)
from kubeloop.controller.reconcile import Request, Result, TerminalError
from kubeloop.controller.sources import for_owner, map_func
from kubeloop.controller.writes import create_or_update
from kubeloop.http.health import HealthChecks, HealthServer

__all__ = [
    "Caches",
    "Controller",
    "ElectionConfig",
    "ElectionThread",
    "EventRecorder",
    "Finalizers",
    "Group",
    "HealthChecks",
    "HealthServer",
    "LeaderElector",
    "Manager",
    "Request",
    "Result",
    "TerminalError",
    "all_of",
    "any_of",
    "create_or_update",
    "for_owner",
    "generation_changed",
    "labels_changed",
    "labels_match",
    "map_func",
    "own_connection",
    "run_until_signal",
]
