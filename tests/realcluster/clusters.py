"""Clusters of a test's own, driven by the command line, and what they leave on the machine."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from hack.realcluster.cgroups import Group, hierarchies
from hack.realcluster.programs import ROOT
from hack.realcluster.state import State
from tests.waiting import eventually_blocking

if TYPE_CHECKING:
    from pathlib import Path

COMMAND = ROOT / "hack" / "realcluster" / "cluster"
SECONDS = 60.0


def command(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Run the command line to its end."""
    return subprocess.run([COMMAND, *arguments], check=False, capture_output=True, text=True)


def traces(directory: Path) -> list[str]:
    """What a cluster of this directory has on the machine: processes, cgroups, files beside its logs."""
    group = Group.of(directory)
    found = [f"process {pid}" for pid in group.processes()]
    found += [str(h.path / group.name) for h in hierarchies() if (h.path / group.name).exists()]
    kept = {"logs", "owner.lock", "command.lock"}
    return found + [str(path) for path in directory.glob("*") if path.name not in kept]


def starting(directory: Path) -> subprocess.Popen[bytes]:
    """`up`, and one that is on its way when this returns."""
    process = subprocess.Popen([COMMAND, "up", f"--dir={directory}"], stderr=subprocess.DEVNULL)
    eventually_blocking(lambda: State.read(directory) is not None, timeout=SECONDS)
    return process


def owner_of(directory: Path) -> int:
    """The process that a cluster lives with."""
    state = State.read(directory)
    assert state is not None
    return state.owner
