"""The limits of one worker: sizes, numbers and times.

Times are in seconds, and are checked once a second. None of them bounds a healthy exchange: a stream may last
for days while the side that has to act does so.
"""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import IPv4Network, IPv6Network

# Descriptors reserved for the API server, the operator, probes, the admin port and the log.
_OURS = 96
# With fewer, a resolver would be ready without serving a single client.
FEWEST_DESCRIPTORS = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of one worker."""

    # A new connection may stay silent this long.
    first_byte: float = 60.0
    # From the first byte of a head to its last.
    head: float = 30.0
    # From the start of an h2 connection to its first request.
    first_request: float = 30.0
    # Between two requests. Longer than load balancers keep connections, so that they close first and no
    # request hits a closing connection.
    idle: float = 620.0
    # A client that stops sending in the middle of its body.
    body_stall: float = 60.0
    # A client that does not read its response.
    read_stall: float = 300.0
    # A pod that took a request and sends no response head.
    answer: float = 3600.0
    # After the last response, for a client that still sends, so that it can read the response.
    linger: float = 5.0
    # A TCP connection that closes within this time without a byte does not wake.
    tcp_grace: float = 1.0
    # If a port's protocol is not declared, a client that is silent this long expects the server to speak first.
    detect_grace: float = 0.05
    connect: float = 5.0
    # How long idle connections to pods are kept. Requests that cannot be repeated only use connections that
    # were active within the shorter time, since pods close idle ones without notice.
    pod_idle: float = 30.0
    pod_idle_unrepeatable: float = 1.0
    max_idle_per_pod: int = 100
    # Connections being opened to one pod at a time, and before its first response: its backlog may be short.
    # One that is not accepted within `connect_again` is retried in its turn: the pod's kernel drops SYNs that
    # its backlog has no room for, and ours would retransmit only after a second.
    connects_per_pod: int = 32
    first_connects: int = 3
    connect_again: float = 0.1
    # Bytes read of a held request, head and body; then TCP pushes back.
    held_bytes: int = 64 * 1024
    # Bytes kept of requests pipelined behind the running one; then TCP pushes back.
    pipelined_bytes: int = 64 * 1024
    # Bytes that a worker keeps for all clients, and the part reserved for every Service.
    held_memory: int = 256 * 1024 * 1024
    reserved_memory: int = 1024 * 1024
    # Connections of clients and to pods, and the numbers reserved for every Service.
    max_clients: int = 12_000
    max_pods: int = 6_000
    # The share of one client address, and the networks whose addresses may have any number.
    max_per_client: int = 12_000
    unlimited_clients: tuple[IPv4Network | IPv6Network, ...] = ()
    reserved_clients: int = 64
    reserved_pods: int = 16
    # Refused clients that may linger at a time to read the response.
    max_refusals: int = 128
    # How long a connection may wait for a descriptor to a pod.
    opening: float = 60.0

    @classmethod
    def for_descriptors(cls, descriptors: int) -> Limits:
        """Divide the limit of open files: two thirds for clients, the rest for pods and the resolver itself."""
        refusals = max(descriptors // 64, 16)
        usable = max(descriptors - refusals - _OURS, 64)
        clients = usable * 2 // 3
        return cls(
            max_clients=clients,
            max_per_client=clients * 4 // 5,
            max_pods=usable // 3,
            max_refusals=refusals,
        )
