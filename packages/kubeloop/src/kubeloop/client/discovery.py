"""Discovery: which resources a server offers.

Two requests where the server has aggregated discovery (all since 1.26), one for every group and
version besides if it has not. A group whose own server is down is reported among the failures
and hides nothing else. Nothing is cached here; the mapper does that.

The documents have two generations: the aggregated `APIGroupDiscoveryList` (v2 and v2beta1), which
has everything in one document, and the older `APIVersions`, `APIGroupList` and `APIResourceList`,
one document for every group and version. `parse_root` and `parse_resources` are pure.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import TypeVar

import msgspec

from kubeloop.aio.tasks import parallelize_until
from kubeloop.client import request as requests
from kubeloop.client.errors import Forbidden, KubeError, NotFound
from kubeloop.client.pipeline import RequestPipeline, decode
from kubeloop.objects.gvk import GroupVersion, GroupVersionKind, GroupVersionResource

S = TypeVar("S")

AGGREGATED = ",".join(
    [
        "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList",
        "application/json;g=apidiscovery.k8s.io;v=v2beta1;as=APIGroupDiscoveryList",
        "application/json",
    ]
)


_CONCURRENCY = 10


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResourceInfo:
    """One resource that a server offers. `subresources` are names such as `status`, `scale`."""

    gvr: GroupVersionResource
    kind: str
    namespaced: bool
    verbs: frozenset[str] = frozenset()
    short_names: tuple[str, ...] = ()
    singular: str = ""
    categories: tuple[str, ...] = ()
    subresources: frozenset[str] = frozenset()

    @property
    def gvk(self) -> GroupVersionKind:
        """Group, version and kind."""
        return GroupVersionKind(self.gvr.group, self.gvr.version, self.kind)

    @property
    def full_name(self) -> str:
        """`plural.group`, or the plural alone in the core group."""
        group = self.gvr.group
        return f"{self.gvr.resource}.{group}" if group else self.gvr.resource

    def __str__(self) -> str:
        return f"{self.full_name} ({self.gvr.api_version}, {self.kind})"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Discovered:
    """All that a server offers, in its own order: groups by importance, preferred versions first.

    `failures` are the groups' versions that could not be read or are known to be out of date, with
    the reason; all others are complete.
    """

    versions: Mapping[str, tuple[str, ...]]
    resources: tuple[ResourceInfo, ...]
    failures: Mapping[GroupVersion, str] = dataclasses.field(default_factory=dict)

    def joined(self, other: Discovered) -> Discovered:
        """Return both together."""
        return Discovered(
            versions={**self.versions, **other.versions},
            resources=self.resources + other.resources,
            failures={**self.failures, **other.failures},
        )


NOTHING = Discovered(versions={}, resources=())


class _Kind(msgspec.Struct, rename="camel"):
    group: str = ""
    version: str = ""
    kind: str = ""


class _AggregatedSub(msgspec.Struct, rename="camel"):
    subresource: str


class _AggregatedResource(msgspec.Struct, rename="camel"):
    resource: str
    response_kind: _Kind | None = None
    scope: str = ""
    singular_resource: str = ""
    verbs: list[str] | None = None
    short_names: list[str] | None = None
    categories: list[str] | None = None
    subresources: list[_AggregatedSub] | None = None


class _AggregatedVersion(msgspec.Struct, rename="camel"):
    version: str
    resources: list[_AggregatedResource] | None = None
    freshness: str = ""


class _Name(msgspec.Struct):
    name: str = ""


class _AggregatedGroup(msgspec.Struct, rename="camel"):
    metadata: _Name = msgspec.field(default_factory=_Name)
    versions: list[_AggregatedVersion] | None = None


class _AggregatedList(msgspec.Struct, rename="camel"):
    items: list[_AggregatedGroup] | None = None


class _GroupVersionItem(msgspec.Struct, rename="camel"):
    version: str


class _Group(msgspec.Struct, rename="camel"):
    name: str
    versions: list[_GroupVersionItem] | None = None
    preferred_version: _GroupVersionItem | None = None


class _RootDocument(msgspec.Struct, rename="camel"):
    """Whatever `/api` or `/apis` answers; `kind` tells which of the fields counts."""

    kind: str = ""
    versions: list[str] | None = None
    groups: list[_Group] | None = None


class _Resource(msgspec.Struct, rename="camel"):
    name: str
    kind: str = ""
    namespaced: bool = False
    singular_name: str = ""
    verbs: list[str] | None = None
    short_names: list[str] | None = None
    categories: list[str] | None = None


class _ResourceList(msgspec.Struct, rename="camel"):
    resources: list[_Resource] | None = None


def parse_root(body: bytes) -> Discovered | dict[str, tuple[str, ...]]:
    """Read the answer of `/api` or `/apis`.

    An aggregated document gives everything; an older one only the versions of each group, the
    preferred one first, whose resources are documents of their own. Raises msgspec's errors.
    """
    root = msgspec.json.decode(body, type=_RootDocument)
    if root.kind == "APIGroupDiscoveryList":
        return _aggregated(msgspec.json.decode(body, type=_AggregatedList))
    if root.kind == "APIVersions":
        return {"": tuple(root.versions or ())}
    if root.kind == "APIGroupList":
        return {group.name: _preferred_first(group) for group in root.groups or ()}
    raise msgspec.ValidationError(f"kind {root.kind!r} is not a discovery document")


def parse_resources(body: bytes, group_version: GroupVersion) -> tuple[ResourceInfo, ...]:
    """Read the resources of one group's version. Raises msgspec's errors."""
    listed = msgspec.json.decode(body, type=_ResourceList).resources or []
    parts = [item.name.partition("/") for item in listed]
    return tuple(
        ResourceInfo(
            gvr=GroupVersionResource(*group_version, item.name),
            kind=item.kind,
            namespaced=item.namespaced,
            verbs=frozenset(item.verbs or ()),
            short_names=tuple(item.short_names or ()),
            singular=item.singular_name or item.kind.lower(),
            categories=tuple(item.categories or ()),
            subresources=frozenset(sub for name, _, sub in parts if sub and name == item.name),
        )
        for item in listed
        if "/" not in item.name
    )


def _aggregated(document: _AggregatedList) -> Discovered:
    groups = {group.metadata.name: group.versions or [] for group in document.items or ()}
    stale = {
        GroupVersion(name, version.version): "its server did not answer; what is known may be old"
        for name, versions in groups.items()
        for version in versions
        if version.freshness == "Stale"
    }
    return Discovered(
        versions={name: tuple(v.version for v in versions) for name, versions in groups.items()},
        resources=tuple(_aggregated_resources(groups)),
        failures=stale,
    )


def _aggregated_resources(
    groups: Mapping[str, Iterable[_AggregatedVersion]],
) -> Iterator[ResourceInfo]:
    for group, versions in groups.items():
        for version in versions:
            for item in version.resources or ():
                # If only subresources are served, the whole has no kind.
                if item.response_kind is not None and item.response_kind.kind:
                    yield _aggregated_resource(group, version.version, item)


def _aggregated_resource(group: str, version: str, item: _AggregatedResource) -> ResourceInfo:
    kind = item.response_kind.kind if item.response_kind else ""
    return ResourceInfo(
        gvr=GroupVersionResource(group, version, item.resource),
        kind=kind,
        namespaced=item.scope == "Namespaced",
        verbs=frozenset(item.verbs or ()),
        short_names=tuple(item.short_names or ()),
        singular=item.singular_resource or kind.lower(),
        categories=tuple(item.categories or ()),
        subresources=frozenset(sub.subresource for sub in item.subresources or ()),
    )


def _preferred_first(group: _Group) -> tuple[str, ...]:
    versions = [item.version for item in group.versions or ()]
    preferred = group.preferred_version.version if group.preferred_version else ""
    return tuple(sorted(versions, key=lambda version: version != preferred))


class DiscoveryClient:
    """Reads the discovery documents of one server."""

    def __init__(self, pipeline: RequestPipeline) -> None:
        self._pipeline = pipeline

    async def fetch(self) -> Discovered:
        """Read everything again. Raises `KubeError` if not even the roots can be read."""
        core, core_error = await self._root("/api")
        groups, groups_error = await self._root("/apis")
        if core_error is not None and groups_error is not None:
            raise core_error
        return core.joined(groups)

    async def server_version(self) -> str:
        """Return the server's own version, such as `v1.36.4`."""
        response = await self._pipeline.send(requests.get("/version"))
        return decode(response, msgspec.json.Decoder(_Version).decode).git_version

    async def _root(self, path: str) -> tuple[Discovered, KubeError | None]:
        """Read one root. An aggregated API server may have only one of the two."""
        try:
            response = await self._pipeline.send(requests.get(path, accept=AGGREGATED))
        except (NotFound, Forbidden) as error:
            return NOTHING, error
        found = decode(response, parse_root)
        if isinstance(found, Discovered):
            return found, None
        return await self._each_version(found), None

    async def _each_version(self, versions: Mapping[str, tuple[str, ...]]) -> Discovered:
        wanted = [GroupVersion(group, v) for group, listed in versions.items() for v in listed]
        found: dict[GroupVersion, tuple[ResourceInfo, ...]] = {}
        failures: dict[GroupVersion, str] = {}

        async def read(index: int) -> None:
            group_version = wanted[index]
            try:
                found[group_version] = await self._resources(group_version)
            except KubeError as error:
                failures[group_version] = str(error)

        await parallelize_until(_CONCURRENCY, len(wanted), read)
        ordered = [found.get(group_version, ()) for group_version in wanted]
        return Discovered(
            versions=versions,
            resources=tuple(info for infos in ordered for info in infos),
            failures=failures,
        )

    async def _resources(self, group_version: GroupVersion) -> tuple[ResourceInfo, ...]:
        response = await self._pipeline.send(requests.get(requests.group_path(group_version)))
        return decode(response, lambda body: parse_resources(body, group_version))


class _Version(msgspec.Struct, rename="camel"):
    git_version: str = ""
