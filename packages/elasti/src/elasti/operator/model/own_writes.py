"""Our own writes, until the caches show them.

A reconcile that follows a write closely may find the cache without it, and take its own work for
another writer's. What was written is kept beside the cache, by name, for as long as the cache is
older; versions of one resource can be ordered, which is all that this needs.
"""

from __future__ import annotations

import dataclasses
from typing import Generic, TypeVar

from elasti.api.types import ElastiService
from elasti.operator.model.targets import ScaleView
from kubeloop.objects.core import EndpointSlice
from kubeloop.objects.meta import compare_versions

T = TypeVar("T")


@dataclasses.dataclass(frozen=True, slots=True)
class _Written(Generic[T]):
    version: str
    obj: T | None


class WriteOverlay(Generic[T]):
    """The newest known state of a few named objects: written or cached, whichever is newer."""

    __slots__ = ("_written",)

    def __init__(self) -> None:
        self._written: dict[str, _Written[T]] = {}

    @property
    def is_pending(self) -> bool:
        """Whether there is something that the cache may not show yet."""
        return bool(self._written)

    def wrote(self, name: str, version: str, obj: T) -> None:
        """Remember what the server answered to a write."""
        self._written[name] = _Written(version, obj)

    def deleted(self, name: str, version: str) -> None:
        """Remember that an object of that version was deleted."""
        self._written[name] = _Written(version, None)

    def newest(self, name: str, cached: T | None, version: str) -> T | None:
        """Return the newer of what was written and what the cache has (`version` "" for nothing).

        A cache without the object is taken for older than a write and newer than a delete.
        """
        written = self._written.get(name)
        return cached if written is None or _is_shown(version, written) else written.obj

    def caught_up(self, name: str, version: str) -> None:
        """The cache had this version ("" for no object): a write that it shows is forgotten."""
        written = self._written.get(name)
        if written is not None and _is_shown(version, written):
            del self._written[name]

    def gone(self, name: str, version: str) -> None:
        """An object was deleted, by us or not; `version` is what it was last."""
        written = self._written.get(name)
        if written is not None and (
            written.obj is None or compare_versions(version, written.version) >= 0
        ):
            del self._written[name]


def _is_shown(version: str, written: _Written[T]) -> bool:
    if not version:
        return written.obj is None
    order = compare_versions(version, written.version)
    # A deleted object's cached version is the deleted one itself until the cache sees the deletion.
    return order >= 0 if written.obj is not None else order > 0


_ONLY = "only"


@dataclasses.dataclass(slots=True)
class OwnWrites:
    """Our writes for one ElastiService: to itself, its slices, its target's scale."""

    slices: WriteOverlay[EndpointSlice] = dataclasses.field(default_factory=WriteOverlay)
    _elastiservice: WriteOverlay[ElastiService] = dataclasses.field(default_factory=WriteOverlay)
    _scale: WriteOverlay[ScaleView] = dataclasses.field(default_factory=WriteOverlay)

    def wrote_slice(self, written: EndpointSlice) -> None:
        """Remember a slice."""
        self.slices.wrote(written.metadata.name, written.metadata.resource_version, written)

    def wrote_elastiservice(self, written: ElastiService) -> None:
        """Remember the object itself."""
        self._elastiservice.wrote(_ONLY, written.metadata.resource_version, written)

    def newest_elastiservice(self, cached: ElastiService) -> ElastiService:
        """Return the object after our own writes: else what was just reported would be again."""
        version = cached.metadata.resource_version
        self._elastiservice.caught_up(_ONLY, version)
        return self._elastiservice.newest(_ONLY, cached, version) or cached

    def wrote_scale(self, view: ScaleView) -> None:
        """Remember the target's scale."""
        self._scale.wrote(_ONLY, view.version, view)

    def newest_scale(self, cached: ScaleView) -> ScaleView:
        """Return the target's scale after our own writes."""
        return self._scale.newest(_ONLY, cached, cached.version) or cached

    def scale_caught_up(self, version: str) -> None:
        """The cache had the target at this version."""
        self._scale.caught_up(_ONLY, version)

    def forget_scale(self) -> None:
        """It is about another target."""
        self._scale = WriteOverlay()
