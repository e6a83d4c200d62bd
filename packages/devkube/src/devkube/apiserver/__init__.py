"""An embedded Kubernetes API server: storage, watches, apply, CRDs, discovery, tables."""

from __future__ import annotations

from devkube.apiserver.server import ApiServer

__all__ = ["ApiServer"]
