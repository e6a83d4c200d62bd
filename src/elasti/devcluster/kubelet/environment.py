"""The environment of a container. Pure.

Variables are set in order; a value may name earlier ones as `$(NAME)`, `$$` stands for a dollar
sign, and a reference to nothing stays as it is written.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from elasti.devcluster.kubelet import fields

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from elasti.devcluster.kubelet.fields import PodFacts
    from elasti.devcluster.kubelet.objects.containers import (
        Container,
        EnvFrom,
        EnvSource,
        KeySelector,
    )
    from elasti.devcluster.kubelet.references import References

_REFERENCE = re.compile(r"\$(?:\$|\(([^()]*)\))")
_NAME = re.compile(r"[^=\x00]+\Z")


class ConfigurationError(Exception):
    """A container that cannot be made from what there is; the text is shown to people."""


def expand(text: str, variables: Mapping[str, str]) -> str:
    """Replace `$(NAME)` by values."""

    def value(match: re.Match[str]) -> str:
        name = match.group(1)
        if name is None:
            return "$"
        return variables.get(name, match.group(0))

    return _REFERENCE.sub(value, text)


def environment(
    container: Container, facts: PodFacts, objects: References, base: Mapping[str, str]
) -> dict[str, str]:
    """Return a container's variables over those of the node. Raises ConfigurationError."""
    result = dict(base)
    for source in container.env_from:
        result.update(_all_keys(source, objects))
    for variable in container.env:
        if variable.value_from is None:
            result[variable.name] = expand(variable.value, result)
        else:
            value = _value(variable.value_from, container, facts, objects)
            if value is not None:
                result[variable.name] = value
    return result


def command(
    container: Container, variables: Mapping[str, str], entrypoint: tuple[str, ...] = ()
) -> tuple[str, ...]:
    """Return the program and its arguments. Raises ConfigurationError where there is none."""
    given = (*(container.command or entrypoint), *container.args)
    if not given:
        raise ConfigurationError(
            f'no command specified: image "{container.image}" is not pulled here, so container'
            f' "{container.name}" needs `command` (or `args`) in the pod'
        )
    return tuple(expand(part, variables) for part in given)


def _all_keys(source: EnvFrom, objects: References) -> Iterator[tuple[str, str]]:
    if source.config_map_ref is not None:
        ref = source.config_map_ref
        found = objects.config_map(ref.name, optional=bool(ref.optional))
    elif source.secret_ref is not None:
        ref = source.secret_ref
        found = objects.secret(ref.name, optional=bool(ref.optional))
    else:
        return
    for key, value in found.items():
        name = source.prefix + key
        if _NAME.match(name):
            yield name, value.decode(errors="surrogateescape")


def _value(
    source: EnvSource, container: Container, facts: PodFacts, objects: References
) -> str | None:
    if source.field_ref is not None:
        try:
            return fields.read(facts, source.field_ref.field_path)
        except ValueError as error:
            raise ConfigurationError(str(error)) from error
    if source.resource_field_ref is not None:
        return fields.read_resource(facts, source.resource_field_ref, container.name)
    if source.config_map_key_ref is not None:
        ref = source.config_map_key_ref
        found = objects.config_map(ref.name, optional=bool(ref.optional))
        return _key(ref, found, objects.describe("ConfigMap", ref.name))
    if source.secret_key_ref is not None:
        ref = source.secret_key_ref
        found = objects.secret(ref.name, optional=bool(ref.optional))
        return _key(ref, found, objects.describe("Secret", ref.name))
    return None


def _key(ref: KeySelector, found: Mapping[str, bytes], where: str) -> str | None:
    if ref.key in found:
        return found[ref.key].decode(errors="surrogateescape")
    if ref.optional:
        return None
    raise ConfigurationError(f"couldn't find key {ref.key} in {where}")
