"""Which ElastiServices depend on which, in both directions. Pure.

An edge counts if it can be followed: it does not name itself or an unknown ElastiService, is not part of a cycle,
and is neither beyond the 32nd of its list nor on top of a chain of eight. Every other edge is ignored, with the
reason (`problems`), and the rest of the graph holds. The operator follows it, and people see it as a tree.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterator, Mapping, Sequence

from elasti.api.types import MAX_DEPENDENCIES, MAX_DEPENDENCY_DEPTH
from kubeloop.objects.meta import ObjectName


@dataclasses.dataclass(frozen=True, slots=True)
class _Followed:
    """The edges of one namespace that count, in both directions, and why others do not."""

    dependencies: Mapping[ObjectName, tuple[ObjectName, ...]]
    dependents: Mapping[ObjectName, tuple[ObjectName, ...]]
    problems: Mapping[ObjectName, Sequence[str]]


class DependencyGraph:
    """The edges that specs name, and those of them that count. `exists`: whether there is such an ElastiService.

    Which count is worked out for a whole namespace at once, after a change in it.
    """

    def __init__(self, exists: Callable[[ObjectName], bool]) -> None:
        self._exists = exists
        self._named: dict[str, dict[ObjectName, tuple[ObjectName, ...]]] = {}
        self._naming: dict[ObjectName, set[ObjectName]] = {}
        self._followed: dict[str, _Followed] = {}

    def put(self, request: ObjectName, names: tuple[str, ...]) -> None:
        """Note what a spec names."""
        wanted = tuple(ObjectName(request.namespace, name) for name in dict.fromkeys(names))
        named = self._named.get(request.namespace, {})
        if named.get(request, ()) == wanted:
            return
        for former in named.pop(request, ()):
            self._naming[former].discard(request)
            if not self._naming[former]:
                del self._naming[former]
        if wanted:
            self._named.setdefault(request.namespace, named)[request] = wanted
        elif not named:
            self._named.pop(request.namespace, None)
        for dependency in wanted:
            self._naming.setdefault(dependency, set()).add(request)
        self._followed.pop(request.namespace, None)

    def changed(self, request: ObjectName) -> None:
        """An ElastiService came or went."""
        if request in self._naming:
            self._followed.pop(request.namespace, None)

    def concerned(self, request: ObjectName) -> tuple[ObjectName, ...]:
        """Return what names an ElastiService and what it names, whether that counts or not."""
        named = self._named.get(request.namespace)
        if named is None:
            return ()
        return (*sorted(self._naming.get(request, ())), *named.get(request, ()))

    def dependencies(self, request: ObjectName) -> tuple[ObjectName, ...]:
        """Return what an ElastiService depends on directly."""
        return self._of(request.namespace).dependencies.get(request, ())

    def dependents(self, request: ObjectName) -> tuple[ObjectName, ...]:
        """Return what depends on an ElastiService directly, in a fixed order."""
        return self._of(request.namespace).dependents.get(request, ())

    def problems(self, request: ObjectName) -> Iterator[str]:
        """Yield why edges of an ElastiService are ignored."""
        yield from self._of(request.namespace).problems.get(request, ())

    def _of(self, namespace: str) -> _Followed:
        if namespace not in self._named:
            return _NOTHING
        found = self._followed.get(namespace)
        if found is None:
            found = self._followed[namespace] = self._follow(self._named[namespace])
        return found

    def _follow(self, named: Mapping[ObjectName, tuple[ObjectName, ...]]) -> _Followed:
        edges = {one: [*filter(self._exists, named[one])] for one in named}
        followed: dict[ObjectName, tuple[ObjectName, ...]] = {}
        dependents: dict[ObjectName, list[ObjectName]] = {}
        problems: dict[ObjectName, list[str]] = {}
        heights: dict[ObjectName, int] = {}  # the longest chain below each
        for circle in _components(edges):
            for request in circle:
                below = []
                for index, one in enumerate(named.get(request, ())):
                    if why := self._ignored(request, one, index, circle, heights):
                        text = (
                            f"spec.dependsOn[{index}] names {one.name}, {why}; the entry is ignored"
                        )
                        problems.setdefault(request, []).append(text)
                    else:
                        below.append(one)
                        dependents.setdefault(one, []).append(request)
                followed[request] = tuple(below)
                heights[request] = 1 + max((heights[one] for one in below), default=-1)
        above = {one: tuple(sorted(found)) for one, found in dependents.items()}
        return _Followed(followed, above, problems)

    def _ignored(
        self,
        request: ObjectName,
        dependency: ObjectName,
        index: int,
        circle: set[ObjectName],
        heights: Mapping[ObjectName, int],
    ) -> str:
        if dependency == request:
            return "which is this ElastiService itself; remove it"
        if not self._exists(dependency):
            return f"and there is no such ElastiService in namespace {request.namespace}; create it"
        if index >= MAX_DEPENDENCIES:
            return f"and the list is longer than {MAX_DEPENDENCIES}; shorten it"
        if dependency in circle:
            return "which depends on this one in turn; remove one of these entries"
        if heights[dependency] >= MAX_DEPENDENCY_DEPTH:
            return f"and the chain below is longer than {MAX_DEPENDENCY_DEPTH}; shorten it"
        return ""


_NOTHING = _Followed({}, {}, {})


def _components(edges: Mapping[ObjectName, Sequence[ObjectName]]) -> Iterator[set[ObjectName]]:
    """Yield the sets that reach each other, each after what it leads to (Gabow's algorithm, without recursion)."""
    place: dict[ObjectName, float] = {}  # on the path; infinite once its set is complete
    path: list[ObjectName] = []
    starts: list[int] = []  # where on the path each set begins
    for root in edges:
        left = [(root, iter(edges[root]))] if root not in place else []
        while left:
            request, below = left[-1]
            if request not in place:
                place[request] = len(path)
                starts.append(len(path))
                path.append(request)
            for one in below:
                if one not in place:
                    left.append((one, iter(edges.get(one, ()))))
                    break
                while place[one] < starts[-1]:
                    starts.pop()
            else:
                left.pop()
                if starts[-1] == place[request]:
                    begin = starts.pop()
                    found = set(path[begin:])
                    del path[begin:]
                    place.update(dict.fromkeys(found, math.inf))
                    yield found
