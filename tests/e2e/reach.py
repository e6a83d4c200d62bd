"""Waits until addresses accept connections, from where it runs.

    python -m tests.e2e.reach SECONDS HOST:PORT...

A Service is as good as its address on the nodes, and nodes hear of a new one later than we do. The
connections are closed without a byte, which wakes nobody. Where one is not reached in time, the exit
code is 1 and the words say which.
"""

from __future__ import annotations

import socket
import sys
import time

PAUSE = 0.02


def reached(address: str) -> bool:
    """Whether an address accepts a connection now."""
    host, _, port = address.rpartition(":")
    try:
        socket.create_connection((host, int(port)), timeout=1).close()
    except OSError:
        return False
    return True


def main() -> None:
    deadline = time.monotonic() + float(sys.argv[1])
    for address in sys.argv[2:]:
        while not reached(address):
            if time.monotonic() > deadline:
                sys.exit(f"{address} accepts no connection")
            time.sleep(PAUSE)


if __name__ == "__main__":
    main()
