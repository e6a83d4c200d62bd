"""An API server whose first watch of pods goes wrong, in one of the ways in which watches do.

There are two pods, `a` and `b`, at version 100. The first watch reports a change of `a` (101) and then
fails; meanwhile `b` is deleted (102) and `c` is made (103). From then on the server is healthy: a
client that is still right in the end knows `a` and `c`. Bookmarks are sent to those who ask for
them. Ends with its standard input.

cut: the connection is reset. half: it ends in order, but within a line, as behind a proxy. gone: an ERROR event of 410, and every
watch from before 104 is 410 too. stall: nothing more comes, and nothing ends.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import sys
from typing import Any
from urllib.parse import parse_qs, urlsplit

from benchmarks.pods import make_pod
from benchmarks.streams import DISCOVERY

FAULTS = ("cut", "half", "gone", "stall")
_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
_BOOKMARKS = 5.0


def pod(name: str, version: int) -> dict[str, Any]:
    """Return a pod of the benchmarks under a short name."""
    made = make_pod(ord(name), version)
    made["metadata"] |= {"name": name, "namespace": "default"}
    return {"kind": "Pod", "apiVersion": "v1", **made}


def event(kind: str, obj: dict[str, Any]) -> bytes:
    """Return one line of a watch."""
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"


class Server:
    """One fault, once."""

    def __init__(self, fault: str) -> None:
        self._fault = fault
        self._failed = False

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        with contextlib.suppress(OSError, asyncio.IncompleteReadError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                target = urlsplit(head.split(b" ", 2)[1].decode())
                query = {name: values[0] for name, values in parse_qs(target.query).items()}
                if query.get("watch") in {"true", "True", "1"}:
                    await self._watch(writer, query)
                    return
                self._send(writer, 200, self._document(target.path.rstrip("/")))
        writer.close()

    def _document(self, path: str) -> dict[str, Any]:
        if path in DISCOVERY:
            return DISCOVERY[path]
        items = [pod("a", 101), pod("c", 103)] if self._failed else [pod("a", 99), pod("b", 100)]
        version = "110" if self._failed else "100"
        metadata = {"resourceVersion": version}
        return {"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": items}

    def _send(self, writer: asyncio.StreamWriter, code: int, document: dict[str, Any]) -> None:
        body = json.dumps(document).encode()
        head = f"HTTP/1.1 {code} X\r\nContent-Type: application/json\r\nContent-Length: {len(body)}"
        writer.write(head.encode() + b"\r\n\r\n" + body)

    async def _watch(self, writer: asyncio.StreamWriter, query: dict[str, str]) -> None:
        def line(data: bytes) -> None:
            writer.write(b"%x\r\n%b\r\n" % (len(data), data))

        since = int(query.get("resourceVersion") or 0)
        writer.write(_STREAM)
        if not self._failed:
            self._failed = True
            if not since:
                line(event("ADDED", pod("a", 99)))
                line(event("ADDED", pod("b", 100)))
                self._end_initial(line, query, 100)
            line(event("MODIFIED", pod("a", 101)))
            if query.get("allowWatchBookmarks") == "true":
                line(event("BOOKMARK", _bookmark(101)))
            await writer.drain()
            await asyncio.sleep(1.0)
            await self._fail(writer, line)
            return
        if self._fault == "gone" and 0 < since < 104:
            line(event("ERROR", _GONE))
            writer.write(b"0\r\n\r\n")
            writer.close()
            return
        if not since:
            line(event("ADDED", pod("a", 101)))
            line(event("ADDED", pod("c", 103)))
            self._end_initial(line, query, 110)
        elif since < 103:
            line(event("DELETED", pod("b", 102)))
            line(event("ADDED", pod("c", 103)))
        while True:
            await asyncio.sleep(_BOOKMARKS)
            if query.get("allowWatchBookmarks") == "true":
                line(event("BOOKMARK", _bookmark(110)))
                await writer.drain()

    def _end_initial(self, line: Any, query: dict[str, str], version: int) -> None:
        if query.get("sendInitialEvents") == "true":
            bookmark = _bookmark(version)
            bookmark["metadata"]["annotations"] = {"k8s.io/initial-events-end": "true"}
            line(event("BOOKMARK", bookmark))

    async def _fail(self, writer: asyncio.StreamWriter, line: Any) -> None:
        match self._fault:
            case "cut":
                writer.transport.abort()
            case "half":
                line(event("ADDED", pod("c", 103))[:500])
                writer.write(b"0\r\n\r\n")
                writer.close()
            case "gone":
                line(event("ERROR", _GONE))
                writer.write(b"0\r\n\r\n")
                writer.close()
            case "stall":
                await asyncio.Event().wait()


def _bookmark(version: int) -> dict[str, Any]:
    return {"kind": "Pod", "apiVersion": "v1", "metadata": {"resourceVersion": str(version)}}


_GONE = {
    "kind": "Status",
    "apiVersion": "v1",
    "metadata": {},
    "status": "Failure",
    "message": "too old resource version: 101 (104)",
    "reason": "Expired",
    "code": 410,
}


async def main() -> None:
    """Listen, say where, and serve until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--fault", choices=FAULTS, required=True)
    server = await asyncio.start_server(Server(parser.parse_args().fault).serve, "127.0.0.1", 0)
    port = server.sockets[0].getsockname()[1]
    print(json.dumps({"url": f"http://127.0.0.1:{port}"}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    os._exit(0)  # without a word about the connections that are open


if __name__ == "__main__":
    asyncio.run(main())
