"""Replicas through `/scale`, of any kind that has it.

What is compared is always `spec.replicas`: `status.replicas` still counts the pods of a target that
was just scaled down, and a wake-up judged by it would be lost. Every write carries the
resourceVersion that was read, so nothing is decided by an old reading: a wake-up that meets another
writer reads again; a park that does so gives way.

While a target sleeps, `spec.replicas` is ours: zero is written by server-side apply, with force. An update of zero
would erase the field's owner, since a Scale leaves zero out. A wake-up is an ordinary update, as an HPA makes: it
replaces our Apply entry. The field is never left out of an apply, since absent means zero here.

A Deployment with `strategy: Recreate` is not to have two pods at once; a database with its volume is damaged
by them. Kubernetes keeps that in rollouts only: scaled to zero and back, a new pod starts beside one that is
ending. So such a target stays at zero until its pods are gone.
"""

from __future__ import annotations

import enum

import msgspec

from elasti.api.names import FIELD_MANAGER
from elasti.logger import get_logger
from elasti.operator.model.targets import ScaleTarget, ScaleView
from kubeloop.client.client import Client
from kubeloop.client.discovery import ResourceInfo
from kubeloop.client.errors import ApiError, Conflict, Forbidden
from kubeloop.client.subresource import Subresource
from kubeloop.objects.core import PODS, Pod
from kubeloop.objects.meta import SlimMeta
from kubeloop.objects.patches import ApplyPatch

# The refusals of a server, or a role, that does not let a scale be applied; an update may still pass.
_NOT_APPLICABLE = frozenset({400, 403, 405, 415, 422, 500, 501})
_TRIES = 3
_WAKE_TRIES = 10

_log = get_logger(__name__)


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


class _FieldsEntry(msgspec.Struct, gc=False):
    manager: str = ""
    operation: str = ""
    subresource: str = ""


class _ManagedMeta(SlimMeta, rename="camel", gc=False):
    managed_fields: tuple[_FieldsEntry, ...] | None = None


class ManagedObject(msgspec.Struct, gc=False):
    """An object of any kind, with who owns fields of it."""

    metadata: _ManagedMeta


_OURS = _FieldsEntry(FIELD_MANAGER, "Apply", "scale")


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
        self._not_applied: set[tuple[str, str, str]] = set()

    async def read(self, target: ScaleTarget) -> ScaleView:
        """Read the scale, now, from the server."""
        scales = await self._scales(target)
        return _view(await scales.get(target.name, namespace=target.namespace))

    async def selector(self, target: ScaleTarget) -> str:
        """Return the selector of the target's pods, from the server."""
        scales = await self._scales(target)
        return (await scales.get(target.name, namespace=target.namespace)).status.selector

    async def scale_up(
        self,
        target: ScaleTarget,
        minimum: int,
        *,
        seen: ScaleView | None = None,
        recreates: bool = False,
    ) -> tuple[ScaleUp, ScaleView]:
        """Ask for at least `minimum` replicas; says from a live reading whether that was so.

        `seen` is the cached view. If it shows too few replicas, the write is based on it at once: the server
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

    async def park(
        self, target: ScaleTarget, seen: ScaleView, replicas: int = 0
    ) -> tuple[ScaleDown, ScaleView]:
        """Ask for fewer replicas, or zero, if uid and `spec.replicas` are still as they were seen."""
        scales = await self._scales(target)
        for tries_left in reversed(range(_TRIES)):
            scale = await scales.get(target.name, namespace=target.namespace)
            if (scale.metadata.uid, scale.spec.replicas) != (seen.uid, seen.replicas):
                return ScaleDown.CHANGED, _view(scale)
            try:
                version = scale.metadata.resource_version
                zero = None if replicas else await self._own_zero(scales, target, version)
                written = zero or await self._write(scales, target, scale, replicas)
                return ScaleDown.PARKED, written
            except Conflict:
                if not tries_left:
                    return ScaleDown.CHANGED, _view(scale)
        raise AssertionError  # the last try returns

    async def take(self, target: ScaleTarget, seen: ScaleView) -> ScaleView | None:
        """Own the replicas of a target that was seen at zero; None if its kind's scale cannot be applied.

        Writes nothing if they are ours already. Raises Conflict if it has changed since.
        """
        objects = self._client.resource((await self.resource(target)).gvr, ManagedObject)
        found = await objects.get(target.name, namespace=target.namespace)
        # A writer of another value takes the entry away.
        if _OURS in (found.metadata.managed_fields or ()):
            return seen
        return await self._own_zero(await self._scales(target), target, seen.version)

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
            _log.warning("cannot list terminating pods", target=str(target), error=str(error))
            return False

    async def _scales(self, target: ScaleTarget) -> Subresource[TargetScale]:
        info = await self.resource(target)
        return self._client.resource(info.gvr).subresource("scale", TargetScale)

    async def _own_zero(
        self, scales: Subresource[TargetScale], target: ScaleTarget, version: str
    ) -> ScaleView | None:
        """Apply zero replicas onto one version; None if that is refused for a reason that an update may not meet."""
        content = {
            "apiVersion": "autoscaling/v1",
            "kind": "Scale",
            "metadata": {"name": target.name, "resourceVersion": version},
            "spec": {"replicas": 0},
        }
        try:
            return _view(
                await scales.patch(
                    target.name,
                    ApplyPatch(content),
                    namespace=target.namespace,
                    field_manager=FIELD_MANAGER,
                    force=True,
                )
            )
        except ApiError as error:
            if error.code not in _NOT_APPLICABLE:
                raise
            key = (target.namespace, target.api_version, target.kind)
            if key not in self._not_applied:
                self._not_applied.add(key)
                _log.warning(
                    "scale cannot be applied; replicas have no owner during sleep",
                    namespace=target.namespace,
                    kind=target.kind,
                    error=str(error),
                )
            return None

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
