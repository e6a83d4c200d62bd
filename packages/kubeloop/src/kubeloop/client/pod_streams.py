"""Logs, commands and forwarded ports of pods, as async streams.

    async for line in client.logs("default", "web-0", follow=True): ...
    async with client.exec("default", "web-0", ["cat"], stdin=True) as process: ...
    async with client.port_forward("default", "web-0", 80) as (reader, writer): ...

Logs are a plain answer that is read as it comes. The others are WebSockets with channels (see
`wire.channels`). Commands are asked for in version 5 of the protocol (Kubernetes 1.30), else in
version 4, which cannot end stdin. Ports are asked for in version 4, a WebSocket for each
connection: kubelets pass it on to the container runtime, and the SPDY tunnel of Kubernetes 1.31 adds
only that connections share a socket. A client of a forwarded port cannot end its sending alone:
runtimes close both ways soon after, whatever the protocol.
"""

from __future__ import annotations

import asyncio
import codecs
import contextlib
import dataclasses
import functools
import logging
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from kubeloop.aio.tasks import BackgroundTasks
from kubeloop.client.errors import (
    ConnectionLost,
    KubeError,
    OutputTooLong,
    ProtocolError,
    Status,
    TransportError,
    error_from_status,
)
from kubeloop.client.request import Request, ResourceScope
from kubeloop.client.wire.channels import V4, V5, ChannelSocket
from kubeloop.client.wire.errors import lost
from kubeloop.objects.gvk import GroupVersionResource

if TYPE_CHECKING:
    from kubeloop.client.pipeline import RequestPipeline
    from kubeloop.client.wire.streams import StreamTransport

_PODS = ResourceScope(gvr=GroupVersionResource("", "v1", "pods"), namespaced=True)
_STDIN, _STDOUT, _STDERR, _ERROR, _RESIZE = range(5)
_MAX_LINE = 1024 * 1024
_PIECE = 64 * 1024
_MAX_OUTPUT = 16 * 1024 * 1024
# How long a pod may go on sending to a local client that has finished sending, as in runtimes.
_HALF_CLOSED = 1.0

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class StreamWriter:
    """Sends bytes to a container.

    `write` waits while the container does not keep up, and raises `ConnectionLost` if the command
    has ended. After `close` a command reads the end of its input; a forwarded connection is closed.
    """

    write: Callable[[bytes], Awaitable[None]]
    close: Callable[[], Awaitable[None]]


@dataclasses.dataclass(frozen=True, slots=True)
class CommandResult:
    """A command's output and exit code."""

    stdout: bytes
    stderr: bytes
    code: int


class ContainerProcess:
    """A command in a container, or what one is attached to; much as `asyncio.subprocess.Process`.

    `stdout` and `stderr` hold a bounded number of bytes: a program that reads one must read the other too.
    With a terminal all output is stdout. Both raise, as `wait` does, if there was no command or
    its connection is lost.
    """

    def __init__(self, channels: ChannelSocket, *, stdin: bool) -> None:
        self._channels = channels
        self._stdin = stdin
        self.stdout = channels.outputs[_STDOUT]
        self.stderr = channels.outputs[_STDERR]

    @property
    def stdin(self) -> StreamWriter:
        """Where the command reads from. Raises ValueError if it was not asked for."""
        if not self._stdin:
            raise ValueError("there is no stdin: pass stdin=True")
        send, end = self._channels.send, self._channels.end
        return StreamWriter(functools.partial(send, _STDIN), functools.partial(end, _STDIN))

    async def wait(self) -> int:
        """Return the exit code once the command has ended. Output that is not read delays that.

        Raises `ApiError` if the command could not be run, `ConnectionLost` where that is not known.
        """
        return await asyncio.shield(self._channels.ended)

    async def resize(self, *, columns: int, rows: int) -> None:
        """Tell a terminal its size."""
        size = {"Width": columns, "Height": rows}
        await self._channels.send(_RESIZE, msgspec.json.encode(size))


