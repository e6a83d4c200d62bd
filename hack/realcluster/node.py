"""One node: namespaces of its own with containerd, the images, a kubelet and kube-proxy in them."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from hack.gobuild import cache_root
from hack.realcluster import cgroups, config, network
from hack.realcluster.programs import ROOT, TOOL_PATH, which
from tests.controlplane.api import Api
from tests.controlplane.component import Component
from tests.controlplane.sandbox import Address, Sandbox

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from hack.realcluster.programs import Programs

READY_SECONDS = 60.0


class NodeError(Exception):
    """The node could not be made; the text has the last words of what failed."""


class Node:
    """A node that lives as long as its owner; `directory` has what it writes.

    `prepare` needs no control plane and takes most of the time; `join` needs the network and the
    control plane. Both block.
    """

    def __init__(
        self, index: int, *, directory: Path, logs: Path, programs: Programs, group: cgroups.Group
    ) -> None:
        self.files = config.NodeFiles(index, directory)
        self.name = self.files.name
        self.address = network.node_address(index)
        self._programs = programs
        self._logs = logs
        self._group = group
        health = {"kubelet": config.KUBELET_HEALTH_PORT, "kube-proxy": config.PROXY_HEALTH_PORT}
        relays = {name: Address("127.0.0.1", port) for name, port in health.items()}
        self.sandbox = Sandbox(local_ranges=[], relays=relays)
        self.components: list[Component] = []

    def close(self) -> None:
        """End every process of the node. Idempotent."""
        self.sandbox.close()

    def prepare(self, images: Sequence[Path]) -> None:
        """Give it cgroups and mounts, start containerd, import the images."""
        files = self.files
        for name in ("log", "sys", "net.d", "lib"):
            files.path(name).mkdir(parents=True)
        self._group.make(self.name)
        network.shell(self.sandbox, self._mounts())
        runc = which("runc")
        assert runc is not None, "the programs have been looked for"
        files.path("containerd.toml").write_text(config.containerd(files, runc=runc))
        files.path("net.d/10-pods.conflist").write_text(config.pod_network(files))
        files.path("resolv.conf").touch()
        tools = self._programs.containerd
        self._start(
            "containerd",
            ["env", f"PATH={tools}:{TOOL_PATH}", str(tools / "containerd")],
            [f"--config={files.path('containerd.toml')}"],
        )
        for image in images:
            self.load(image)

    def load(self, image: Path) -> None:
        """Import an archive of images, for pods that never pull."""
        ctr = [str(self._programs.containerd / "ctr"), "--namespace=k8s.io", "images", "import"]
        done = subprocess.run(
            self.sandbox.command([*ctr, "--local", "--discard-unpacked-layers", str(image)]),
            check=False,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        if done.returncode != 0:
            raise NodeError(f"{self.name}: {image} was not imported: {done.stdout[-500:]}")

    def join(
        self,
        *,
        kubelet: Path,
        proxy: Path,
        authority: Path,
        serving: tuple[Path, Path],
        mode: str,
    ) -> None:
        """Start kubelet and kube-proxy, each with the kubeconfig that is its own.

        `serving`: the certificate that the kubelet shows its clients, and its key.
        """
        files = self.files
        cgroup = self._group.make(self.name)
        settings = config.kubelet(files, cgroup=cgroup, authority=authority, serving=serving)
        files.path("kubelet.json").write_text(settings)
        self._start(
            "kubelet",
            [str(self._programs.kubelet)],
            config.kubelet_flags(files, kubeconfig=kubelet),
            wait=False,
        )
        self._start(
            "kube-proxy",
            [self._programs.controlplane.path("kube-proxy")],
            config.proxy_flags(files, kubeconfig=proxy, mode=mode),
            wait=False,
        )
        for component in self.components:
            component.wait_ready(READY_SECONDS)

    def _start(
        self, name: str, program: list[str], arguments: list[str], *, wait: bool = True
    ) -> None:
        def ready() -> bool:
            if name == "containerd":
                return self._containerd_answers()
            return Api(self.sandbox.ports[name]).healthy("/healthz")

        log = self._logs / f"{self.name}-{name}.log"
        argv = [*program, *arguments]
        component = Component(name, argv, sandbox=self.sandbox, log=log, ready=ready)
        self.components.append(component)
        component.launch()
        if wait:
            component.wait_ready(READY_SECONDS)

    def _containerd_answers(self) -> bool:
        with socket.socket(socket.AF_UNIX) as connection, suppress(OSError):
            connection.connect(f"/proc/{self.sandbox.pid}/root{config.SOCKET}")
            return True
        return False

    def _mounts(self) -> str:
        """Shell lines that make a node's file system of the machine's, in the mount namespace.

        A /sys and a /run of its own, the cgroup hierarchies again, and its own directories where
        programs write to a fixed place. The old /sys goes first: runc would see the mounts below it.
        """
        files = self.files
        lines = [
            "mount -t tmpfs -o mode=755 tmpfs /run",
            own_library(files.path("lib"), needed_paths(files.directory)),
            # Only now: what is shared spreads to every other view of the same file system.
            "mount --make-rshared /",
            "umount -lR /sys",
            "mount -t sysfs sysfs /sys",
            cgroups.mount_script(cgroups.hierarchies()),
            f"mount --bind {files.path('log')} /var/log",
            # In memory: half a gigabyte in thousands of files is written and removed at once.
            f"mkdir {config.IMAGES}",
            f"mount -t tmpfs -o mode=711 tmpfs {config.IMAGES}",
            "mkdir -p /var/log/pods /var/log/containers",
        ]
        for name, value in config.SYSCTLS.items():
            path = files.path("sys") / name.replace("/", ".")
            path.write_text(f"{value}\n")
            lines.append(f"mount --bind {path} /proc/sys/{name}")
        return "\n".join(lines)


def own_library(directory: Path, needed: Iterable[Path]) -> str:
    """Shell lines that lay a directory over /var/lib, where programs of nodes write whatever one says.

    What a node itself is made of may be below the machine's /var/lib, and stays visible then.
    """
    library = Path(config.LIBRARY)
    kept = {path.relative_to(library).parts[0] for path in needed if library in path.parents}
    lines = ["mkdir /run/lib", f"mount --rbind {library} /run/lib"]
    lines += [f"mount --bind {directory} {library}"]
    for name in sorted(kept):
        lines += [f"mkdir {library}/{name}", f"mount --rbind /run/lib/{name} {library}/{name}"]
    return "\n".join([*lines, "umount -lR /run/lib"])


def needed_paths(directory: Path) -> list[Path]:
    """Where a node's own files, programs and images are."""
    own = [directory, ROOT, cache_root(os.environ), Path(sys.prefix), Path(sys.base_prefix)]
    return [path.resolve() for path in own]
