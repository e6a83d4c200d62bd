"""Kubeconfig files: one context is added, and the rest of the file stays unchanged."""

from __future__ import annotations

import base64
import dataclasses
from pathlib import Path
from typing import Any

import yaml

from devkube.certificates import PemKeyPair
from devkube.datadir import write_whole
from kubeloop.objects.meta import JsonObject


class KubeconfigError(Exception):
    """A file that is not a kubeconfig, and must not be overwritten."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ClusterAccess:
    """How to reach a cluster, and as which user."""

    name: str
    server: str
    authority: bytes
    identity: PemKeyPair

    def document(self) -> JsonObject:
        """Return a kubeconfig with this context alone."""
        return merged({}, self)


def merged(document: JsonObject, access: ClusterAccess) -> JsonObject:
    """Return a kubeconfig with one context added, or replaced, and nothing else changed.

    The current context stays; the new one becomes it only if the file has no current context.
    """
    name = access.name
    cluster = {"server": access.server, "certificate-authority-data": _text(access.authority)}
    user = {
        "client-certificate-data": _text(access.identity.certificate),
        "client-key-data": _text(access.identity.key),
    }
    return {
        "apiVersion": "v1",
        "kind": "Config",
        **document,
        "clusters": _put(document.get("clusters"), {"name": name, "cluster": cluster}),
        "users": _put(document.get("users"), {"name": name, "user": user}),
        "contexts": _put(
            document.get("contexts"), {"name": name, "context": {"cluster": name, "user": name}}
        ),
        "current-context": document.get("current-context") or name,
    }


def write(path: Path, access: ClusterAccess) -> bool:
    """Put the context into a file, made if it is missing; whether it is the current one now.

    The file is replaced in one step and readable by its owner only. Raises KubeconfigError.
    """
    path = path.resolve()
    document = merged(_read(path), access)
    write_whole(path, yaml.safe_dump(document, sort_keys=False).encode())
    return bool(document["current-context"] == access.name)


def _read(path: Path) -> JsonObject:
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise KubeconfigError(f"{path} is not YAML, so it is left alone: {error}") from error
    if document is None:
        return {}
    if not isinstance(document, dict) or document.get("kind", "Config") != "Config":
        raise KubeconfigError(f"{path} is not a kubeconfig, so it is left alone; name another file")
    return document


def _put(entries: Any, entry: JsonObject) -> list[Any]:
    found = [other for other in entries or () if other.get("name") != entry["name"]]
    return [*found, entry]


def _text(pem: bytes) -> str:
    return base64.b64encode(pem).decode()
