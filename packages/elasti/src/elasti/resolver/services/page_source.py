"""The API objects behind waiting pages: templates in ConfigMaps, and why pods do not start."""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable

import msgspec

from elasti.api.types import PageConfigMap
from elasti.logger import get_logger
from elasti.resolver.projections import PodName
from kubeloop.aio.tasks import finish
from kubeloop.client import Client
from kubeloop.client.errors import KubeError
from kubeloop.objects.core import PODS
from kubeloop.objects.meta import SlimMeta

CONFIG_MAPS = "v1/configmaps"
# While a page is shown, templates and pods are read again after this many seconds.
_FRESH = 5.0
_REMEMBERED = 256
_TIMEOUT = 5.0
# A pod's old failure says nothing about the pod of today.
_STALE = 60.0
_CANNOT_START = frozenset(
    ("CrashLoopBackOff", "CreateContainerConfigError", "CreateContainerError", "ErrImageNeverPull",
     "ErrImagePull", "ImagePullBackOff", "InvalidImageName", "RunContainerError")
)  # fmt: skip

_log = get_logger(__name__)


class _ConfigMap(msgspec.Struct, gc=False):
    metadata: SlimMeta
    data: dict[str, str] | None = None


class _Waiting(msgspec.Struct, gc=False):
    reason: str = ""


class _ContainerState(msgspec.Struct, gc=False):
    waiting: _Waiting | None = None


class _ContainerStatus(msgspec.Struct, gc=False):
    state: _ContainerState = msgspec.field(default_factory=_ContainerState)


class _StartingStatus(msgspec.Struct, rename="camel", gc=False):
    container_statuses: tuple[_ContainerStatus, ...] | None = None
    init_container_statuses: tuple[_ContainerStatus, ...] | None = None


class _StartingPod(msgspec.Struct, gc=False):
    metadata: SlimMeta
    status: _StartingStatus = msgspec.field(default_factory=_StartingStatus)


class PageSource:
    """Reads templates and pods for waiting pages.

    Callers never wait: they get the last known value at once, and an old value is read again meanwhile.
    """

    def __init__(self, client: Client) -> None:
        self._client = client
        self._known: OrderedDict[Hashable, str] = OrderedDict()
        self._read_at: dict[Hashable, float] = {}
        self._reading: set[asyncio.Task[None]] = set()

    def template(self, namespace: str, place: PageConfigMap) -> str:
        """Return the HTML of a ConfigMap; empty if it is unusable or not read yet."""
        return self._latest((namespace, place), lambda: self._template(namespace, place))

    def failure(self, pod: PodName) -> str:
        """Return why a pod does not start; empty if no reason is known."""
        read_at, now = self._read_at.get(pod), asyncio.get_running_loop().time()
        known = self._latest(pod, lambda: self._failure(pod))
        return known if read_at is not None and now - read_at < _STALE else ""

    async def aclose(self) -> None:
        """Stop reading."""
        await finish(self._reading)

    def _latest(self, key: Hashable, read: Callable[[], Awaitable[str]]) -> str:
        loop = asyncio.get_running_loop()
        if loop.time() - self._read_at.get(key, -_FRESH) >= _FRESH:
            self._read_at[key] = loop.time()
            self._known.setdefault(key, "")
            while len(self._known) > _REMEMBERED:
                del self._read_at[self._known.popitem(last=False)[0]]
            task = loop.create_task(self._keep(key, read))
            self._reading.add(task)
            task.add_done_callback(self._reading.discard)
        return self._known.get(key, "")

    async def _keep(self, key: Hashable, read: Callable[[], Awaitable[str]]) -> None:
        try:
            self._known[key] = await read()
        except (KubeError, ValueError, msgspec.MsgspecError) as error:
            self._known[key] = ""
            # Not a warning: it repeats, and the ElastiService's condition reports it once.
            _log.info("cannot read an object for a waiting page", object=str(key), error=str(error))

    async def _template(self, namespace: str, place: PageConfigMap) -> str:
        maps = self._client.resource(CONFIG_MAPS, _ConfigMap)
        found = await maps.get(place.name, namespace=namespace, timeout=_TIMEOUT)
        return place.text_in(found.data)

    async def _failure(self, pod: PodName) -> str:
        pods = self._client.resource(PODS, _StartingPod)
        status = (await pods.get(pod.name, namespace=pod.namespace, timeout=_TIMEOUT)).status
        containers = (status.init_container_statuses or ()) + (status.container_statuses or ())
        waiting = (container.state.waiting for container in containers)
        return next((w.reason for w in waiting if w is not None and w.reason in _CANNOT_START), "")
