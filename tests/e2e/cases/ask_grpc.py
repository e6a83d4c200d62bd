"""A gRPC client, run where Services can be reached: one call of each kind, and what came of it.

    python -m tests.e2e.cases.ask_grpc HOST:PORT

Nothing is tried twice: gRPC's own retries are off.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

import grpc

PATIENCE = 150.0


def said(call: Callable[[], Any]) -> Any:
    """Return what a call returned, or its status in words."""
    try:
        return call()
    except grpc.RpcError as error:
        return f"{error.code().name}: {error.details()}"


def main() -> None:
    with grpc.insecure_channel(sys.argv[1], options=[("grpc.enable_retries", 0)]) as channel:
        unary = channel.unary_unary("/echo/unary")
        stream = channel.unary_stream("/echo/server")
        answers = {
            "unary": said(lambda: unary(b"hello", timeout=PATIENCE).decode()),
            "stream": said(lambda: [b.decode() for b in stream(b"5", timeout=PATIENCE)]),
        }
    print(json.dumps(answers))


if __name__ == "__main__":
    main()
