"""Controllers, managers, leader election and events: the names that most controllers need.

The rest is imported from its module, such as `kubeloop.controller.predicates`.
"""

from kubeloop.controller.controller import Controller as Controller
from kubeloop.controller.election.elector import LeaderElector as LeaderElector
from kubeloop.controller.election.lease import ElectionConfig as ElectionConfig
from kubeloop.controller.election.lease_keeper import own_connection as own_connection
from kubeloop.controller.election.thread import ElectionThread as ElectionThread
from kubeloop.controller.events.recorder import EventRecorder as EventRecorder
from kubeloop.controller.finalizers import Finalizers as Finalizers
from kubeloop.controller.manager.manager import Manager as Manager
from kubeloop.controller.manager.manager import run_until_signal as run_until_signal
from kubeloop.controller.manager.runnables import Caches as Caches
from kubeloop.controller.manager.runnables import Group as Group
from kubeloop.controller.predicates import all_of as all_of
from kubeloop.controller.predicates import any_of as any_of
from kubeloop.controller.predicates import generation_changed as generation_changed
from kubeloop.controller.predicates import labels_changed as labels_changed
from kubeloop.controller.predicates import labels_match as labels_match
from kubeloop.controller.reconcile import Request as Request
from kubeloop.controller.reconcile import Result as Result
from kubeloop.controller.reconcile import TerminalError as TerminalError
from kubeloop.controller.sources import for_owner as for_owner
from kubeloop.controller.sources import map_func as map_func
from kubeloop.controller.writes import create_or_update as create_or_update
from kubeloop.http.health import HealthChecks as HealthChecks
from kubeloop.http.health import HealthServer as HealthServer
