"""What containers request: before a doze, during it, and the way from one to the other. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from elasti.api.types import DozedContainer, DozeSpec
from elasti.api.validation import LEAST_CPU
from elasti.operator.model.doze import DozeContainer, DozePod, DozeView
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import pointer
from kubeloop.objects.quantities import Notation, Quantity

RESOURCES = ("cpu", "memory")
_MIB = 2**20
_CPU_ROUNDING = Quantity.parse("2m")
"""A kubelet reports CPU as its cgroup has it, in shares, which are coarser."""


class Originals:
    """Containers by template and name."""

    def __init__(self, containers: Iterable[DozedContainer]) -> None:
        self._by_key = {(one.template, one.name): one for one in containers}

    def find(self, pod: DozePod, container: DozeContainer) -> DozedContainer | None:
        """Return what is noted of a container."""
        return self._by_key.get((pod.template, container.name))


def values(entry: DozedContainer | None, resource: str) -> tuple[Quantity, Quantity] | None:
    """Return the original and the dozed request of a resource; None if it is not changed."""
    original, dozed = getattr(entry, resource, ""), getattr(entry, f"dozed_{resource}", "")
    return (Quantity.parse(original), Quantity.parse(dozed)) if original else None


def noted(
    known: tuple[DozedContainer, ...], view: DozeView, spec: DozeSpec
) -> tuple[DozedContainer, ...]:
    """Return what to note before pods shrink: what is known, and the containers of new templates."""
    there = {entry.template for entry in known}
    found = dict[tuple[str, str], DozedContainer]()
    for pod in view.pods:
        for _, _, container in pod.resizable() if pod.template not in there else ():
            fields: dict[str, str] = {}
            for resource in RESOURCES:
                request = container.request(resource)
                dozed = _dozed(pod, container, resource, view, spec)
                if request is not None and dozed is not None and dozed < request:
                    fields |= {resource: str(request), f"dozed_{resource}": str(dozed)}
            if fields:
                key = pod.template, container.name
                found[key] = _larger(found.get(key), DozedContainer(*key, **fields))
    return (*known, *found.values())


def _larger(one: DozedContainer | None, other: DozedContainer) -> DozedContainer:
    """Return the entry with more memory: pods of one template differ in what they use."""
    if one is None or not one.memory or not other.memory:
        return other if one is None or not other.memory else one
    return max(one, other, key=lambda entry: Quantity.parse(entry.dozed_memory))


def _dozed(
    pod: DozePod, container: DozeContainer, resource: str, view: DozeView, spec: DozeSpec
) -> Quantity | None:
    """Return what a container requests while it dozes; None: what it requests now."""
    if resource == "cpu":
        try:
            wanted = Quantity.parse(spec.cpu)
        except ValueError:
            wanted = LEAST_CPU  # the spec is refused for it, so nothing shrinks
    else:
        used = view.usage.get((pod.metadata.name, container.name))
        if spec.memory == "Keep" or used is None:
            return None
        wanted = Quantity(-(-used * 11 // (10 * _MIB)) * _MIB * 10**9, Notation.BINARY)
    least = [wanted, *(view.minimum[resource] for _ in range(resource in view.minimum))]
    limit, ratio = container.limit(resource), view.ratio.get(resource)
    if limit is not None and ratio:
        unit = 10**6 if resource == "cpu" else 10**9
        least.append(
            Quantity(-(-limit.nanos * 10**9 // ratio.nanos // unit) * unit, wanted.notation)
        )
    return max(least)


def resize(pod: DozePod, originals: Originals, *, dozed: bool) -> tuple[JsonObject, ...]:
    """Return the JSON patch that shrinks a pod or gives it its originals back; empty if nothing is to do."""
    operations = [
        _replace(value, "spec", field, index, "resources", "requests", resource)
        for field, index, _, resource, value in _changes(pod, originals, dozed=dozed)
    ]
    version = _replace(pod.metadata.resource_version, "metadata", "resourceVersion")
    return (version, *operations) if operations else ()


def _replace(value: str, *path: str | int) -> JsonObject:
    return {"op": "replace", "path": pointer(*path), "value": value}


def _changes(
    pod: DozePod, originals: Originals, *, dozed: bool
) -> Iterator[tuple[str, int, str, str, str]]:
    for field, index, container in pod.resizable():
        entry = originals.find(pod, container)
        for resource in RESOURCES:
            if (pair := values(entry, resource)) is None:
                continue
            before, after = pair if dozed else pair[::-1]
            # What is neither is another writer's.
            if container.request(resource) == before:
                yield field, index, container.name, resource, str(after)


def command(pod: DozePod, originals: Originals) -> str:
    """Return what a person runs to give a pod its originals back; "" if it has them."""
    requests: dict[str, dict[str, dict[str, str]]] = {}
    for field, _, name, resource, value in _changes(pod, originals, dozed=False):
        requests.setdefault(field, {}).setdefault(name, {})[resource] = value
    if not requests:
        return ""
    spec = {
        field: [{"name": name, "resources": {"requests": one}} for name, one in found.items()]
        for field, found in requests.items()
    }
    meta, patch = pod.metadata, json.dumps({"spec": spec}, separators=(",", ":"))
    return f"kubectl patch pod {meta.name} -n {meta.namespace} --subresource resize -p '{patch}'"


def is_settled(pod: DozePod, originals: Originals) -> bool:
    """Whether its kubelet has made its requests so; one that reports no requests is believed at once."""
    waiting = (pod.condition("PodResizePending"), pod.condition("PodResizeInProgress"))
    if any(found is not None and found.is_true for found in waiting):
        return False
    for _, _, container in pod.resizable():
        if originals.find(pod, container) is None:
            continue
        for resource in RESOURCES:
            wanted, actual = container.request(resource), pod.actual(container.name, resource)
            if wanted is None or actual is None:
                continue
            apart = max(wanted - actual, actual - wanted)
            if apart > (_CPU_ROUNDING if resource == "cpu" else Quantity(0)):
                return False
    return True


def released(pods: Iterable[DozePod], originals: Originals) -> tuple[int, int]:
    """Return what pods have given back and their kubelets confirmed: millicores, bytes."""
    total = dict.fromkeys(RESOURCES, 0)
    for pod in pods:
        for _, _, container in pod.resizable() if is_settled(pod, originals) else ():
            entry = originals.find(pod, container)
            for resource in RESOURCES:
                pair, now = values(entry, resource), container.request(resource)
                if pair is not None and now is not None and now < pair[0]:
                    total[resource] += (pair[0] - now).nanos
    return total["cpu"] // 10**6, total["memory"] // 10**9
