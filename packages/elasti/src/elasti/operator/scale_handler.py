"""Replicas through `/scale`, of any kind that has it.

What is compared is always `spec.replicas`: `status.replicas` still counts the pods of a target that
was just scaled down, and a wake-up judged by it would be lost. Every write carries the
resourceVersion that was read, so nothing is decided by an old reading: a wake-up that meets another
writer reads again; a park that does so gives way.

A Deployment with `strategy: Recreate` is not to have two pods at once; a database with its volume is damaged
by them. Kubernetes keeps that in rollouts only: scaled to zero and back, a new pod starts beside one that is
ending. So such a target stays at zero until its pods are gone.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

import msgspec
import structlog

from elasti.api.names import FIELD_MANAGER
from kubeloop.client.errors import Conflict, Forbidden
from kubeloop.objects.core import PODS, Pod
from kubeloop.objects.meta import SlimMeta

if TYPE_CHECKING:
    from kubeloop.client.client import Client
    from kubeloop.client.discovery import ResourceInfo
    from kubeloop.client.subresource import Subresource

_TRIES = 3
_WAKE_TRIES = 10
# KubeElasti takes these plurals for kinds.
_LEGACY_KINDS = {"deployments": "Deployment", "rollouts": "Rollout", "statefulsets": "StatefulSet"}

PODS_ENDING = "its pods are still ending, and the strategy Recreate lets none start beside them"

_log = structlog.get_logger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class ScaleTarget:
    """The workload that sleeps and wakes."""

    namespace: str
    api_version: str
    kind: str
    name: str

    @classmethod
    def of(cls, namespace: str, api_version: str, kind: str, name: str) -> ScaleTarget:
        """Name a target as users write it; KubeElasti's plurals become kinds."""
        return cls(namespace, api_version, _LEGACY_KINDS.get(kind, kind), name)

    def __str__(self) -> str:
        return f"{self.kind} {self.namespace}/{self.name}"


class _ScaleSpec(msgspec.Struct, gc=False):
    replicas: int = 0


class _ScaleStatus(msgspec.Struct, gc=False):
    replicas: int = 0
    selector: str = ""


class TargetScale(msgspec.Struct, rename="camel", gc=False):
    """An autoscaling/v1 Scale."""

    metadata: SlimMeta
    spec: _ScaleSpec = msgspec.field(default_factory=_ScaleSpec)
    status: _ScaleStatus = msgspec.field(default_factory=_ScaleStatus)
    api_version: str = "autoscaling/v1"
    kind: str = "Scale"


@dataclasses.dataclass(frozen=True, slots=True)
class ScaleView:
    """A target's scale as it was read or written."""

    uid: str
    replicas: int
    version: str


class ScaleUp(enum.Enum):
    """How a wake-up ended. WAITS: pods that a new one may not run beside are still ending."""

    SCALED = "scaled"
    ALREADY_UP = "already up"
    WAITS = "waits"


class ScaleDown(enum.Enum):
    """How a park ended. CHANGED: another writer changed the target since it was observed."""

    PARKED = "parked"
    CHANGED = "changed"


class NotScalable(Exception):
    """The kind exists but has no scale subresource."""


class ScaleHandler:
    """Reads and writes the scale of targets. Raises KubeError, NotScalable."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def read(self, target: ScaleTarget) -> ScaleView:
        """Read the scale, now, from the server."""
        scales = await self._scales(target)
        return _view(await scales.get(target.name, namespace=target.namespace))

    async def scale_up(
        self,
        target: ScaleTarget,
        minimum: int,
        *,
        seen: ScaleView | None = None,
        recreates: bool = False,
    ) -> tuple[ScaleUp, ScaleView]:
        """Ask for at least `minimum` replicas; says from a live reading whether that was so.

        `seen` is what a cache has. Where that is too little, it is written onto at once: the server
        takes the write only if nothing has changed since, so nothing is decided by an old reading, and
        a wake-up is one request instead of two. `recreates`: not from zero while there are pods.
        """
        scales = await self._scales(target)
        scale = None
        if seen is not None and seen.replicas < minimum and not recreates:
            scale = _scale(target, seen)
        for tries_left in reversed(range(_WAKE_TRIES)):
            if scale is None:
                scale = await scales.get(target.name, namespace=target.namespace)
            if scale.spec.replicas >= minimum:
                return ScaleUp.ALREADY_UP, _view(scale)
            if recreates and not scale.spec.replicas and await self._has_pods(target, scale):
                return ScaleUp.WAITS, _view(scale)
            try:
                return ScaleUp.SCALED, await self._write(scales, target, scale, minimum)
            except Conflict:
                if not tries_left:
                    raise
            scale = None
        raise AssertionError  # the last try returns or raises

    async def park(self, target: ScaleTarget, seen: ScaleView) -> tuple[ScaleDown, ScaleView]:
        """Ask for zero replicas if uid and `spec.replicas` are still as they were seen."""
        scales = await self._scales(target)
        for tries_left in reversed(range(_TRIES)):
            scale = await scales.get(target.name, namespace=target.namespace)
            if (scale.metadata.uid, scale.spec.replicas) != (seen.uid, seen.replicas):
                return ScaleDown.CHANGED, _view(scale)
            try:
                return ScaleDown.PARKED, await self._write(scales, target, scale, 0)
            except Conflict:
                if not tries_left:
                    return ScaleDown.CHANGED, _view(scale)
        raise AssertionError  # the last try returns

    async def resource(self, target: ScaleTarget) -> ResourceInfo:
        """Return what serves the target's kind. Raises NoMatch, NotScalable."""
        mapper = self._client.mapper
        info = await mapper.by_kind(target.api_version, target.kind)
        if "scale" not in info.subresources:
            # It may have been added to the definition since.
            await mapper.refresh()
            info = await mapper.by_kind(target.api_version, target.kind)
        if "scale" not in info.subresources:
            raise NotScalable(
                f"{target.api_version} {target.kind} has no scale subresource, so it cannot be"
                " scaled; name a workload such as a Deployment, or add `subresources.scale` to its"
                " CustomResourceDefinition"
            )
        return info

    async def _has_pods(self, target: ScaleTarget, scale: TargetScale) -> bool:
        pods = self._client.resource(PODS, Pod).items(
            selector=scale.status.selector, namespace=target.namespace
        )
        try:
            return any([not pod.is_terminal async for pod in pods])
        except Forbidden as error:
            _log.warning("pods that are ending cannot be seen", target=str(target), why=str(error))
            return False

    async def _scales(self, target: ScaleTarget) -> Subresource[TargetScale]:
        info = await self.resource(target)
        return self._client.resource(info.gvr).subresource("scale", TargetScale)

    async def _write(
        self,
        scales: Subresource[TargetScale],
        target: ScaleTarget,
        scale: TargetScale,
        replicas: int,
    ) -> ScaleView:
        scale.spec.replicas = replicas
        written = await scales.replace(
            scale, namespace=target.namespace, field_manager=FIELD_MANAGER
        )
        return _view(written)


def _scale(target: ScaleTarget, seen: ScaleView) -> TargetScale:
    return TargetScale(
        SlimMeta(target.name, target.namespace, seen.uid, seen.version), _ScaleSpec(seen.replicas)
    )


def _view(scale: TargetScale) -> ScaleView:
    meta = scale.metadata
    return ScaleView(meta.uid, scale.spec.replicas, meta.resource_version)
