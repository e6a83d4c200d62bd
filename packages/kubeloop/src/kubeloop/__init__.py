"""kubeloop: Kubernetes clients, shared informers and controllers for asyncio.

Importing the package loads nothing heavy: the names below are resolved when they are first used.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kubeloop._lazy import homes_of, lazy_attributes
from kubeloop._version import __version__ as __version__

if TYPE_CHECKING:
    from kubeloop.client.client import Client as Client
    from kubeloop.client.config.client_config import ClientConfig as ClientConfig
    from kubeloop.client.errors import ApiError as ApiError
    from kubeloop.client.errors import KubeError as KubeError
    from kubeloop.client.resource import Resource as Resource
    from kubeloop.informer.factory import SharedInformerFactory as SharedInformerFactory
    from kubeloop.informer.shared_informer import SharedInformer as SharedInformer
    from kubeloop.objects.gvk import GroupVersionKind as GroupVersionKind
    from kubeloop.objects.gvk import GroupVersionResource as GroupVersionResource
    from kubeloop.objects.list_watch import ListOptions as ListOptions
    from kubeloop.objects.list_watch import WatchOptions as WatchOptions
    from kubeloop.objects.patches import ApplyPatch as ApplyPatch
    from kubeloop.objects.patches import JsonPatch as JsonPatch
    from kubeloop.objects.patches import MergePatch as MergePatch
    from kubeloop.objects.patches import StrategicMergePatch as StrategicMergePatch
    from kubeloop.objects.selectors import LabelSelector as LabelSelector
    from kubeloop.operator.operator import Context as Context
    from kubeloop.operator.operator import Operator as Operator
    from kubeloop.operator.program import run as run

_EXPORTS = homes_of(
    {
        "kubeloop.client.client": "Client",
        "kubeloop.client.config.client_config": "ClientConfig",
        "kubeloop.client.errors": "ApiError KubeError",
        "kubeloop.client.resource": "Resource",
        "kubeloop.informer.factory": "SharedInformerFactory",
        "kubeloop.informer.shared_informer": "SharedInformer",
        "kubeloop.objects.gvk": "GroupVersionKind GroupVersionResource",
        "kubeloop.objects.list_watch": "ListOptions WatchOptions",
        "kubeloop.objects.patches": "ApplyPatch JsonPatch MergePatch StrategicMergePatch",
        "kubeloop.objects.selectors": "LabelSelector",
        "kubeloop.operator.operator": "Context Operator",
        "kubeloop.operator.program": "run",
    }
)

if not TYPE_CHECKING:
    __getattr__ = lazy_attributes(__name__, _EXPORTS)
