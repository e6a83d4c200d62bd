"""Fields of a pod that it may read about itself, as variables or files. Pure."""

from __future__ import annotations

import dataclasses
import json
import re
from typing import TYPE_CHECKING

from kubeloop.objects.quantities import Quantity

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elasti.devcluster.kubelet.objects.containers import ResourceSelector
    from elasti.devcluster.kubelet.objects.pods import Pod

_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]\Z")


@dataclasses.dataclass(frozen=True, slots=True)
class PodFacts:
    """A pod, and where it runs."""

    pod: Pod
    address: str
    host: str
    capacity: Mapping[str, str]
    """Of the node: what a container without a limit is told."""


def read(facts: PodFacts, path: str) -> str:
    """Return the field as text. Raises ValueError for a path that nobody may read."""
    pod, meta = facts.pod, facts.pod.metadata
    subscript = _SUBSCRIPT.match(path)
    if subscript is not None:
        return _mapping(pod, subscript.group(1)).get(subscript.group(2), "")
    if path in ("metadata.labels", "metadata.annotations"):
        return _lines(_mapping(pod, path.partition(".")[2]))
    known = {
        "metadata.name": meta.name,
        "metadata.namespace": meta.namespace,
        "metadata.uid": meta.uid,
        "spec.nodeName": pod.spec.node_name,
        "spec.serviceAccountName": pod.spec.service_account_name,
        "status.podIP": facts.address,
        "status.podIPs": facts.address,
        "status.hostIP": facts.host,
        "status.hostIPs": facts.host,
    }
    try:
        return known[path]
    except KeyError:
        raise ValueError(f"unsupported fieldPath: {path}") from None


def _mapping(pod: Pod, name: str) -> Mapping[str, str]:
    return (pod.metadata.labels if name == "labels" else pod.metadata.annotations) or {}


def _lines(values: Mapping[str, str]) -> str:
    return "\n".join(f"{key}={json.dumps(values[key])}" for key in sorted(values))


def read_resource(facts: PodFacts, selector: ResourceSelector, container: str) -> str:
    """Return a request or limit in units of the divisor, rounded up."""
    chosen = facts.pod.container(selector.container_name or container)
    kind, _, name = selector.resource.partition(".")
    given = (chosen.resources.limits if kind == "limits" else chosen.resources.requests).get(name)
    if given is None:
        given = facts.capacity.get(name, "0") if kind == "limits" else "0"
    amount = Quantity.parse(given).nanos
    divisor = Quantity.parse(selector.divisor).nanos or Quantity.parse(1).nanos
    return str(-(-amount // divisor))
