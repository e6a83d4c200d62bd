"""The programs of a real cluster: those that are built here, and those that the distribution has.

Each Go toolset has a directory of its own in the cache, so a new pin of one builds only that one.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hack import gobuild
from hack.gobuild import STRIPPED, Program, Toolset, pinned_release
from hack.kubernetes_pins import kubernetes_program, kubernetes_version
from tests.controlplane.binaries import Binaries, BinariesMissing

if TYPE_CHECKING:
    from collections.abc import Mapping

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
GATEWAY_API = "gateway-api.yaml"
CONTAINERD = "github.com/containerd/containerd/v2"
# Daemons need no path that the user's shell has, but users often lack the sbin directories.
TOOL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
# What the distribution must have: a program, or a file, and the Debian package it is in.
RUNNING = {
    "ip": "iproute2",
    "mount": "mount",
    "runc": "runc",
    "iptables": "iptables",
    "nft": "nftables",
    "conntrack": "conntrack",
    "/usr/lib/cni/bridge": "containernetworking-plugins",
}
BUILDING = {
    "buildah": "buildah",
    "mmdebstrap": "mmdebstrap",
    "/usr/share/keyrings/debian-archive-keyring.gpg": "debian-archive-keyring",
}


class ProgramsMissing(Exception):
    """Something is not there; the text, one sentence, says how to get it."""


def _toolset(name: str, module: str, *packages: str, stamp: str = "", tags: str = "") -> Toolset:
    """Programs of a Go module that the go.mod in the directory `name` pins.

    `stamp` is the variable that holds the release, in a program that cannot know it otherwise.
    """
    pins = HERE / name
    release = pinned_release(pins, module)
    flags = f"{STRIPPED} -X {stamp}={release}" if stamp else STRIPPED
    programs = [Program(p.rpartition("/")[2], pins, f"{module}{p}", flags, tags) for p in packages]
    return Toolset(f"realcluster/{name}", f"{name} {release}", release, programs)


def toolsets() -> dict[str, Toolset]:
    """All that is built, by the name that a command line gives it."""
    version = kubernetes_version()
    kubelet = kubernetes_program("kubelet")
    pause = Program("pause", HERE / "pause", "elasti/realcluster/pause")
    coredns = "github.com/coredns/coredns"
    return {
        "kubelet": Toolset("realcluster/kubelet", f"kubelet {version}", version, [kubelet]),
        "containerd": _toolset(
            "containerd",
            CONTAINERD,
            *(f"/cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")),
            stamp=f"{CONTAINERD}/version.Version",
            tags="no_btrfs,no_devmapper,no_zfs",
        ),
        "coredns": Toolset(
            "realcluster/coredns",
            "CoreDNS",
            pinned_release(HERE / "coredns", coredns),
            [Program("coredns", HERE / "coredns", coredns)],
        ),
        "pause": Toolset("realcluster/pause", "pause", "1", [pause]),
        "metrics-server": _toolset(
            "metrics-server",
            "sigs.k8s.io/metrics-server",
            "/cmd/metrics-server",
            stamp="k8s.io/client-go/pkg/version.gitVersion",
        ),
        "traefik": _toolset(
            "traefik",
            "github.com/traefik/traefik/v3",
            "/cmd/traefik",
            stamp="github.com/traefik/traefik/v3/pkg/version.Version",
        ),
    }


# Every cluster needs these. The others take minutes to build, so you ask for them by name.
ESSENTIAL = ("kubelet", "containerd", "coredns", "pause")


@dataclass(frozen=True, slots=True)
class Programs:
    """Where everything is that a cluster runs."""

    controlplane: Binaries
    kubelet: Path
    containerd: Path
    """The directory that has containerd, its shim and ctr."""

    @property
    def kubectl(self) -> str:
        """The client, of the control plane's release."""
        return self.controlplane.path("kubectl")

    @classmethod
    def locate(cls, env: Mapping[str, str]) -> Programs:
        """Everything, or ProgramsMissing."""
        require(RUNNING)
        directories = {name: toolset.directory(env) for name, toolset in toolsets().items()}
        absent = [n for n in ESSENTIAL if toolsets()[n].missing(directories[n])]
        if absent:
            raise ProgramsMissing(f"no {', '.join(absent)} in the cache: run `make realcluster`")
        try:
            controlplane = Binaries.locate(None)
        except BinariesMissing as error:
            raise ProgramsMissing(str(error)) from error
        return cls(controlplane, directories["kubelet"] / "kubelet", directories["containerd"])


def require(files: Mapping[str, str]) -> None:
    """Raise ProgramsMissing unless the distribution's packages are installed."""
    absent = [package for name, package in files.items() if not is_there(name)]
    if absent:
        raise ProgramsMissing(f"not installed: apt-get install {' '.join(absent)}")


def is_there(name: str) -> bool:
    """Whether a program is on the path of daemons, or a file where it belongs."""
    return Path(name).exists() if name.startswith("/") else which(name) is not None


def which(name: str) -> str | None:
    """A program of the distribution."""
    return shutil.which(name, path=f"{TOOL_PATH}:{os.defpath}")


def build(names: tuple[str, ...], env: Mapping[str, str]) -> None:
    """Build what the cache lacks of these toolsets."""
    for name in names:
        gobuild.build(toolsets()[name], env, gobuild.speaker(f"realcluster: {name}"))
    if "traefik" in names:
        copy_gateway_api(toolsets()["traefik"].directory(env))


def copy_gateway_api(where: Path) -> None:
    """Put the Gateway API's definitions, of the release that Traefik is built with, beside it."""
    target = where / GATEWAY_API
    if target.exists():
        return
    found = subprocess.run(
        ["go", "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api"],
        cwd=HERE / "traefik",
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    files = sorted(Path(found.stdout.strip(), "config", "crd", "standard").glob("*.yaml"))
    half = target.with_suffix(".half")
    half.write_text("---\n".join(path.read_text() for path in files))
    half.rename(target)
