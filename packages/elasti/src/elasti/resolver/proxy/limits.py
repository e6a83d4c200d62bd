"""The limits of one worker: sizes, numbers and times that every connection is held to.

Times are in seconds and checked once a second, so they are kept to the second. None of them bounds
a healthy exchange: a stream may last for days, as long as the side that must act does.
"""

from __future__ import annotations

from dataclasses import dataclass

# Descriptors for the API server, the operator, probes, the admin port and the log.
_OURS = 96


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The bounds of one worker."""

    # A new connection may stay silent this long.
    first_byte: float = 60.0
    # From the first byte of a head to its last, however slowly they drip.
    head: float = 30.0
    # From the start of an h2 connection to its first request.
    first_request: float = 30.0
    # Between two requests. Longer than load balancers keep theirs, so that they close first and no
    # request meets a closing connection.
    idle: float = 620.0
    # A client that owes the rest of its body and sends nothing.
    body_stall: float = 60.0
    # A client that does not read its answer.
    read_stall: float = 300.0
    # A pod that took a request and sends no head of an answer.
    answer: float = 3600.0
    # After a last answer, for a client that is still sending, so that it reads the answer.
    linger: float = 5.0
    # A TCP connection that closes within this time without a byte does not wake.
    tcp_grace: float = 1.0
    # Where a port's protocol is not declared, a client that waits this long expects the server to begin.
    detect_grace: float = 0.05
    connect: float = 5.0
    # Idle connections to pods are kept this long; requests that cannot be repeated take only
    # connections that were used within the shorter time, since pods close idle ones unannounced.
    pod_idle: float = 30.0
    pod_idle_unrepeatable: float = 1.0
    max_idle_per_pod: int = 100
    # Connections being opened to one pod at a time, and how many before it has answered any; its backlog
    # may be short. One that is not accepted within `connect_again` is begun again in its turn: the pod's
    # kernel drops what its backlog has no room for, and ours would ask again only after a second.
    connects_per_pod: int = 32
    first_connects: int = 3
    connect_again: float = 0.1
    # What is read of a request that waits, head and body; then TCP pushes back.
    held_bytes: int = 64 * 1024
    # What is kept of requests pipelined behind the running one, before TCP pushes back.
    pipelined_bytes: int = 64 * 1024
    # What a worker keeps of all clients' bytes, and what every Service may always have of it.
    held_memory: int = 256 * 1024 * 1024
    reserved_memory: int = 1024 * 1024
    # Descriptors: connections of clients and to pods, and what every service may always have of each.
    max_clients: int = 12_000
    max_pods: int = 6_000
    reserved_clients: int = 64
    reserved_pods: int = 16
    # How many clients that there is no room for are waited for at a time, to read the answer.
    max_refusals: int = 128
    # How long a connection may wait for a descriptor to a pod.
    opening: float = 60.0

    @classmethod
    def for_descriptors(cls, descriptors: int) -> Limits:
        """Divide what a process may open: two thirds to clients, the rest to pods and ourselves."""
        refusals = max(descriptors // 64, 16)
        usable = max(descriptors - refusals - _OURS, 64)
        return cls(max_clients=usable * 2 // 3, max_pods=usable // 3, max_refusals=refusals)
