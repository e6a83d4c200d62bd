"""A kubeconfig for the producer, which every client understands."""

from __future__ import annotations

import base64
import json
import tempfile
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator


@contextmanager
def kubeconfig(url: str, ca: str) -> Iterator[str]:
    """Write a kubeconfig for the time of the block."""
    cluster = {"server": url}
    if ca:
        cluster["certificate-authority-data"] = base64.b64encode(ca.encode()).decode()
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "bench",
        "contexts": [{"name": "bench", "context": {"cluster": "bench", "user": "bench"}}],
        "clusters": [{"name": "bench", "cluster": cluster}],
        "users": [{"name": "bench", "user": {}}],
    }
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "config"
        path.write_text(json.dumps(config))
        yield str(path)
