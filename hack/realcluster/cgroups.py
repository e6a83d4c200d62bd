"""A cluster's cgroups: one of its own in every hierarchy, and a clean end.

The hierarchies are those of cgroup v1, where this machine has them. `/elasti-<name>` in each belongs to
the cluster; nodes' pods are below it (`node-1/kubepods/...`), and in the `pids` hierarchy also every
other process of the cluster (`rig`), so that nothing of it can be overlooked when it is cleared.
"""

from __future__ import annotations

import hashlib
import os
import re
import signal
import time
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

NEEDED = ("cpu", "cpuacct", "cpuset", "memory", "devices", "freezer", "blkio", "pids")
TRACKED = "pids"
POLL_SECONDS = 0.05


class CgroupsMissing(Exception):
    """This machine's cgroups cannot hold a node; the text, one sentence, says what is missing."""


@dataclass(frozen=True, slots=True)
class Hierarchy:
    """One mounted hierarchy: its mount option and where it is here."""

    option: str
    path: Path

    @property
    def controllers(self) -> set[str]:
        """What it counts or limits."""
        return set(self.option.split(","))


def parse(mounts: str) -> list[Hierarchy]:
    """The v1 hierarchies in /proc/mounts that a node needs, and `name=systemd` where there is one."""
    found: dict[str, Hierarchy] = {}
    for line in mounts.splitlines():
        _, path, kind, options = line.split()[:4]
        if kind != "cgroup":
            continue
        words = [o for o in options.split(",") if o in NEEDED or o == "name=systemd"]
        if words:
            found.setdefault(",".join(words), Hierarchy(",".join(words), Path(path)))
    absent = set(NEEDED).difference(*(hierarchy.controllers for hierarchy in found.values()))
    if absent:
        raise CgroupsMissing(
            "a node needs the cgroup v1 hierarchies, and this machine does not have"
            f" {', '.join(sorted(absent))} mounted (cgroup v2 alone is not supported yet)"
        )
    return list(found.values())


def hierarchies() -> list[Hierarchy]:
    """Those of this machine, or CgroupsMissing."""
    return parse(Path("/proc/mounts").read_text())


@dataclass(frozen=True, slots=True)
class Group:
    """The cluster's cgroup, the same path in every hierarchy."""

    name: str

    @classmethod
    def of(cls, directory: Path) -> Group:
        """Two clusters in different directories have different ones."""
        return cls(f"elasti-{hashlib.sha256(bytes(directory.resolve())).hexdigest()[:12]}")

    def make(self, child: str) -> str:
        """Make a child in every hierarchy; return its path inside them. Idempotent."""
        for hierarchy in hierarchies():
            top = hierarchy.path / self.name
            for path in (top, top / child):
                path.mkdir(exist_ok=True)
                if "cpuset" in hierarchy.controllers:
                    # A new one has neither processors nor memory, and no process may enter it.
                    for kind in ("cpuset.cpus", "cpuset.mems"):
                        (path / kind).write_text((hierarchy.path / kind).read_text())
        return f"/{self.name}/{child}"

    def enter(self) -> None:
        """Have this process, and all it starts, counted as the cluster's."""
        self.make("rig")
        (self._tracked() / "rig" / "cgroup.procs").write_text(str(os.getpid()))

    def leave(self) -> None:
        """Take this process out again, so that the rest can be cleared."""
        (self._tracked().parent / "cgroup.procs").write_text(str(os.getpid()))

    def processes(self) -> set[int]:
        """Every process of the cluster."""
        found: set[int] = set()
        for path in self._tracked().rglob("cgroup.procs"):
            with suppress(OSError):  # its cgroup has gone while we looked
                found.update(map(int, path.read_text().split()))
        return found

    def clear(self, patience: float) -> None:
        """Return when no process of it is left and its cgroups are gone.

        They have so many seconds to end by themselves, as they do when their owner has gone.
        """
        deadline = time.monotonic() + patience
        while alive := self.processes() - {os.getpid()}:
            if time.monotonic() > deadline:
                for pid in alive:
                    with suppress(ProcessLookupError):
                        os.kill(pid, signal.SIGKILL)
            time.sleep(POLL_SECONDS)
        for hierarchy in hierarchies():
            remove(hierarchy.path / self.name)

    def _tracked(self) -> Path:
        (path,) = [h.path for h in hierarchies() if TRACKED in h.controllers]
        return path / self.name


def remove(top: Path, patience: float = 10.0) -> None:
    """Remove a cgroup and those below it; the kernel may need a moment to let go of the last process."""
    deadline = time.monotonic() + patience
    while top.exists():
        for path in sorted((p for p in [top, *top.rglob("*")] if p.is_dir()), reverse=True):
            with suppress(OSError):
                path.rmdir()
        if top.exists():
            if time.monotonic() > deadline:
                raise TimeoutError(f"{top} cannot be removed: something is in it")
            time.sleep(POLL_SECONDS)


def mount_script(found: list[Hierarchy], at: str = "/sys/fs/cgroup") -> str:
    """Shell lines that mount the hierarchies again, in a mount namespace with a new /sys."""
    lines = [f"mount -t tmpfs -o mode=755 tmpfs {at}"]
    for hierarchy in found:
        name = re.sub("^name=", "", hierarchy.option)
        option = hierarchy.option if name == hierarchy.option else f"none,{hierarchy.option}"
        lines += [f"mkdir {at}/{name}", f"mount -t cgroup -o {option} cgroup {at}/{name}"]
        lines += [f"ln -s {name} {at}/{one}" for one in name.split(",") if one != name]
    return "\n".join(lines)
