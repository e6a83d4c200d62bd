"""Connections in memory: latency, order within a connection, accept queues, partitions, and processes that die."""

from __future__ import annotations

import asyncio
import errno
import math
import socket
from collections import deque
from collections.abc import Callable
from typing import Any

from tests.swarm.loop import PROCESS, Process, SwarmLoop

_REFUSED = ConnectionRefusedError(errno.ECONNREFUSED, "connection refused")
# What a connection to an address that nobody has takes to fail.
_NO_ROUTE_AFTER = 3.0
_QUANTUM = 1e-6
Factory = Callable[[str], Any]


class Network:
    """Who listens where, and how long messages take."""

    def __init__(self, loop: SwarmLoop) -> None:
        self.loop = loop
        self.listeners: dict[tuple[str, int], Listener] = {}
        self.addresses: dict[str, Process] = {}
        self.transports: dict[MemoryTransport, None] = {}
        #: Called as a connection is accepted, and as a socket is closed over connections in its queue.
        self.on_accept: Callable[[str, int, int], None] = lambda _name, _port, _live: None
        self.on_closed_over: Callable[[str, int, int], None] = lambda _name, _port, _waiting: None

    def delay(self, *ends: Process) -> float:
        """Return how long a message between processes takes from now."""
        draw = self.loop.random
        seconds = draw.uniform(0.0001, 0.002) if draw.random() < 0.95 else draw.uniform(0.002, 0.05)
        seconds *= max(end.slowness for end in ends)
        return max(seconds, max(end.cut_until for end in ends) - self.loop.now + 0.001)

    def listen(self, process: Process, port: int, factory: Factory) -> Listener:
        """Listen at the address of a process. Raises OSError."""
        listener = Listener(self, process, port)
        listener.accept_with(factory)
        return listener

    async def connect(self, factory: Callable[[], Any], host: str, port: int) -> tuple[Any, Any]:
        """Connect as the current process. Raises OSError."""
        process = PROCESS.get()
        other = self.addresses.get(host)
        if other is None:
            await asyncio.sleep(_NO_ROUTE_AFTER)
            raise OSError(errno.EHOSTUNREACH, "no route to host")
        await asyncio.sleep(self.delay(process, other))
        listener = self.listeners.get((host, port))
        if listener is None or listener.stopped or not other.alive:
            raise ConnectionRefusedError(errno.ECONNREFUSED, f"{host}:{port} refused")
        near = MemoryTransport(self, process, (host, port))
        far = MemoryTransport(self, other, (process.address, 40000))
        near.peer, far.peer = far, near
        protocol = factory()
        near.begin(protocol)
        listener.queue.append(far)
        self.loop.call_later(self.delay(other), listener.accept, context=other.context)
        return near, protocol

    def end(self, process: Process) -> None:
        """End a process as one that exits: what it has answered arrives before the end of its connections."""
        for transport in [one for one in self.transports if one.process is process]:
            transport.write_eof()
        self.kill(process)

    def kill(self, process: Process) -> None:
        """End a process as SIGKILL does: the kernel resets its connections, and it hears of nothing."""
        process.alive = False
        for key in [key for key, one in self.listeners.items() if one.process is process]:
            self.listeners.pop(key).die()
        for transport in [one for one in self.transports if one.process is process]:
            transport.die()
        for task in process.tasks:
            task.cancel()


class Listener:
    """A listening socket and its accept queue; stands for an `asyncio.Server`, and for a `socket`."""

    def __init__(self, network: Network, process: Process, port: int) -> None:
        self.network, self.process, self.port = network, process, port
        self.queue: deque[MemoryTransport] = deque()
        self.stopped = False
        self._factory: Factory | None = None
        self._accepted: list[MemoryTransport] = []
        if network.listeners.setdefault((process.address, port), self) is not self:
            raise OSError(errno.EADDRINUSE, f"port {port} is in use")
        network.addresses[process.address] = process

    @property
    def sockets(self) -> list[Listener]:
        return [self]

    def getsockname(self) -> tuple[str, int]:
        return self.process.address, self.port

    def accept_with(self, factory: Factory) -> None:
        """Accept what is in the queue, and what comes."""
        self._factory = factory
        self.accept()

    def accept(self) -> None:
        """Give each connection of the queue its protocol."""
        while self.queue and self._factory is not None and self.process.alive:
            transport = self.queue.popleft()
            protocol = self._factory(transport.get_extra_info("peername")[0])
            at_once = getattr(protocol, "at_once", None)
            if at_once is not None:
                transport.write(at_once)
                transport.close()
            else:
                # As the resolver's own acceptor: the transport comes a turn after the protocol.
                transport._soon(transport.begin, protocol)
                transport.accepted_at = self.network.loop.now
                live = [
                    one for one in self._accepted if not one.is_over and not one.hears_of_an_end
                ]
                self._accepted = [*live, transport]
                self.network.on_accept(self.process.name, self.port, len(self._accepted))

    def close(self) -> None:
        """Close; connections that were not accepted are reset, as the kernel does."""
        if self.network.listeners.get((self.process.address, self.port)) is self:
            del self.network.listeners[self.process.address, self.port]
        if self.queue and self.process.alive:
            self.network.on_closed_over(self.process.name, self.port, len(self.queue))
        self.die()

    def die(self) -> None:
        while self.queue:
            self.queue.popleft().abort()

    async def wait_closed(self) -> None:
        return None

    def is_serving(self) -> bool:
        return not self.stopped


class MemoryAcceptor:
    """Stands for `Acceptor`: listens on what `bound_socket` returned."""

    def __init__(self, factory: Factory, sock: Listener, _poll: object = None) -> None:
        self._sock = sock
        sock.accept_with(factory)

    def close(self) -> None:
        """Stop accepting; open connections continue."""
        self._sock.close()


