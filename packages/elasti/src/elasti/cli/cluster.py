"""The cluster that a command uses. Loads no client until one is needed, so that help stays quick."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kubeloop.client import ClientConfig


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class AccessOptions:
    """The cluster and the identity to use; by default those of kubectl."""

    context: str | None = None
    kubeconfig: Path | None = None


def config_for(access: AccessOptions) -> ClientConfig:
    """Return the address of the cluster and our credentials. Raises ConfigError."""
    from kubeloop.client import ClientConfig

    if access.kubeconfig is not None:
        return ClientConfig.from_kubeconfig(
            access.kubeconfig.expanduser(), context=access.context or None
        )
    return ClientConfig.from_env(context=access.context or None)
