"""An API server that does nothing but send pods, as fast as the other side takes them.

All bytes are made before the first request. It serves `/api/v1/pods`: a list (whole, or in pages
where a limit is given and `--pages` was), a watch, and a streaming list. Ends with its standard
input. Threads, because a blocking `sendall` of a large buffer costs the least.
"""

from __future__ import annotations

import argparse
import json
import socket
import sys
import threading
from dataclasses import dataclass
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from benchmarks.certificate import make_certificate, server_context
from benchmarks.streams import DISCOVERY, chunked, initial_stream, list_body, tally, watch_lines

if TYPE_CHECKING:
    import ssl

_STREAM = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nTransfer-Encoding: chunked\r\n\r\n"
_WHOLE = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
# Versions of listed objects lie below, those of watch events above.
_LIST_VERSION = 1


@dataclass(frozen=True, slots=True)
class Bodies:
    """What is sent, framed."""

    pages: dict[str, bytes]
    initial: bytes
    present: bytes
    events: bytes
    tally: dict[str, int]

    @classmethod
    def make(cls, *, listed: int, events: int, page: int, bookmarks: bool = True) -> Bodies:
        """Render everything; all that is listed is modified before anything else happens."""
        initial = list(initial_stream(listed, _LIST_VERSION))
        lines = list(watch_lines(events, alive=listed, bookmarks=bookmarks))
        return cls(
            pages=_pages(listed, page or max(listed, 1)),
            initial=chunked(b"".join(initial), seed=3),
            present=chunked(b"".join(initial[:-1]), seed=3),
            events=chunked(b"".join(lines)),
            tally={"listed": listed, **tally(initial + lines)},
        )

    def answer(self, query: dict[str, str]) -> tuple[bytes, ...]:
        """Choose the answer to a request; in parts, because joining them takes long."""
        if query[""] in DISCOVERY:
            body = json.dumps(DISCOVERY[query[""]]).encode()
            return (_WHOLE % len(body), body)
        if query.get("watch") not in {"true", "1", "True"}:
            body = self.pages[query.get("continue", "")]
            return (_WHOLE % len(body), body)
        if query.get("sendInitialEvents") == "true":
            return (_STREAM, self.initial, self.events)
        if query.get("resourceVersion", "0") == "0":
            return (_STREAM, self.present, self.events)  # what there is comes first, as ADDED
        return (_STREAM, self.events)


def _pages(listed: int, page: int) -> dict[str, bytes]:
    pages: dict[str, bytes] = {}
    for first in range(0, max(listed, 1), page):
        following = first + page
        token = f"from-{following}" if following < listed else ""
        body = list_body(first, min(page, listed - first), _LIST_VERSION, token)
        pages[f"from-{first}" if first else ""] = body
    return pages


def serve(listener: socket.socket, bodies: Bodies, context: ssl.SSLContext | None) -> None:
    """Accept connections for ever."""
    while True:
        connection, _ = listener.accept()
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        threading.Thread(target=_serve_one, args=(connection, bodies, context), daemon=True).start()


def _serve_one(connection: socket.socket, bodies: Bodies, context: ssl.SSLContext | None) -> None:
    try:
        if context is not None:
            connection = context.wrap_socket(connection, server_side=True)
        with connection:
            while request := _read_request(connection):
                for part in bodies.answer(request):
                    connection.sendall(part)
    except OSError:
        pass


def _read_request(connection: socket.socket) -> dict[str, str] | None:
    """Read one request head; return its query, None at the end of the connection."""
    data = b""
    while b"\r\n\r\n" not in data:
        received = connection.recv(65_536)
        if not received:
            return None
        data += received
    target = urlsplit(data.split(b" ", 2)[1].decode())
    return {
        "": target.path.rstrip("/"),
        **{key: value[0] for key, value in parse_qs(target.query).items()},
    }


def main() -> None:
    """Make the bytes, listen, say where, and serve until standard input ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--events", type=int, default=0)
    parser.add_argument("--listed", type=int, default=0)
    parser.add_argument("--page", type=int, default=0)
    parser.add_argument("--tls", action="store_true")
    parser.add_argument("--no-bookmarks", action="store_true")
    arguments = parser.parse_args()
    bodies = Bodies.make(
        listed=arguments.listed,
        events=arguments.events,
        page=arguments.page,
        bookmarks=not arguments.no_bookmarks,
    )
    certificate, key = make_certificate() if arguments.tls else (b"", b"")
    context = server_context(certificate, key) if arguments.tls else None
    listener = socket.create_server(("127.0.0.1", 0), backlog=64)
    threading.Thread(target=serve, args=(listener, bodies, context), daemon=True).start()
    scheme = "https" if arguments.tls else "http"
    url = f"{scheme}://127.0.0.1:{listener.getsockname()[1]}"
    print(json.dumps({"url": url, "ca": certificate.decode(), **bodies.tally}), flush=True)
    sys.stdin.read()


if __name__ == "__main__":
    main()
