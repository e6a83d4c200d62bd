"""The files of a volume, from where its data comes from. Pure."""

from __future__ import annotations

import dataclasses
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from elasti.devcluster.kubelet import fields
from elasti.devcluster.kubelet.environment import ConfigurationError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from elasti.devcluster.kubelet.fields import PodFacts
    from elasti.devcluster.kubelet.objects.volumes import (
        DownwardVolume,
        KeyToPath,
        Projection,
        TokenProjection,
        Volume,
    )
    from elasti.devcluster.kubelet.references import References


@dataclasses.dataclass(frozen=True, slots=True)
class File:
    """One file of a volume."""

    data: bytes
    mode: int


def payload(
    volume: Volume,
    facts: PodFacts,
    objects: References,
    tokens: Mapping[TokenProjection, str],
) -> dict[str, File] | None:
    """Return the files; None for a volume whose data is not ours to write.

    Raises ConfigurationError where something is missing.
    """
    if volume.config_map is not None:
        source = volume.config_map
        found = objects.config_map(source.name, optional=bool(source.optional))
        return _selected(found, source.items, source.default_mode, optional=bool(source.optional))
    if volume.secret is not None:
        secret = volume.secret
        found = objects.secret(secret.secret_name, optional=bool(secret.optional))
        return _selected(found, secret.items, secret.default_mode, optional=bool(secret.optional))
    if volume.downward_api is not None:
        return _downward(volume.downward_api, facts, volume.downward_api.default_mode)
    if volume.projected is not None:
        files: dict[str, File] = {}
        for part in volume.projected.sources:
            files |= _projected(part, facts, objects, tokens, volume.projected.default_mode)
        return files
    return None


def _projected(
    part: Projection,
    facts: PodFacts,
    objects: References,
    tokens: Mapping[TokenProjection, str],
    mode: int,
) -> dict[str, File]:
    if part.config_map is not None:
        source = part.config_map
        found = objects.config_map(source.name, optional=bool(source.optional))
        return _selected(found, source.items, mode, optional=bool(source.optional))
    if part.secret is not None:
        source = part.secret
        found = objects.secret(source.name, optional=bool(source.optional))
        return _selected(found, source.items, mode, optional=bool(source.optional))
    if part.downward_api is not None:
        return _downward(part.downward_api, facts, mode)
    if part.service_account_token is not None:
        token = tokens[part.service_account_token]
        return {_safe(part.service_account_token.path): File(token.encode(), mode)}
    return {}


def _selected(
    found: Mapping[str, bytes],
    items: tuple[KeyToPath, ...] | None,
    mode: int,
    *,
    optional: bool,
) -> dict[str, File]:
    if not items:
        return {key: File(value, mode) for key, value in found.items()}
    files = {}
    for item in items:
        if item.key in found:
            chosen = mode if item.mode is None else item.mode
            files[_safe(item.path)] = File(found[item.key], chosen)
        elif not optional:
            raise ConfigurationError(f"references non-existent config key: {item.key}")
    return files


def _downward(source: DownwardVolume, facts: PodFacts, mode: int) -> dict[str, File]:
    files = {}
    for item in source.items:
        if item.field_ref is not None:
            text = _field(facts, item.field_ref.field_path)
        elif item.resource_field_ref is not None:
            text = fields.read_resource(facts, item.resource_field_ref, "")
        else:
            continue
        chosen = mode if item.mode is None else item.mode
        files[_safe(item.path)] = File(text.encode(), chosen)
    return files


def _field(facts: PodFacts, path: str) -> str:
    try:
        return fields.read(facts, path)
    except ValueError as error:
        raise ConfigurationError(str(error)) from error


def _safe(path: str) -> str:
    """Return a path that stays inside the volume. Raises ConfigurationError."""
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or not pure.parts or pure.parts[0].startswith(".."):
        raise ConfigurationError(f"invalid path in volume: {path}, must stay inside it")
    return str(pure)