class PodStreams:
    """The part of a `Client` that talks to containers."""

    _pipeline: RequestPipeline
    _streams: StreamTransport

    async def logs(
        self,
        namespace: str,
        name: str,
        *,
        container: str = "",
        follow: bool = False,
        previous: bool = False,
        since_seconds: int | None = None,
        tail_lines: int | None = None,
        timestamps: bool = False,
    ) -> AsyncGenerator[str, None]:
        """Iterate over a container's log, line by line, without the newlines.

        It ends where the log does; with `follow`, when the container ends. Bytes that are not UTF-8
        come as U+FFFD, and a line of more than 1 Mi characters comes in pieces. Raises `BadRequest`
        for a container that has not started, and where one of several must be named. A loop that is
        left early is closed at once inside of `contextlib.aclosing`.
        """
        request = _request(
            namespace,
            name,
            "log",
            ("container", container),
            ("follow", follow),
            ("previous", previous),
            ("sinceSeconds", since_seconds),
            ("tailLines", tail_lines),
            ("timestamps", timestamps),
        )
        decoder, rest = codecs.getincrementaldecoder("utf-8")("replace"), ""
        # The answer's head comes with the first bytes, and a container may be quiet for long.
        async with contextlib.aclosing(self._streams.text(request, patient=follow)) as pieces:
            async for piece in pieces:
                *lines, rest = (rest + decoder.decode(piece)).split("\n")
                for line in lines:
                    yield line
                if len(rest) > _MAX_LINE:
                    yield rest
                    rest = ""
        if rest := rest + decoder.decode(b"", final=True):
            yield rest

    def exec(
        self,
        namespace: str,
        name: str,
        command: Sequence[str],
        *,
        container: str = "",
        stdin: bool = False,
        tty: bool = False,
    ) -> contextlib.AbstractAsyncContextManager[ContainerProcess]:
        """Run a command in a container: `async with client.exec(...) as process`.

        Leaving the block closes the connection; whether that ends the command is the runtime's to
        decide. Raises `NotFound`, `Forbidden`, and `BadRequest` for a container that is not there.
        """
        if isinstance(command, str) or not command:
            raise ValueError(
                f"command {command!r} is not a list of words, such as ['sh', '-c', 'ls']"
            )
        words = [("command", word) for word in command]
        return self._process(
            namespace, name, "exec", *words, container=container, stdin=stdin, tty=tty
        )

    def attach(
        self,
        namespace: str,
        name: str,
        *,
        container: str = "",
        stdin: bool = False,
        tty: bool = False,
    ) -> contextlib.AbstractAsyncContextManager[ContainerProcess]:
        """Join a container's main process, from now on; `tty` must be what the container has."""
        return self._process(namespace, name, "attach", container=container, stdin=stdin, tty=tty)

    async def run(
        self,
        namespace: str,
        name: str,
        command: Sequence[str],
        *,
        container: str = "",
        stdin: bytes = b"",
        max_output: int = _MAX_OUTPUT,
    ) -> CommandResult:
        """Run a command to its end and return all that it wrote, whatever its exit code.

        Raises `OutputTooLong` if that is more than `max_output` bytes on one of its outputs.
        A server may never say that a command has ended which did not read all of its `stdin`.
        """

        async def feed() -> None:
            # A command that has read enough may end before it was sent everything.
            with contextlib.suppress(ConnectionLost):
                if stdin:
                    await process.stdin.write(stdin)
                    await process.stdin.close()

        opened = self.exec(namespace, name, command, container=container, stdin=bool(stdin))
        async with opened as process:
            stdout, stderr, code, _ = await asyncio.gather(
                _whole(process.stdout, max_output),
                _whole(process.stderr, max_output),
                process.wait(),
                feed(),
            )
        return CommandResult(stdout, stderr, code)

    @contextlib.asynccontextmanager
    async def port_forward(
        self, namespace: str, name: str, port: int
    ) -> AsyncIterator[tuple[asyncio.StreamReader, StreamWriter]]:
        """Connect to a pod's port: `async with client.port_forward(...) as (reader, writer)`.

        The reader raises `TransportError` if nothing in the pod listens.
        """
        if not 0 < port < 65536:
            raise ValueError(f"port {port} must be from 1 to 65535")
        request = _request(namespace, name, "portforward", ("ports", port))
        channels = ChannelSocket(
            await self._pipeline.open_socket(request, protocols=(V4,)),
            url=request.target,
            outputs=(0,),
            error_channel=1,
            outcome=_forwarded,
            greeting=port.to_bytes(2, "little"),
        )
        async with contextlib.aclosing(channels):
            writer = StreamWriter(functools.partial(channels.send, 0), channels.aclose)
            yield channels.outputs[0], writer

    @contextlib.asynccontextmanager
    async def port_forward_listener(
        self, namespace: str, name: str, port: int, *, local_port: int = 0
    ) -> AsyncIterator[int]:
        """Forward every connection to a port of 127.0.0.1, which is yielded, to a pod's port.

        A connection that cannot be forwarded is closed, and logged.
        """

        async def send(reader: asyncio.StreamReader, pod: StreamWriter) -> None:
            with contextlib.suppress(ConnectionLost, OSError):
                while data := await reader.read(_PIECE):
                    await pod.write(data)
                await asyncio.sleep(_HALF_CLOSED)
            await pod.close()

        async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            try:
                async with self.port_forward(namespace, name, port) as (from_pod, pod):
                    async with BackgroundTasks() as sending:
                        sending.start(send(reader, pod), name="sending")
                        while data := await from_pod.read(_PIECE):
                            writer.write(data)
                            await writer.drain()
            except (KubeError, OSError) as error:
                _log.warning("connection to %s/%s:%d failed: %s", namespace, name, port, error)
            finally:
                writer.close()

        async with BackgroundTasks() as tasks:
            server = await asyncio.start_server(
                lambda *local: tasks.start(serve(*local), name=f"{namespace}/{name}:{port}"),
                "127.0.0.1",
                local_port,
            )
            try:
                yield server.sockets[0].getsockname()[1]
            finally:
                server.close()

    @contextlib.asynccontextmanager
    async def _process(
        self,
        namespace: str,
        name: str,
        part: str,
        *words: tuple[str, str],
        container: str,
        stdin: bool,
        tty: bool,
    ) -> AsyncIterator[ContainerProcess]:
        # A terminal has one output; some servers refuse a request for both.
        streams = {"stdin": stdin, "stdout": True, "stderr": not tty, "tty": tty}
        query = ("container", container), *streams.items(), *words
        request = _request(namespace, name, part, *query)
        channels = ChannelSocket(
            await self._pipeline.open_socket(request, protocols=(V5, V4)),
            url=request.path,
            outputs=(_STDOUT, _STDERR),
            error_channel=_ERROR,
            outcome=_exit_code,
        )
        async with contextlib.aclosing(channels):
            yield ContainerProcess(channels, stdin=stdin)


