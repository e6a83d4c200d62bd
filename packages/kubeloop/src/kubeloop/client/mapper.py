"""The REST mapper: kinds and names to resources, cached between questions.

The first question discovers; later ones are answered from the cache. A miss may only mean that a
definition was installed since, so it discovers once more, but at most once in a few seconds, and
concurrent callers share one run. `invalidate` empties the cache.

`ResourceIndex` answers for one discovery, and is pure. A resource may be asked for by kind and API
version, or by any of the names that people type: plural, singular, short name or kind, alone
(`deploy`), with the group (`deployments.apps`) or with version and group (`deployments.v1.apps`).
Where several groups match a name, an exact plural goes before a singular and that before a short
name, and the core group before all others; what is still undecided is an error that lists the
choices. Within a group the preferred version wins.
"""

from __future__ import annotations

import asyncio
import difflib
from typing import TYPE_CHECKING, Protocol, TypeVar

from kubeloop.aio.tasks import SingleFlight
from kubeloop.client.errors import AmbiguousMatch, NoMatch

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from kubeloop.client.discovery import Discovered, ResourceInfo


_NEAR = 5


R = TypeVar("R")
_SECONDS_BETWEEN = 5.0


class ResourceIndex:
    """Answers questions about one `Discovered`."""

    def __init__(self, discovered: Discovered) -> None:
        self._resources = discovered.resources
        self._versions = discovered.versions
        self._failures = discovered.failures
        self._by_kind: dict[str, list[ResourceInfo]] = {}
        self._names: tuple[dict[str, list[ResourceInfo]], ...] = ({}, {}, {})
        for info in discovered.resources:
            self._add(info)

    def by_kind(self, api_version: str, kind: str) -> ResourceInfo:
        """Return the resource of a kind. Raises `NoMatch`.

        An empty `api_version` looks in every group, as `resolve` does; a group alone (`apps`,
        without a version) takes its preferred version.
        """
        found = self._by_kind.get(kind, [])
        if not api_version:
            return self._single(found, kind)
        exact = [info for info in found if info.gvr.api_version == api_version]
        if exact:
            return _whole(exact)
        in_group = [info for info in found if info.gvr.group == api_version]
        if in_group:
            return self._preferred(in_group)
        raise self._no_kind(api_version, kind)

    def resolve(self, name: str) -> ResourceInfo:
        """Return the resource that a name means. Raises `NoMatch` or `AmbiguousMatch`."""
        for plain, group, version in _readings(name):
            found = [
                info
                for info in self._named(plain)
                if (group is None or info.gvr.group == group)
                and (version is None or info.gvr.version == version)
            ]
            if found:
                return self._single(found, name)
        raise self._no_name(name)

    @property
    def resources(self) -> tuple[ResourceInfo, ...]:
        """All resources, in the server's order."""
        return self._resources

    def _add(self, info: ResourceInfo) -> None:
        self._by_kind.setdefault(info.kind, []).append(info)
        plurals, singulars, shorts = self._names
        plurals.setdefault(info.gvr.resource, []).append(info)
        for name in {info.singular, info.kind.lower()} - {info.gvr.resource, ""}:
            singulars.setdefault(name, []).append(info)
        for name in info.short_names:
            shorts.setdefault(name, []).append(info)

    def _named(self, name: str) -> Sequence[ResourceInfo]:
        wanted = name.lower()
        return next((table[wanted] for table in self._names if wanted in table), ())

    def _single(self, found: Sequence[ResourceInfo], asked: str) -> ResourceInfo:
        groups: dict[str, list[ResourceInfo]] = {}
        for info in found:
            groups.setdefault(info.gvr.group, []).append(info)
        if not groups:
            raise self._no_name(asked)
        if len(groups) > 1 and "" not in groups:
            choices = ", ".join(sorted({info.full_name for info in found}))
            raise AmbiguousMatch(
                f"{asked!r} is served by several groups: say which, as one of {choices}"
            )
        return self._preferred(groups.get("") or found)

    def _preferred(self, found: Sequence[ResourceInfo]) -> ResourceInfo:
        """Return the one at the version that the server puts first."""
        order = self._versions.get(found[0].gvr.group, ())
        ranks: Mapping[str, int] = {version: rank for rank, version in enumerate(order)}
        first = min(found, key=lambda info: ranks.get(info.gvr.version, len(ranks)))
        return _whole([info for info in found if info.gvr.version == first.gvr.version])

    def _no_kind(self, api_version: str, kind: str) -> NoMatch:
        elsewhere = sorted({str(info.gvk) for info in self._by_kind.get(kind, ())})
        if elsewhere:
            return self._no_match(
                f"no kind {kind!r} in {api_version!r}; it is served as {', '.join(elsewhere)}",
                api_version,
            )
        in_version = {i.kind for i in self._resources if i.gvr.api_version == api_version}
        near = _near(kind, in_version or self._by_kind)
        return self._no_match(f"no kind {kind!r} in {api_version!r}{near}", api_version)

    def _no_name(self, name: str) -> NoMatch:
        known = {spelled for table in self._names for spelled in table}
        known |= {info.full_name for info in self._resources}
        return self._no_match(f"the server has no resource {name!r}{_near(name.lower(), known)}")

    def _no_match(self, message: str, api_version: str = "") -> NoMatch:
        groups = {api_version, api_version.rpartition("/")[0]}
        broken = [
            f"{version}: {why}"
            for version, why in self._failures.items()
            if not api_version or version.group in groups
        ]
        if broken:
            message += "; not all groups could be read: " + "; ".join(broken)
        return NoMatch(f"{message}. Is the custom resource definition installed?")


