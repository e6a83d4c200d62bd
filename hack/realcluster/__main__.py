"""A real cluster on this machine: control plane, one or two nodes, containers, DNS."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from hack import gobuild
from hack.realcluster import images, lifecycle, machine, programs
from hack.realcluster.cluster import Options
from hack.realcluster.network import NetworkError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from hack.realcluster.state import State

PREFIX = "realcluster"
DEFAULT = programs.ROOT / "build" / "realcluster"


def parser() -> argparse.ArgumentParser:
    """What the command line may say."""
    whole = argparse.ArgumentParser(prog="hack/realcluster/cluster", description=__doc__)
    commands = whole.add_subparsers(dest="command", required=True)

    def command(name: str, what: str) -> argparse.ArgumentParser:
        added = commands.add_parser(name, help=what, description=what)
        added.add_argument("--dir", type=Path, default=DEFAULT, help="where its state is")
        return added

    build = command("build", "build the programs and images that the cache lacks")
    build.add_argument("components", nargs="*", help=f"of {', '.join(programs.toolsets())}, or all")
    command("image", "build the project's image, and import it into the nodes that are up")
    start = command("up", "start a cluster, unless it is up")
    start.add_argument("--nodes", type=int, choices=(1, 2), default=1)
    start.add_argument("--proxy", choices=("nftables", "iptables"), default="nftables")
    command("down", "end the cluster, and clear what a killed one left")
    command("status", "what is up")
    command("kubeconfig", "print the path of the kubeconfig")
    run = command("exec", "run a program in a node's namespaces")
    run.add_argument("place", help="node-1, node-2 or controlplane")
    run.add_argument("argv", nargs=argparse.REMAINDER)
    return whole


def build(components: Sequence[str]) -> None:
    """Everything that a cluster needs; and `all`, or some by name, beyond that."""
    machine.check_machine()
    programs.require({**programs.RUNNING, **programs.BUILDING})
    known = tuple(programs.toolsets())
    unknown = set(components).difference(known, {"all"})
    if unknown:
        raise gobuild.BuildError(f"no component {', '.join(unknown)}: there are {', '.join(known)}")
    status = subprocess.run([programs.ROOT / "hack/controlplane/build"], check=False).returncode
    if status != 0:
        raise gobuild.BuildError("the control plane was not built, see above")
    wanted = known if "all" in components else (*programs.ESSENTIAL, *components)
    programs.build(tuple(dict.fromkeys(wanted)), os.environ)
    images.stock(os.environ)
    images.project(os.environ)


def load_image(directory: Path) -> None:
    """The project's image of the tree as it is, in the cache and in the nodes."""
    archive = images.project(os.environ)
    state = lifecycle.state_of(directory)
    if state is not None:
        lifecycle.load(state, archive)


def describe(state: State) -> str:
    """What is up, for people."""
    places = [
        f"  {place.name:<13} {place.address:<12} process {place.pid}" for place in state.places
    ]
    head = f"up, {state.nodes} node(s), {state.proxy}, ready after {state.seconds} s"
    return "\n".join([head, *places, f"export KUBECONFIG={state.kubeconfig}"])


def running(directory: Path) -> State:
    """The cluster that is up, or ClusterError."""
    state = lifecycle.state_of(directory)
    if state is None:
        raise lifecycle.ClusterError("no cluster is up: run `hack/realcluster/cluster up`")
    return state


def obey(given: argparse.Namespace) -> int:
    """Do what the command line says; the exit status."""
    match given.command:
        case "build":
            build(given.components)
        case "image":
            load_image(given.dir)
        case "up":
            print(describe(lifecycle.up(given.dir, Options(given.nodes, given.proxy))))
        case "down":
            print("down" if lifecycle.down(given.dir) else "none was up")
        case "status":
            print(describe(running(given.dir)))
        case "kubeconfig":
            print(running(given.dir).kubeconfig)
        case "exec":
            argv = given.argv[1:] if given.argv[:1] == ["--"] else given.argv
            command = lifecycle.inside(running(given.dir), given.place, argv or ["sh"])
            return subprocess.run(command, check=False).returncode
    return 0


def main() -> int:
    """The command: exit status, and one sentence where it cannot."""
    given = parser().parse_args()
    status = 0

    def work() -> None:
        nonlocal status
        try:
            status = obey(given)
        except (
            lifecycle.ClusterError,
            machine.Unsuitable,
            programs.ProgramsMissing,
            NetworkError,
            KeyError,
        ) as error:
            raise gobuild.BuildError(str(error)) from error

    return gobuild.reported(PREFIX, work) or status


if __name__ == "__main__":
    sys.exit(main())
