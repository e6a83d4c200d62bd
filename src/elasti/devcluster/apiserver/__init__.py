"""An embedded, honest Kubernetes API server: storage, watches, apply, CRDs, discovery, tables."""

from __future__ import annotations

from elasti.devcluster.apiserver.server import ApiServer

__all__ = ["ApiServer"]
