"""Which addresses a real cluster has, and the wires between its network namespaces.

The control plane and the nodes are on one bridge, which is in the control plane's namespace; a pair of
virtual interfaces leads to each node. Every node has a range of pod addresses, and everybody knows the
way to it through that node. Nothing of this is in the machine's own network namespace.
"""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

from hack.realcluster.programs import which
from tests.controlplane import flags

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tests.controlplane.sandbox import Sandbox

GATEWAY = "10.202.0.1"
BRIDGE_ADDRESS = "02:00:0a:ca:00:01"
POD_RANGE = "10.203.0.0/16"
SERVICE_RANGE = flags.SERVICE_RANGE
DNS_ADDRESS = "10.201.0.10"


class NetworkError(Exception):
    """A wire could not be laid; the text has the command and what it said."""


def node_address(index: int) -> str:
    """The node's own address, on the bridge."""
    return f"10.202.0.{10 + index}"


def pod_range(index: int) -> str:
    """The addresses of a node's pods."""
    return f"10.203.{index}.0/24"


def controlplane_script() -> str:
    """Shell lines for the control plane's namespace.

    The bridge has an address of its own. It would have the lowest of its ports', so that taking a
    node's wire off it could change it, and the other nodes would send to the old one for a while.
    """
    return f"""
        ip link add br0 address {BRIDGE_ADDRESS} type bridge
        ip address add {GATEWAY}/24 dev br0
        ip link set br0 up
        echo 1 > /proc/sys/net/ipv4/ip_forward
    """


def wire_script(index: int) -> str:
    """Shell lines for the control plane's namespace, when a node's wire is there."""
    return f"""
        ip link set node{index} master br0 up
        ip route add {pod_range(index)} via {node_address(index)}
    """


def node_script(index: int, nodes: int) -> str:
    """Shell lines for a node's namespace."""
    others = [other for other in range(1, nodes + 1) if other != index]
    routes = [f"ip route add {pod_range(o)} via {node_address(o)}" for o in others]
    return "\n".join(
        [
            f"ip address add {node_address(index)}/24 dev eth0",
            "ip link set eth0 up",
            f"ip route add default via {GATEWAY}",
            *routes,
            "echo 1 > /proc/sys/net/ipv4/ip_forward",
            # What pods of one node send each other goes through the Service rules, too.
            "echo 1 > /proc/sys/net/bridge/bridge-nf-call-iptables",
        ]
    )


def connect(controlplane: Sandbox, nodes: Sequence[Sandbox]) -> None:
    """Lay the wires between namespaces that have none."""
    shell(controlplane, controlplane_script())
    for index, node in enumerate(nodes, start=1):
        # Both ends are born where they belong: the machine's own namespace never sees them.
        wire = ["type", "veth", "peer", "name", "eth0", "netns", str(node.pid)]
        _run(
            [str(which("ip")), "link", "add", f"node{index}", "netns", str(controlplane.pid), *wire]
        )
        shell(controlplane, wire_script(index))
        shell(node, node_script(index, len(nodes)))


def shell(sandbox: Sandbox, script: str) -> None:
    """Run shell lines in a namespace; the first that fails ends them, with NetworkError."""
    _run(sandbox.command(["sh", "-ec", script]))


def _run(command: list[str]) -> None:
    done = subprocess.run(command, check=False, stderr=subprocess.PIPE, text=True)
    if done.returncode != 0:
        raise NetworkError(f"{' '.join(command[-8:])}: {done.stderr.strip()}")
