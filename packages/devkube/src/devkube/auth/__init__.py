"""RBAC, ServiceAccount tokens, impersonation and access reviews of a dev cluster."""

from __future__ import annotations
