"""Kubeconfig files."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.controlplane.pki import KeyPair


def render(*, server: str, authority: bytes, client: KeyPair) -> str:
    """A kubeconfig with everything inlined, so that the file works wherever it is copied.

    It is JSON, which is YAML.
    """
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "rig",
        "contexts": [{"name": "rig", "context": {"cluster": "rig", "user": "rig"}}],
        "clusters": [
            {
                "name": "rig",
                "cluster": {"server": server, "certificate-authority-data": _data(authority)},
            }
        ],
        "users": [
            {
                "name": "rig",
                "user": {
                    "client-certificate-data": _data(client.public),
                    "client-key-data": _data(client.private),
                },
            }
        ],
    }
    return json.dumps(config, indent=2)


def _data(pem: bytes) -> str:
    return base64.b64encode(pem).decode()
