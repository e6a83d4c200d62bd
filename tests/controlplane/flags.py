"""What each program of the control plane is started with.

Addresses are fixed: every control plane has a network namespace to itself. Pods and nodes have
addresses in POD_RANGE, Services in SERVICE_RANGE; both are local inside, so that a process may bind
any of them. The API server binds the node's address only, not 0.0.0.0, which would make it answer on
every pod's address too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tests.controlplane.sandbox import Address

if TYPE_CHECKING:
    from pathlib import Path

    from tests.controlplane.keyring import Keyring

POD_RANGE = "10.200.0.0/16"
SERVICE_RANGE = "10.201.0.0/16"
# For Services that ask for both families; nothing answers there.
SERVICE_RANGE_6 = "fd00:10:201::/112"
NODE_ADDRESS = "10.200.0.1"
# What the relays connect from, so that their connections can be told from those of programs inside.
RELAY_ADDRESS = "10.200.0.2"
API_SERVICE_ADDRESS = "10.201.0.1"
SERVER_NAMES = (
    "localhost",
    "127.0.0.1",
    NODE_ADDRESS,
    API_SERVICE_ADDRESS,
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
    "kubernetes.default.svc.cluster.local",
)
ISSUER = "https://kubernetes.default.svc.cluster.local"

ETCD = Address("127.0.0.1", 2379)
APISERVER = Address(NODE_ADDRESS, 6443)
CONTROLLER_MANAGER = Address("127.0.0.1", 10257)
SCHEDULER = Address("127.0.0.1", 10259)


def etcd(data: Path) -> list[str]:
    client, peer = f"http://{ETCD.host}:{ETCD.port}", f"http://{ETCD.host}:{ETCD.port + 1}"
    return [
        f"--data-dir={data}",
        f"--listen-client-urls={client}",
        f"--advertise-client-urls={client}",
        f"--listen-peer-urls={peer}",
        f"--initial-advertise-peer-urls={peer}",
        f"--initial-cluster=default={peer}",
        # The data need not survive a power cut, and the only member need not wait for others' votes.
        "--unsafe-no-fsync",
        "--heartbeat-interval=10",
        "--election-timeout=100",
        "--log-level=warn",
    ]


def apiserver(keys: Keyring) -> list[str]:
    return [
        f"--etcd-servers=http://{ETCD.host}:{ETCD.port}",
        f"--bind-address={APISERVER.host}",
        f"--advertise-address={APISERVER.host}",
        f"--secure-port={APISERVER.port}",
        f"--tls-cert-file={keys['server.crt']}",
        f"--tls-private-key-file={keys['server.key']}",
        f"--client-ca-file={keys['ca.crt']}",
        # For aggregated APIs; without it the other components complain every few milliseconds.
        f"--requestheader-client-ca-file={keys['ca.crt']}",
        "--requestheader-allowed-names=front-proxy-client",
        f"--proxy-client-cert-file={keys['front-proxy.crt']}",
        f"--proxy-client-key-file={keys['front-proxy.key']}",
        "--requestheader-username-headers=X-Remote-User",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        f"--kubelet-client-certificate={keys['kubelet-client.crt']}",
        f"--kubelet-client-key={keys['kubelet-client.key']}",
        "--kubelet-preferred-address-types=InternalIP",
        f"--service-account-issuer={ISSUER}",
        f"--service-account-key-file={keys['sa.pub']}",
        f"--service-account-signing-key-file={keys['sa.key']}",
        f"--service-cluster-ip-range={SERVICE_RANGE},{SERVICE_RANGE_6}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        # Later releases let an HPA have minReplicas 0 without being asked.
        "--feature-gates=HPAScaleToZero=true",
        "--profiling=false",
    ]


def _client(keys: Keyring, kubeconfig: Path) -> list[str]:
    """Flags that the API server's own clients have in common."""
    return [
        f"--kubeconfig={kubeconfig}",
        f"--authentication-kubeconfig={kubeconfig}",
        f"--authorization-kubeconfig={kubeconfig}",
        f"--tls-cert-file={keys['server.crt']}",
        f"--tls-private-key-file={keys['server.key']}",
        # One instance each, and it must be at work at once.
        "--leader-elect=false",
        # The defaults throttle a test that makes some hundred objects to a crawl.
        "--kube-api-qps=1000",
        "--kube-api-burst=2000",
        "--profiling=false",
    ]


def controller_manager(keys: Keyring, kubeconfig: Path, *, node_grace: str) -> list[str]:
    return [
        *_client(keys, kubeconfig),
        f"--bind-address={CONTROLLER_MANAGER.host}",
        f"--secure-port={CONTROLLER_MANAGER.port}",
        "--controllers=*",
        "--use-service-account-credentials=true",
        f"--service-account-private-key-file={keys['sa.key']}",
        f"--root-ca-file={keys['ca.crt']}",
        f"--cluster-signing-cert-file={keys['ca.crt']}",
        f"--cluster-signing-key-file={keys['ca.key']}",
        f"--node-monitor-grace-period={node_grace}",
    ]


def scheduler(keys: Keyring, kubeconfig: Path) -> list[str]:
    return [
        *_client(keys, kubeconfig),
        f"--bind-address={SCHEDULER.host}",
        f"--secure-port={SCHEDULER.port}",
    ]
