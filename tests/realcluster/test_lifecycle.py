"""Up and down, twice, side by side, and killed at any moment: nothing is left that is not cleared."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from hack.realcluster import lifecycle
from hack.realcluster.cgroups import Group
from hack.realcluster.cluster import Options
from hack.realcluster.state import is_owned
from tests.realcluster.clusters import SECONDS, command, owner_of, starting, traces
from tests.waiting import eventually_blocking

if TYPE_CHECKING:
    from tests.realcluster.rig import Rig

pytestmark = [pytest.mark.realcluster, pytest.mark.timeout(300)]


def test_a_second_cluster_beside_the_first_does_not_disturb_it(
    realcluster: Rig, own_directory: Path
) -> None:
    up = command("up", "--proxy=iptables", f"--dir={own_directory}")
    assert up.returncode == 0, up.stderr
    again = command("up", "--proxy=iptables", f"--dir={own_directory}")
    assert again.stdout == up.stdout
    other = command("up", "--nodes=2", f"--dir={own_directory}")
    assert other.returncode == 1
    assert "take it down first" in other.stderr

    path = command("kubeconfig", f"--dir={own_directory}").stdout.strip()
    nodes = subprocess.run(
        [realcluster._kubectl, f"--kubeconfig={path}", "get", "nodes", "--output=name"],
        check=True,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert nodes.stdout == "node/node-1\n"
    names = command("exec", f"--dir={own_directory}", "node-1", "--", "iptables-save")
    assert "kube-dns:dns" in names.stdout
    unknown = command("exec", f"--dir={own_directory}", "node-2", "true")
    assert "node-1" in unknown.stderr

    assert command("down", f"--dir={own_directory}").stdout == "down\n"
    assert traces(own_directory) == []
    assert command("down", f"--dir={own_directory}").stdout == "none was up\n"
    assert command("status", f"--dir={own_directory}").returncode == 1
    assert realcluster.kubectl("get", "--raw=/readyz") == "ok"
    assert lifecycle.state_of(realcluster.directory) == realcluster.state


@pytest.mark.parametrize("moment", ["", "control plane ready", "containerd and images ready"])
def test_killed_while_it_starts_it_leaves_no_process_and_the_rest_is_cleared(
    own_directory: Path, moment: str
) -> None:
    with starting(own_directory) as up:
        eventually_blocking(lambda: moment in lifecycle.log_tail(own_directory), timeout=SECONDS)
        os.kill(owner_of(own_directory), signal.SIGKILL)
        assert up.wait(SECONDS) == 1
    eventually_blocking(lambda: not Group.of(own_directory).processes(), timeout=SECONDS)
    assert traces(own_directory) != []
    lifecycle.down(own_directory)
    assert traces(own_directory) == []


def test_ended_while_it_starts_it_leaves_nothing(own_directory: Path) -> None:
    with starting(own_directory) as up:
        # The command that waits may be killed: the cluster goes on to start, and is found.
        up.kill()
    assert is_owned(own_directory)
    assert lifecycle.down(own_directory)
    assert traces(own_directory) == []


def test_the_next_up_clears_what_a_killed_one_left(own_directory: Path) -> None:
    first = lifecycle.up(own_directory, Options())
    os.kill(first.owner, signal.SIGKILL)
    eventually_blocking(lambda: not is_owned(own_directory), timeout=SECONDS)
    second = lifecycle.up(own_directory, Options())
    assert second.owner != first.owner
    assert Path(second.kubeconfig).exists()


def test_it_ends_with_the_process_that_it_is_for(own_directory: Path) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        lifecycle.up(own_directory, Options(), beneficiary=process.pid)
        process.kill()
    eventually_blocking(lambda: not is_owned(own_directory), timeout=SECONDS)
    assert traces(own_directory) == []
