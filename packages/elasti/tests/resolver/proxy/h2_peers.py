"""Both ends of h2 by hand: frames that the test chooses, decoded as a real peer would."""

from __future__ import annotations

import asyncio

import hpack

from elasti.resolver.proxy.h2 import frames as h2
from elasti.resolver.proxy.h2.header_blocks import HeaderBlockAssembler
from elasti.resolver.proxy.upstream.interface import UpstreamAddress

Fields = list[tuple[bytes, bytes]]


def request_fields(path: bytes, *more: tuple[bytes, bytes]) -> Fields:
    return [
        (b":method", b"GET"),
        (b":scheme", b"http"),
        (b":path", path),
        (b":authority", b"a"),
        *more,
    ]


class H2End:
    """One end: sends header lists, and hears header lists and the other frames."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader, self._writer = reader, writer
        self.encoder, self.decoder = hpack.Encoder(), hpack.Decoder()
        self._blocks = HeaderBlockAssembler()

    def send(self, data: bytes) -> None:
        self._writer.write(data)

    def block(self, fields: Fields) -> bytes:
        return self.encoder.encode(fields)

    def headers(self, stream: int, fields: Fields, *, end: bool = False, pad: int = -1) -> None:
        payload, flags = self.block(fields), h2.END_HEADERS | (h2.END_STREAM if end else 0)
        if pad >= 0:
            payload, flags = bytes((pad,)) + payload + bytes(pad), flags | h2.PADDED
        self.send(h2.frame(h2.HEADERS, flags=flags, stream=stream, payload=payload))

    def ask(self, stream: int, path: bytes, *more: tuple[bytes, bytes], end: bool = True) -> None:
        self.headers(stream, request_fields(path, *more), end=end)

    def reset(self, stream: int) -> None:
        self.send(h2.rst_stream(stream, 8))

    async def hear(self) -> tuple[int, int, int, object]:
        """Return the next frame, or a whole header block: kind, flags, stream, payload or fields."""
        async with asyncio.timeout(40):
            while True:
                found = h2.header_at(await self._reader.readexactly(9), 0)
                payload = await self._reader.readexactly(found.length)
                if found.kind not in h2.BLOCKS:
                    return found.kind, found.flags, found.stream, payload
                block = self._blocks.add(found, payload)
                if block is not None:
                    fields = [
                        (bytes(n), bytes(v))
                        for n, v in self.decoder.decode(block.fragment, raw=True)
                    ]
                    return h2.HEADERS, h2.END_STREAM * block.ends_stream, block.stream, fields

    async def hear_headers(self) -> tuple[int, Fields]:
        """Return the next header block; settings and windows before it are not looked at."""
        while True:
            kind, _, stream, fields = await self.hear()
            if kind == h2.HEADERS:
                assert isinstance(fields, list)
                return stream, fields

    async def hear_kind(self, kind: int) -> bytes:
        """Return the payload of the next frame of a kind."""
        while True:
            found, _, _, payload = await self.hear()
            if found == kind:
                assert isinstance(payload, bytes)
                return payload


class H2Client(H2End):
    """A client that has said hello."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        super().__init__(reader, writer)
        self.send(h2.PREFACE + h2.frame(h2.SETTINGS))


class H2Pod:
    """A pod's handler: every connection becomes an end that the test speaks for."""

    def __init__(self) -> None:
        self._ends: asyncio.Queue[H2End] = asyncio.Queue()
        self.address = UpstreamAddress("", 0)

    async def __call__(self, pod, reader, writer) -> None:
        assert await reader.readexactly(len(h2.PREFACE)) == h2.PREFACE
        end = H2End(reader, writer)
        end.send(h2.frame(h2.SETTINGS))
        self._ends.put_nowait(end)
        await asyncio.Event().wait()

    async def end(self) -> H2End:
        """Return the next connection's end."""
        async with asyncio.timeout(40):
            return await self._ends.get()