def _readings(name: str) -> list[tuple[str, str | None, str | None]]:
    """Return what a name may mean as (name, group, version), the likeliest first."""
    plain, _, rest = name.partition(".")
    if not rest:
        return [(plain, None, None)]
    version, _, group = rest.partition(".")
    return [(plain, rest, None), (plain, group, version)]


def _whole(found: Sequence[ResourceInfo]) -> ResourceInfo:
    """Return the resource that can be read, where one kind is served by several."""
    return next((info for info in found if "get" in info.verbs), found[0])


def _near(name: str, known: Iterable[str]) -> str:
    close = difflib.get_close_matches(name, list(known), n=_NEAR, cutoff=0.6)
    return f"; near: {', '.join(close)}" if close else ""


class DiscoverySource(Protocol):
    """Where the mapper learns what there is."""

    async def fetch(self) -> Discovered:
        """Read everything again. Raises `KubeError`."""


class RestMapper:
    """The resources of one server, by kind and by name."""

    def __init__(
        self, discovery: DiscoverySource, *, seconds_between: float = _SECONDS_BETWEEN
    ) -> None:
        self._discovery = discovery
        self._seconds_between = seconds_between
        self._flight = SingleFlight(self._discover)
        self._index: ResourceIndex | None = None
        self._discovered_at = 0.0

    async def by_kind(self, api_version: str, kind: str) -> ResourceInfo:
        """Return the resource of a kind: `("apps/v1", "Deployment")`, `("apps", "Deployment")`.

        Raises `NoMatch`, `AmbiguousMatch` or what discovery raises.
        """
        return await self._find(lambda index: index.by_kind(api_version, kind))

    async def resolve(self, name: str) -> ResourceInfo:
        """Return what a name means: `deploy`, `deployments.apps`, `deployments.v1.apps`.

        Raises `NoMatch`, `AmbiguousMatch` or what discovery raises.
        """
        return await self._find(lambda index: index.resolve(name))

    async def resources(self) -> tuple[ResourceInfo, ...]:
        """Return all resources, in the server's order."""
        return await self._find(lambda index: index.resources)

    async def refresh(self) -> None:
        """Discover again, unless that was done just now. Raises what discovery raises."""
        if self._index is not None and not self._is_fresh():
            await self._flight.run()

    def invalidate(self) -> None:
        """Discover again at the next question."""
        self._index = None

    async def _find(self, question: Callable[[ResourceIndex], R]) -> R:
        index = self._index
        if index is None:
            return question(await self._flight.run())
        try:
            return question(index)
        except NoMatch:
            if self._is_fresh():
                raise
        return question(await self._flight.run())

    def _is_fresh(self) -> bool:
        now = asyncio.get_running_loop().time()
        return now - self._discovered_at < self._seconds_between

    async def _discover(self) -> ResourceIndex:
        self._index = ResourceIndex(await self._discovery.fetch())
        self._discovered_at = asyncio.get_running_loop().time()
        return self._index
