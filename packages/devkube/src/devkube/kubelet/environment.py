"""The environment of a container, and the fields of its pod that it may read. Pure.

Variables are set in order; a value may name earlier ones as `$(NAME)`, `$$` stands for a dollar
sign, and an unknown reference stays in the text.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING

from devkube.kubelet.pod_types import (
    ContainerSpec,
    EnvFromSource,
    EnvVarSource,
    KeySelector,
    KubeletPod,
    named_objects,
)

if TYPE_CHECKING:
    from devkube.kubelet.volume_sources import PodReferences


_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['([^']*)'\]\Z")
_REFERENCE = re.compile(r"\$(?:\$|\(([^()]*)\))")
_NAME = re.compile(r"[^=\x00]+\Z")


@dataclasses.dataclass(frozen=True, slots=True)
class DownwardContext:
    """A pod, and where it runs."""

    pod: KubeletPod
    address: str
    host: str


def read_field(facts: DownwardContext, path: str) -> str:
    """Return the field as text. Raises ConfigurationError for a path that is not readable."""
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
        raise ConfigurationError(f"unsupported fieldPath: {path}") from None


def _mapping(pod: KubeletPod, name: str) -> Mapping[str, str]:
    return (pod.metadata.labels if name == "labels" else pod.metadata.annotations) or {}


def _lines(values: Mapping[str, str]) -> str:
    return "\n".join(f"{key}={json.dumps(values[key])}" for key in sorted(values))


class ConfigurationError(Exception):
    """A container that cannot be made from what there is; the text is shown to people."""


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by values."""

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        return "$" if name is None else variables.get(name, match.group(0))

    return _REFERENCE.sub(value, text)


def environment(
    container: ContainerSpec,
    facts: DownwardContext,
    objects: PodReferences,
    base: Mapping[str, str],
) -> dict[str, str]:
    """Return a container's variables over those of the node. Raises ConfigurationError."""
    result = dict(base)
    for source in container.env_from:
        result.update(_all_keys(source, objects))
    for variable in container.env:
        if variable.value_from is None:
            result[variable.name] = expand(variable.value, result)
        else:
            value = _value(variable.value_from, facts, objects)
            if value is not None:
                result[variable.name] = value
    return result


def command(
    container: ContainerSpec, variables: Mapping[str, str], entrypoint: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Return the program and its arguments. Raises ConfigurationError without a program."""
    given = (*(container.command or entrypoint), *container.args)
    if not given:
        raise ConfigurationError(
            f'no command specified: image "{container.image}" is not pulled here, so container'
            f' "{container.name}" needs `command` (or `args`) in the pod, or the cluster an'
            " entrypoint for the image (`--run` or `entrypoints`)"
        )
    return tuple(expand(part, variables) for part in given)


def _all_keys(source: EnvFromSource, objects: PodReferences) -> Iterator[tuple[str, str]]:
    for kind, ref in named_objects(source.config_map_ref, source.secret_ref):
        found = objects.content(kind, ref.name, optional=bool(ref.optional))
        for key, value in found.items():
            name = source.prefix + key
            if _NAME.match(name):
                yield name, value.decode(errors="surrogateescape")


def _value(source: EnvVarSource, facts: DownwardContext, objects: PodReferences) -> str | None:
    if source.field_ref is not None:
        return read_field(facts, source.field_ref.field_path)
    for kind, ref in named_objects(source.config_map_key_ref, source.secret_key_ref):
        found = objects.content(kind, ref.name, optional=bool(ref.optional))
        return _key(ref, found, objects.describe(kind, ref.name))
    return None


def _key(ref: KeySelector, found: Mapping[str, bytes], where: str) -> str | None:
    if ref.key in found:
        return found[ref.key].decode(errors="surrogateescape")
    if ref.optional:
        return None
    raise ConfigurationError(f"couldn't find key {ref.key} in {where}")
