"""The environment that a client is configured by: the only module here that reads it.

It is read once, into a value that is passed on, so that a test or a program that holds several
clients decides what each of them sees.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

SERVICEACCOUNT_DIR = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientSettings:
    """Where configuration may be found. `environ` is what exec plugins inherit."""

    kubeconfig: str = ""
    service_host: str = ""
    service_port: str = ""
    home: Path | None = None
    serviceaccount_dir: Path = SERVICEACCOUNT_DIR
    environ: Mapping[str, str] = field(default_factory=dict, repr=False)

    @classmethod
    def read(cls, environ: Mapping[str, str] | None = None) -> ClientSettings:
        """Read the process's environment, or the mapping given instead of it."""
        env = dict(os.environ if environ is None else environ)
        directory = env.get("KUBELOOP_SERVICEACCOUNT_DIR")
        return cls(
            kubeconfig=env.get("KUBECONFIG", ""),
            service_host=env.get("KUBERNETES_SERVICE_HOST", ""),
            service_port=env.get("KUBERNETES_SERVICE_PORT", ""),
            home=Path(env["HOME"]) if env.get("HOME") else None,
            serviceaccount_dir=Path(directory) if directory else SERVICEACCOUNT_DIR,
            environ=env,
        )

    def kubeconfig_paths(self) -> tuple[Path, ...]:
        """Return the files to merge: those KUBECONFIG lists, else ~/.kube/config."""
        if self.kubeconfig:
            listed = [Path(part) for part in self.kubeconfig.split(os.pathsep) if part]
            return tuple(dict.fromkeys(listed))
        return (self.home / ".kube" / "config",) if self.home else ()