async def _whole(output: asyncio.StreamReader, limit: int) -> bytes:
    data = bytearray()
    while piece := await output.read(_PIECE):
        data += piece
        if len(data) > limit:
            raise OutputTooLong(
                f"the command wrote more than {limit} bytes; pass a larger max_output=, or read it"
                " piece by piece with exec()"
            )
    return bytes(data)


def _request(namespace: str, name: str, part: str, *query: tuple[str, object]) -> Request:
    wanted = [pair for pair in query if pair[1] not in {None, ""} and pair[1] is not False]
    return Request(
        method="GET",
        path=_PODS.resource_path(namespace).item(name, part),
        query=tuple((key, "true" if value is True else str(value)) for key, value in wanted),
        accept="*/*",
    )


def _exit_code(url: str, said: bytes) -> int:
    """Read the Status that ends a command."""
    if not said:
        raise lost(url, "the server did not report how the command ended", answer_begun=True)
    try:
        status = msgspec.json.decode(said, type=Status)
        if status.status == "Success":
            return 0
        for cause in (status.details.causes if status.details else None) or ():
            if cause.reason == "ExitCode":
                return int(cause.message)
    except ValueError as error:  # also msgspec's
        raise ProtocolError(
            f"{url}: {said[:200]!r} is not the Status of a command: {error}"
        ) from error
    raise error_from_status(status)


def _forwarded(url: str, said: bytes) -> int:
    if said:
        raise TransportError(f"{url}: {said.decode(errors='replace')}")
    return 0