def bound_socket(_host: str | None, port: int, *, reuse_port: bool) -> Listener:
    """Stands for the resolver's own."""
    del reuse_port
    loop = asyncio.get_running_loop()
    assert isinstance(loop, SwarmLoop)
    return Listener(loop.network, PROCESS.get(), port)


def stop_new_handshakes(sock: Listener) -> None:
    """Stands for the resolver's own."""
    sock.stopped = True


def accept_queue_length(sock: Listener) -> int:
    """Stands for the resolver's own."""
    return len(sock.queue)


class _Kernel:
    """What a transport's socket is asked for."""

    family = socket.AF_UNIX  # so that no option of TCP is set

    def __init__(self, transport: MemoryTransport) -> None:
        self._transport = transport

    def getsockopt(self, _level: int, option: int, *_size: int) -> Any:
        if option == socket.TCP_INFO:
            return bytes([7 if self._transport.is_over else 1])
        raise OSError(errno.ENOPROTOOPT, "not in memory")

    def setsockopt(self, *_option: object) -> None:
        return None

    def fileno(self) -> int:
        raise OSError(errno.EBADF, "not in memory")


class MemoryTransport(asyncio.Transport):
    """One end of a connection. Bytes arrive in order; a reset overtakes nothing that was sent before."""

    def __init__(self, network: Network, process: Process, peername: tuple[str, int]) -> None:
        extra = {"peername": peername, "sockname": (process.address, 0), "socket": _Kernel(self)}
        super().__init__(extra)
        self.network, self.process = network, process
        self.peer: MemoryTransport = self
        self.is_over = False
        self.accepted_at = math.inf
        self._protocol: Any = None
        self._inbox: deque[bytes | BaseException | None] = deque()
        self._paused = False
        self._closing = False
        self._wrote_eof = False
        self._arrives = 0.0
        network.transports[self] = None

    def begin(self, protocol: Any) -> None:
        """Hand the connection to its protocol."""
        if not self.process.alive:
            return
        self._protocol = protocol
        protocol.connection_made(self)
        self._soon(self._read)

    def _soon(self, call: Callable[..., None], *args: Any) -> None:
        self.network.loop.call_soon(call, *args, context=self.process.context)

    @property
    def hears_of_an_end(self) -> bool:
        """Whether it is ending, or has something to read."""
        return self._closing or bool(self._inbox)

    # Sending

    def _send(self, what: bytes | BaseException | None) -> None:
        network, peer = self.network, self.peer
        at = network.loop.now + network.delay(self.process, peer.process)
        self._arrives = max(at, self._arrives + _QUANTUM)
        network.loop.call_at(self._arrives, peer.arrive, what, context=peer.process.context)

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if self._wrote_eof or self.is_over or not data:
            return
        self._send(bytes(data))

    def writelines(self, pieces: Any) -> None:
        self.write(b"".join(pieces))

    def write_eof(self) -> None:
        if not self._wrote_eof and not self.is_over:
            self._wrote_eof = True
            self._send(None)

    def can_write_eof(self) -> bool:
        return True

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self.write_eof()
            self._soon(self._lose, None)

    def abort(self) -> None:
        if not self.is_over:
            self._closing = True
            self._send(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))
            self._soon(self._lose, None)

    def die(self) -> None:
        """The process is gone."""
        if not self.is_over and not self._wrote_eof:
            self._send(ConnectionResetError(errno.ECONNRESET, "connection reset by peer"))
        self.is_over = self._closing = True
        self.network.transports.pop(self, None)

    # Receiving

    def arrive(self, what: bytes | BaseException | None) -> None:
        """Take what the other end sent."""
        if self.is_over:
            # As a kernel answers bytes for a connection that is closed.
            if isinstance(what, bytes) and self.process.alive and not self.peer.is_over:
                self.peer._soon(self.peer.arrive, ConnectionResetError(errno.ECONNRESET, "reset"))
            return
        self._inbox.append(what)
        self._read()

    def _read(self) -> None:
        while self._inbox and self._protocol is not None and not self.is_over:
            what = self._inbox[0]
            if isinstance(what, BaseException):
                self._inbox.clear()
                self._lose(what)
                return
            if self._paused or self._closing:
                if self._closing:
                    self._inbox.clear()
                elif isinstance(self._inbox[-1], BaseException):
                    self._lose(self._inbox[-1])
                return
            self._inbox.popleft()
            if what is None:
                if not self._protocol.eof_received():
                    self.close()
            elif isinstance(self._protocol, asyncio.BufferedProtocol):
                self._fill(what)
            else:
                self._protocol.data_received(what)

    def _fill(self, data: bytes) -> None:
        buffer = self._protocol.get_buffer(len(data))
        count = min(len(buffer), len(data))
        buffer[:count] = data[:count]
        if rest := data[count:]:
            self._inbox.appendleft(rest)
        self._protocol.buffer_updated(count)

    def _lose(self, error: BaseException | None) -> None:
        if self.is_over:
            return
        self.is_over = self._closing = True
        self.network.transports.pop(self, None)
        if self._protocol is not None:
            self._protocol.connection_lost(error)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        if self._paused:
            self._paused = False
            self._soon(self._read)

    def is_reading(self) -> bool:
        return not self._paused and not self._closing

    def is_closing(self) -> bool:
        return self._closing

    def set_protocol(self, protocol: Any) -> None:
        self._protocol = protocol

    def get_protocol(self) -> Any:
        return self._protocol

    def get_write_buffer_size(self) -> int:
        return 0

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return 0, 65536

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        return None
