"""Many clients in one process: each opens a connection, asks for two paths at once, and waits.

Prints a line of JSON when all have asked, with when the first did, and another when all are answered:
when the first and the last byte came, by the machine's monotonic clock, and what went wrong.
"""

from __future__ import annotations

import argparse
import json
import selectors
import socket
import time

_PATIENCE = 60.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--host", default="127.0.0.1")
    parser.add_argument("--port", type=int, required=True)
    parser.add_argument("--count", type=int, required=True)
    parser.add_argument("--first", type=int, default=0, help="the number in the first path")
    arguments = parser.parse_args()
    address = (arguments.host, arguments.port)
    began = time.monotonic()
    waiting = _open(address, arguments.count, arguments.first)
    print(json.dumps({"asked": len(waiting), "began": began}), flush=True)
    print(json.dumps(_collect(waiting)), flush=True)


def _open(address: tuple[str, int], count: int, first: int) -> dict[socket.socket, bytes]:
    """Return the connections and what each must hear, in order."""
    waiting = {}
    for number in range(first, first + count):
        connection = socket.create_connection(address, 30)
        paths = [b"/%d/%d" % (number, which) for which in (1, 2)]
        connection.sendall(b"".join(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % path for path in paths))
        connection.settimeout(0)
        waiting[connection] = b"".join(path + b"\n" for path in paths)
    return waiting


def _collect(waiting: dict[socket.socket, bytes]) -> dict[str, object]:
    heard: dict[socket.socket, bytes] = dict.fromkeys(waiting, b"")
    times: list[float] = []
    errors = 0
    by_descriptor = {connection.fileno(): connection for connection in waiting}
    with selectors.DefaultSelector() as selector:
        for connection in waiting:
            selector.register(connection, selectors.EVENT_READ)
        deadline = time.monotonic() + _PATIENCE
        while selector.get_map() and time.monotonic() < deadline:
            for key, _ in selector.select(1.0):
                connection = by_descriptor[key.fd]
                over, ok = _hear(connection, heard, waiting[connection], times)
                if over:
                    selector.unregister(connection)
                    connection.close()
                    errors += not ok
        unanswered = len(selector.get_map())
    return {
        "first": min(times, default=0.0),
        "last": max(times, default=0.0),
        "errors": errors,
        "unanswered": unanswered,
        "firsts": sorted(times),
    }


def _hear(
    connection: socket.socket, heard: dict[socket.socket, bytes], wanted: bytes, times: list[float]
) -> tuple[bool, bool]:
    """Read; returns whether that was all, and whether it was right."""
    try:
        data = connection.recv(65_536)
    except OSError:
        data = b""
    if not heard[connection] and data:
        times.append(time.monotonic())
    heard[connection] += data
    bodies = _bodies(heard[connection])
    if len(bodies) >= len(wanted) or not data:
        return True, bodies == wanted
    return False, False


def _bodies(data: bytes) -> bytes:
    """Return the bodies of the whole responses in `data`, one after the other."""
    bodies, position = b"", 0
    while (end := data.find(b"\r\n\r\n", position)) >= 0:
        head = data[position:end].lower()
        length = int(head.partition(b"content-length:")[2].split(b"\r\n")[0])
        position = end + 4 + length
        if position > len(data):
            break
        bodies += data[end + 4 : position]
    return bodies


if __name__ == "__main__":
    main()
