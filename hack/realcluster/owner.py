"""The process that a cluster lives with, in the background: `owner DIRECTORY FD OPTIONS`.

It inherits the directory's lock as the descriptor FD, makes the cluster, reports, and waits to be told
to end (SIGTERM), or for the end of the process that the cluster was made for. Killed outright, it takes
every process of the cluster with it; what is left then is files and empty cgroups, for `sweep`.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import sys
import tempfile
import time
import traceback
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from hack.realcluster import images
from hack.realcluster.cgroups import Group
from hack.realcluster.cluster import Options, RealCluster
from hack.realcluster.programs import Programs
from hack.realcluster.state import FILE, Place, State

if TYPE_CHECKING:
    from types import FrameType

PATIENCE_SECONDS = 5.0


class Told(BaseException):
    """Somebody wants this to end."""


def say(line: str) -> None:
    """Note it in the log, with the time."""
    print(time.strftime("%T"), line, flush=True)


def told(_number: int, _frame: FrameType | None) -> None:
    """Make SIGTERM an exception, once: the way out is not to be interrupted."""
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    raise Told


def sweep(directory: Path) -> None:
    """Remove all that a cluster leaves but its logs; its owner must be gone. Safe to repeat."""
    Group.of(directory).clear(PATIENCE_SECONDS)
    for path in [*directory.glob("tmp"), *directory.glob("node-*")]:
        shutil.rmtree(path)
    for name in (FILE, "kubeconfig"):
        (directory / name).unlink(missing_ok=True)


def own(directory: Path, options: Options, beneficiary: int | None) -> None:
    """Make the cluster and keep it until it is time to end."""
    began = time.monotonic()
    state = State(owner=os.getpid(), nodes=options.nodes, proxy=options.proxy)
    state.write(directory)
    group = Group.of(directory)
    group.enter()
    temporary = directory / "tmp"
    temporary.mkdir()
    # The control plane's directory, too, is to be found by whoever sweeps.
    tempfile.tempdir = str(temporary)
    os.environ["TMPDIR"] = str(temporary)
    with RealCluster(
        options,
        directory=directory,
        programs=Programs.locate(os.environ),
        images=images.ready(os.environ),
        group=group,
        say=say,
    ) as cluster:
        inside = cluster.controlplane.sandbox.pid
        places = [Place("controlplane", inside, "10.200.0.1")]
        places += [Place(node.name, node.sandbox.pid, node.address) for node in cluster.nodes]
        replace(
            state,
            ready=True,
            kubeconfig=str(cluster.kubeconfig),
            seconds=round(time.monotonic() - began, 1),
            places=places,
        ).write(directory)
        wait_for_the_end(beneficiary)


def wait_for_the_end(beneficiary: int | None) -> None:
    """Return when the process that the cluster is for has ended; without one, wait to be told."""
    if beneficiary is None:
        while True:
            signal.pause()
    try:
        select.select([os.pidfd_open(beneficiary)], [], [])
    except ProcessLookupError:
        return


def main() -> None:
    """Be the owner."""
    directory, lock, options = Path(sys.argv[1]), int(sys.argv[2]), json.loads(sys.argv[3])
    os.set_inheritable(lock, False)  # noqa: FBT003 - it takes no keyword
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, told)
    beneficiary = options.pop("beneficiary")
    status = 0
    try:
        own(directory, Options(**options), beneficiary)
    except Told:
        say("told to end")
    except Exception:  # noqa: BLE001 - whatever it is, who waits for the cluster reads it in the log
        traceback.print_exc()
        status = 1
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    say("ended what ran inside")
    Group.of(directory).leave()
    sweep(directory)
    say("cleared")
    sys.exit(status)
