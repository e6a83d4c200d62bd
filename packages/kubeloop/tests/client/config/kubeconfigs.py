"""Kubeconfig files for tests, written as JSON, which is YAML."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING, Any

from kubeloop.client.config.client_config import ClientSettings

if TYPE_CHECKING:
    from pathlib import Path


def b64(content: bytes) -> str:
    return base64.b64encode(content).decode()


def document(
    *,
    user: dict[str, Any] | None = None,
    cluster: dict[str, Any] | None = None,
    namespace: str | None = None,
) -> dict[str, Any]:
    """One context `here` with one cluster and one user."""
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "here",
        "contexts": [
            {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": namespace}}
        ],
        "clusters": [
            {"name": "c", "cluster": {"server": "https://127.0.0.1:6443"} | (cluster or {})}
        ],
        "users": [{"name": "u", "user": user or {}}],
    }


def write(path: Path, content: dict[str, Any] | str) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def bare_settings(**fields: Any) -> ClientSettings:
    """Settings that see nothing of this machine, unless given."""
    return ClientSettings(**fields)
