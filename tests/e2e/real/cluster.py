"""A cluster of real parts: the control plane, nodes whose pods are processes, and a service proxy.

    with RealCluster(binaries, proxy=ProxyKind.KUBE_PROXY) as cluster:
        cluster.rig.kubectl("get", "nodes")

Everything lives in the control plane's namespaces and ends with them, whatever happens to this
process. The controllers and the scheduler elect a leader and are started again when they leave, as in
any cluster; nodes count as lost after Kubernetes' own time. The proxy hears the API server through a
delay line.
"""

from __future__ import annotations

import contextlib
import sys
from typing import TYPE_CHECKING, Self

from tests.controlplane import flags
from tests.controlplane.api import ApiError
from tests.controlplane.component import Component
from tests.controlplane.keeper import Keeper
from tests.controlplane.rig import ControlPlane, Options
from tests.e2e.real import delayline, proxies
from tests.history.audit import POLICY

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path
    from types import TracebackType

    from tests.controlplane.binaries import Binaries
    from tests.e2e.real.proxies import ProxyKind

NODES = {"node-1": ("10.200.2.1", "10.200.2.0/23"), "node-2": ("10.200.4.1", "10.200.4.0/23")}
PODS_A_NODE = 110
DELAY_PORT = 6444
START_SECONDS = 90.0
# The usual time, and one that a machine with much to do still keeps.
NODE_GRACE = "50s"
OPTIONS = Options(
    node_grace=NODE_GRACE,
    controller_manager_flags=("--leader-elect=true",),
    scheduler_flags=("--leader-elect=true",),
    audit_policy=POLICY,
)


class RealCluster:
    """Runs between `__enter__` and `__exit__`; the methods block."""

    def __init__(self, binaries: Binaries, *, proxy: ProxyKind, logs: Path | None = None) -> None:
        self._binaries = binaries
        self._logs = logs
        self.kind = proxy
        self._running = contextlib.ExitStack()

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack:
            self.rig = rig = stack.enter_context(
                ControlPlane(self._binaries, OPTIONS, logs=self._logs)
            )
            self._keeper = stack.enter_context(Keeper([rig.controller_manager, rig.scheduler]))
            self.nodes = [self._kubelet(name) for name in NODES]
            self._control = rig.directory / "delay.sock"
            self._line = self._delay_line()
            self.proxy = self._proxy()
            for component in (*self.nodes, self._line, self.proxy):
                component.launch()
            self.wait_ready()
            self._running = stack.pop_all()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self._running.close()

    def wait_ready(self) -> None:
        """Return when everything works: controllers, scheduler, nodes, proxy."""
        self._keeper.wait_ready(START_SECONDS)
        for component in (*self.nodes, self._line):
            component.wait_ready(START_SECONDS)
        # The API server's own Service, which every cluster has.
        server = f"{flags.API_SERVICE_ADDRESS}:443"
        reach = [*proxies.PYTHON, "tests.e2e.reach", str(START_SECONDS), server]
        self.rig.run_inside(reach, timeout=2 * START_SECONDS)

    def tails(self, lines: int = 20) -> str:
        """The ends of all logs, for a failure's report."""
        own = (*self.nodes, self._line, self.proxy)
        return self.rig.tails(lines) + "".join(f"\n--- {p.name}\n{p.tail(lines)}" for p in own)

    # Hurting it

    def delay_endpoints(self, seconds: float) -> None:
        """Let the proxy hear of everything this much later."""
        delayline.set_delay(self._control, seconds)

    def break_connections(self) -> int:
        """Break every connection that pods have to the API server; returns how many there were."""
        server = flags.APISERVER
        command = [*proxies.PYTHON, "tests.e2e.real.breaker", server.host, str(server.port)]
        return int(self.rig.run_inside(command))

    def stop_api_server(self) -> None:
        """Let it be away: connections break, new ones are refused."""
        self.rig.apiserver.kill()

    def start_api_server(self) -> None:
        """Bring it back, and return when it serves."""
        self.rig.apiserver.launch()
        self.rig.apiserver.wait_ready(START_SECONDS)

    def restart_etcd(self) -> None:
        """Kill etcd and start it again on the same data."""
        self.rig.etcd.kill()
        self.rig.etcd.launch()
        self.rig.etcd.wait_ready(START_SECONDS)

    # Making it

    def _component(self, name: str, argv: list[str], ready: Callable[[], bool]) -> Component:
        log = self.rig.logs / f"{name}.log"
        return Component(name, argv, sandbox=self.rig.sandbox, log=log, ready=ready)

    def _kubelet(self, name: str) -> Component:
        rig = self.rig
        address, network = NODES[name]
        kubeconfig = rig.kubeconfig_for(f"system:node:{name}", ["system:nodes"], inside=True)
        directory = rig.directory / name
        arguments = [str(kubeconfig), name, address, network, str(directory)]
        command = [*proxies.PYTHON, "tests.kubelet.inside", f"--pods={PODS_A_NODE}"]
        # Pods are processes of one machine: each listens on its own address.
        command += ["--env=ELASTI_LISTEN_ADDRESS=$(POD_IP)"]
        command += [f"--program=elasti={sys.executable} -m elasti", *arguments]
        return self._component(name, command, lambda: self._node_is_ready(name))

    def _node_is_ready(self, name: str) -> bool:
        try:
            node = self.rig.api.get(f"/api/v1/nodes/{name}")
        except (OSError, ApiError):
            return False
        conditions = node.get("status", {}).get("conditions") or ()
        ready = any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)
        return ready and not node["spec"].get("taints")

    def _delay_line(self) -> Component:
        server = flags.APISERVER
        argv = [*proxies.PYTHON, "tests.e2e.real.delayline", str(self._control)]
        argv += [server.host, str(DELAY_PORT), server.host, str(server.port)]
        return self._component("delay-line", argv, self._control.exists)

    def _proxy(self) -> Component:
        first = next(iter(NODES))
        address = NODES[first][0]
        # Masquerading takes an address of the outgoing interface, and local routes do not count.
        self.rig.run_inside(["ip", "address", "replace", f"{address}/32", "dev", "lo"])
        via = f"https://{flags.APISERVER.host}:{DELAY_PORT}"
        kubeconfig = self.rig.kubeconfig_for("system:kube-proxy", via=via)
        argv = proxies.command(
            self.kind, self._binaries, kubeconfig=kubeconfig, node=first, address=address
        )
        # That it works shows only from inside; `wait_ready` looks.
        return self._component("service-proxy", argv, lambda: True)
