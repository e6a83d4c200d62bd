"""Where the control plane's programs are, and how to get them."""

from __future__ import annotations

import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

BUILD = Path(__file__).resolve().parents[2] / "hack" / "controlplane" / "build"
NEEDED = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler", "kubectl")


class BinariesMissing(Exception):
    """No directory has all that is needed; the text, one line, says how to get them."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What the environment says about these tests; read once, by whoever starts them."""

    assets: Path | None
    """KUBEBUILDER_ASSETS: looked in before the cache."""
    logs: Path | None
    """ELASTI_CONTROLPLANE_LOGS: where log files survive the rig, for a CI job to collect."""
    ci: bool
    """CI: what is skipped elsewhere is a failure there."""

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Settings:
        assets, logs = environ.get("KUBEBUILDER_ASSETS"), environ.get("ELASTI_CONTROLPLANE_LOGS")
        return cls(
            assets=Path(assets) if assets else None,
            logs=Path(logs) if logs else None,
            ci=environ.get("CI", "").lower() in ("1", "true"),
        )


@dataclass(frozen=True, slots=True)
class Binaries:
    """A directory that has every needed program, all of one release."""

    directory: Path

    def path(self, name: str) -> str:
        return str(self.directory / name)

    @classmethod
    def locate(cls, assets: Path | None) -> Binaries:
        """The first complete directory: `assets`, then the cache of `make controlplane`."""
        for directory in filter(None, (assets, cache_directory())):
            if all(os.access(directory / name, os.X_OK) for name in NEEDED):
                return cls(directory)
        raise BinariesMissing(
            "no control plane binaries: run `make controlplane` (once, needs Go)"
            f" or set KUBEBUILDER_ASSETS to a directory with {', '.join(NEEDED)}"
        )


def cache_directory() -> Path:
    """Where the build puts the binaries; it alone knows, since the name tells the pinned versions."""
    asked = subprocess.run([BUILD, "--where"], check=True, capture_output=True, text=True)
    return Path(asked.stdout.strip())
