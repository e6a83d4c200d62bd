"""A real cluster, in the process that owns it: the control plane, the nodes, DNS.

The control plane is that of `tests/controlplane`; this adds the network to it, and nodes that run
containers. Every program lives in namespaces that end with the owner, however the owner ends.
"""

from __future__ import annotations

import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Self

from hack.realcluster import network
from hack.realcluster.images import coredns_tag
from hack.realcluster.node import Node
from hack.realcluster.programs import HERE
from tests.controlplane.keeper import Keeper
from tests.controlplane.rig import ControlPlane
from tests.controlplane.rig import Options as ControlPlaneOptions
from tests.history.audit import POLICY

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

    from hack.realcluster.cgroups import Group
    from hack.realcluster.programs import Programs

READY_SECONDS = 120.0
# As Kubernetes has it: nodes here have kubelets, and a lost one is to be missed.
NODE_GRACE = "50s"


@dataclass(frozen=True, slots=True)
class Options:
    """What kind of cluster."""

    nodes: int = 1
    proxy: str = "nftables"


class RealCluster:
    """Starts on entry, serves with every node Ready and DNS answering, ends on exit."""

    def __init__(
        self,
        options: Options,
        *,
        directory: Path,
        programs: Programs,
        images: Sequence[Path],
        group: Group,
        say: Callable[[str], None],
    ) -> None:
        self.options = options
        self.directory = directory
        self.nodes: list[Node] = []
        self.kubeconfig = directory / "kubeconfig"
        self._programs, self._images, self._group = programs, images, group
        self._say = say
        self._began = time.monotonic()
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with self._stack:  # which ends what has been started, unless all goes well
            self._start()
            self._stack = self._stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._stack.close()

    def _start(self) -> None:
        logs = self.directory / "logs"
        # Entered first, left last: what its threads wait for ends before they are waited for.
        pool = self._stack.enter_context(ThreadPoolExecutor())
        for index in range(1, self.options.nodes + 1):
            directory = self.directory / f"node-{index}"
            node = Node(
                index, directory=directory, logs=logs, programs=self._programs, group=self._group
            )
            self._stack.callback(node.close)
            self.nodes.append(node)
        # The nodes' containerd and the control plane know nothing of each other yet.
        preparing = [pool.submit(node.prepare, self._images) for node in self.nodes]
        self.controlplane = self._stack.enter_context(
            ControlPlane(self._programs.controlplane, controlplane_options(), logs=logs)
        )
        self._step("control plane ready")
        network.connect(self.controlplane.sandbox, [node.sandbox for node in self.nodes])
        for done in preparing:
            done.result()
        self._step("containerd and images ready")
        for joining in [pool.submit(self._join, node) for node in self.nodes]:
            joining.result()
        self._install_dns()
        self._until_nodes_are_ready()
        self._step("nodes Ready")
        self._until_dns_answers()
        self._step("DNS ready")
        parts = [part for node in self.nodes for part in node.components]
        parts += self.controlplane.components.values()
        self._stack.enter_context(Keeper(parts))
        shutil.copyfile(self.controlplane.kubeconfig, self.kubeconfig)
        self.kubeconfig.chmod(0o600)

    def _join(self, node: Node) -> None:
        rig = self.controlplane
        node.join(
            kubelet=rig.kubeconfig_for(f"system:node:{node.name}", ["system:nodes"], inside=True),
            proxy=rig.kubeconfig_for("system:kube-proxy", inside=True),
            authority=rig.ca_file,
            serving=rig.server_certificate(
                f"kubelet-{node.name}", [network.node_address(node.files.index), node.name]
            ),
            mode=self.options.proxy,
        )

    def _install_dns(self) -> None:
        manifest = (HERE / "dns.yaml").read_text()
        text = manifest.replace("IMAGE", coredns_tag()).replace("ADDRESS", network.DNS_ADDRESS)
        self.controlplane.kubectl("apply", "-f", "-", stdin=text)

    def _until_nodes_are_ready(self) -> None:
        def ready(nodes: list[dict[str, Any]]) -> bool:
            return len(nodes) == len(self.nodes) and all(map(is_ready, nodes))

        self.controlplane.api.until("/api/v1/nodes", ready, READY_SECONDS)

    def _until_dns_answers(self) -> None:
        path = "/api/v1/namespaces/kube-system/pods?labelSelector=k8s-app%3Dkube-dns"
        self.controlplane.api.until(
            path, lambda pods: any(map(is_ready, pods)), timeout=READY_SECONDS
        )

    def _step(self, what: str) -> None:
        self._say(f"{what}: {time.monotonic() - self._began:.1f} s")


def controlplane_options() -> ControlPlaneOptions:
    """The usual control plane, which looks after its nodes and finds aggregated APIs by their pods."""
    return ControlPlaneOptions(
        node_grace=NODE_GRACE,
        # No kube-proxy is where the API server is: it goes to the endpoints of a Service itself.
        apiserver_flags=("--enable-aggregator-routing=true",),
        audit_policy=POLICY,
    )


def is_ready(item: dict[str, Any]) -> bool:
    """Whether a Node or a Pod has the condition."""
    conditions = item.get("status", {}).get("conditions", [])
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
