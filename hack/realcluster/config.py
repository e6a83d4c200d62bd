"""What a node's programs are configured with: plain functions from names and paths to texts."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hack.realcluster import network
from hack.realcluster.images import PAUSE

if TYPE_CHECKING:
    from pathlib import Path

# The node's own in its mount namespace, where most programs write by default. Names below it are short,
# as those of sockets must be, wherever the cluster's directory is.
LIBRARY = "/var/lib"
IMAGES = f"{LIBRARY}/containerd"
SOCKET = "/run/containerd/containerd.sock"
PLUGINS = "/usr/lib/cni"
KUBELET_HEALTH_PORT = 10248
PROXY_HEALTH_PORT = 10256
# What the kubelet would set for the whole machine. It finds it done, in files laid over the real ones.
SYSCTLS = {
    "vm/overcommit_memory": 1,
    "vm/panic_on_oom": 0,
    "kernel/panic": 10,
    "kernel/panic_on_oops": 1,
    "kernel/keys/root_maxkeys": 1000000,
    "kernel/keys/root_maxbytes": 25000000,
}


@dataclass(frozen=True, slots=True)
class NodeFiles:
    """One node: its number, and the directory that has what it reads and writes, but for its images."""

    index: int
    directory: Path

    @property
    def name(self) -> str:
        """The Node's name."""
        return f"node-{self.index}"

    def path(self, name: str) -> Path:
        """Where something of it is."""
        return self.directory / name


def containerd(node: NodeFiles, *, runc: str) -> str:
    """containerd.toml: overlay snapshots, runc, our CNI network, and nothing but in the node's own places."""
    return f"""\
version = 3
root = "{IMAGES}"
state = "/run/containerd"
[grpc]
  address = "{SOCKET}"
[plugins."io.containerd.internal.v1.opt"]
  path = "{LIBRARY}/opt"
[plugins."io.containerd.nri.v1.nri"]
  disable = true
[plugins."io.containerd.cri.v1.images"]
  snapshotter = "overlayfs"
  [plugins."io.containerd.cri.v1.images".pinned_images]
    sandbox = "{PAUSE}"
[plugins."io.containerd.cri.v1.runtime"]
  # Not every root may lower an OOM score, and AppArmor's profiles are the machine's.
  restrict_oom_score_adj = true
  disable_apparmor = true
  [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
    runtime_type = "io.containerd.runc.v2"
    [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
      BinaryName = "{runc}"
      SystemdCgroup = false
  [plugins."io.containerd.cri.v1.runtime".cni]
    bin_dirs = ["{PLUGINS}"]
    conf_dir = "{node.path("net.d")}"
"""


def pod_network(node: NodeFiles) -> str:
    """A CNI network: a bridge of the node's own, addresses from its range."""
    addresses = {
        "type": "host-local",
        "dataDir": f"{LIBRARY}/cni",
        "ranges": [[{"subnet": network.pod_range(node.index)}]],
        "routes": [{"dst": "0.0.0.0/0"}],
    }
    bridge = {
        "type": "bridge",
        "bridge": "cni0",
        "isGateway": True,
        "ipMasq": False,
        "hairpinMode": True,
        "ipam": addresses,
    }
    ports = {"type": "portmap", "capabilities": {"portMappings": True}}
    return json.dumps({"cniVersion": "1.0.0", "name": "pods", "plugins": [bridge, ports]}, indent=2)


def kubelet(node: NodeFiles, *, cgroup: str, authority: Path, serving: tuple[Path, Path]) -> str:
    """A KubeletConfiguration. Its clients are those that the cluster's authority vouches for."""
    settings = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "containerRuntimeEndpoint": f"unix://{SOCKET}",
        "failCgroupV1": False,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup,
        "address": network.node_address(node.index),
        "healthzBindAddress": "127.0.0.1",
        "healthzPort": KUBELET_HEALTH_PORT,
        "clusterDomain": "cluster.local",
        "clusterDNS": [network.DNS_ADDRESS],
        "resolvConf": str(node.path("resolv.conf")),
        "volumePluginDir": f"{LIBRARY}/kubelet/volume-plugins",
        "failSwapOn": False,
        "oomScoreAdj": 0,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(authority)},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(serving[0]),
        "tlsPrivateKeyFile": str(serving[1]),
        # Images came by hand and cannot be fetched again; the machine's disk is others' too.
        "imageGCHighThresholdPercent": 100,
        "imageGCLowThresholdPercent": 99,
        "evictionHard": {
            "memory.available": "100Mi",
            "nodefs.available": "1%",
            "nodefs.inodesFree": "1%",
            "imagefs.available": "1%",
        },
    }
    return json.dumps(settings, indent=2)


def kubelet_flags(node: NodeFiles, *, kubeconfig: Path) -> list[str]:
    """What the kubelet takes on its command line only."""
    return [
        f"--config={node.path('kubelet.json')}",
        f"--kubeconfig={kubeconfig}",
        f"--hostname-override={node.name}",
        f"--node-ip={network.node_address(node.index)}",
    ]


def proxy_flags(node: NodeFiles, *, kubeconfig: Path, mode: str) -> list[str]:
    """What kube-proxy is started with. The connection tracker's limits are the machine's: untouched."""
    return [
        f"--kubeconfig={kubeconfig}",
        f"--proxy-mode={mode}",
        f"--hostname-override={node.name}",
        f"--cluster-cidr={network.POD_RANGE}",
        f"--healthz-bind-address=127.0.0.1:{PROXY_HEALTH_PORT}",
        "--conntrack-max-per-core=0",
        "--conntrack-tcp-timeout-established=0",
        "--conntrack-tcp-timeout-close-wait=0",
    ]
