"""The two service proxies that traffic is tried with: ours, and Kubernetes' own."""

from __future__ import annotations

import enum
import shutil
import sys
from typing import TYPE_CHECKING

from tests.e2e.settings import PYTHONPATH

if TYPE_CHECKING:
    from pathlib import Path

    from tests.controlplane.binaries import Binaries

HEALTH_PORT = 10256
PYTHON = ("env", f"PYTHONPATH={PYTHONPATH}", sys.executable, "-W", "ignore", "-m")


class ProxyKind(enum.Enum):
    """Which proxy makes Services' addresses lead somewhere."""

    OURS = "our proxy"
    KUBE_PROXY = "kube-proxy"


def missing(kind: ProxyKind, binaries: Binaries) -> str:
    """Say what a proxy lacks on this machine, in one line; empty where it can run."""
    if kind is ProxyKind.OURS:
        return ""
    if not shutil.which("nft"):
        return "kube-proxy needs nft: install nftables"
    if not shutil.which(binaries.path("kube-proxy")):
        return "no kube-proxy among the control plane's binaries: run `make controlplane`"
    return ""


def command(
    kind: ProxyKind, binaries: Binaries, *, kubeconfig: Path, node: str, address: str
) -> list[str]:
    """Return what starts a proxy for a node; kube-proxy is left at its defaults where it can be."""
    if kind is ProxyKind.OURS:
        module = "tests.serviceproxy.inside"
        return [*PYTHON, module, str(kubeconfig)]
    return [
        binaries.path("kube-proxy"),
        f"--kubeconfig={kubeconfig}",
        "--proxy-mode=nftables",
        f"--hostname-override={node}",
        # Limits of the whole kernel are not for a network namespace to set.
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
        f"--healthz-bind-address={address}:{HEALTH_PORT}",
        f"--metrics-bind-address={address}:10249",
        "--detect-local-mode=InterfaceNamePrefix",
        "--pod-interface-name-prefix=lo",
    ]
