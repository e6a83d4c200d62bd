"""Pod templates: equality, hashes, and the pods that are made of them. Pure.

A template that went through an API server may have gained or lost empty fields; they do not count.
The hash is stable but not Kubernetes' own number: nobody computes it but the controller that wrote
it down as a label.
"""

from __future__ import annotations

import copy
import hashlib
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kubeloop.objects.meta import JsonObject, OwnerReference

TEMPLATE_HASH = "pod-template-hash"
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"
_MAPS = frozenset({"labels", "annotations", "nodeSelector", "metadata"})


def normal(value: Any, name: str = "") -> Any:
    """Return a value without the fields that say nothing: nulls, empty lists, empty maps of text."""
    if isinstance(value, dict):
        parts = {key: normal(item, key) for key, item in value.items()}
        return {key: item for key, item in parts.items() if not _is_nothing(key, item)}
    if isinstance(value, list | tuple):
        return [normal(item, name) for item in value]
    return value


def _is_nothing(name: str, value: Any) -> bool:
    return value is None or value == [] or (value == {} and name in _MAPS)


def without_hash(template: JsonObject, label: str = TEMPLATE_HASH) -> JsonObject:
    """Return the template in normal form without its hash label."""
    clean: JsonObject = normal(template)
    labels = {k: v for k, v in clean.get("metadata", {}).get("labels", {}).items() if k != label}
    metadata = {**clean.get("metadata", {}), "labels": labels}
    return {**clean, "metadata": {k: v for k, v in metadata.items() if v}}


def same_template(left: JsonObject, right: JsonObject) -> bool:
    """Whether two templates make the same pods, but for the hash label."""
    return without_hash(left) == without_hash(right)


def hash_of(document: JsonObject, collisions: int | None = None) -> str:
    """Return a short hash that may be part of a name; `collisions` gives another one."""
    data = msgspec.json.encode(normal(document), order="sorted")
    if collisions:
        data += str(collisions).encode()
    number = int.from_bytes(hashlib.blake2b(data, digest_size=4).digest(), "big")
    return safe_text(str(number))


def safe_text(text: str) -> str:
    """Spell text with letters and digits that make no words."""
    return "".join(_ALPHABET[ord(char) % len(_ALPHABET)] for char in text)


def with_label(template: JsonObject, name: str, value: str) -> JsonObject:
    """Return a copy of the template with one more label."""
    result = copy.deepcopy(template)
    result.setdefault("metadata", {}).setdefault("labels", {})[name] = value
    return result


def pod_from(template: JsonObject, owner: OwnerReference, *, prefix: str = "") -> JsonObject:
    """Return a pod to create: the template's labels, annotations, finalizers and spec."""
    source = template.get("metadata") or {}
    metadata: JsonObject = {name: source[name] for name in _kept(source)}
    metadata["ownerReferences"] = [msgspec.to_builtins(owner)]
    if prefix:
        metadata["generateName"] = prefix
    spec = copy.deepcopy(template.get("spec") or {})
    return {"apiVersion": "v1", "kind": "Pod", "metadata": copy.deepcopy(metadata), "spec": spec}


def _kept(metadata: JsonObject) -> Iterable[str]:
    return [name for name in ("labels", "annotations", "finalizers") if metadata.get(name)]
