"""A gRPC server of all four kinds of calls, on bytes. Prints its port; ends with its input."""

from __future__ import annotations

import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import grpc


class Echo(grpc.GenericRpcHandler):  # type: ignore[misc]  # gRPC has no types
    """Answers with what it is sent."""

    def __init__(self) -> None:
        self.cancelled = 0
        self.calls = 0

    def service(self, handler_call_details):
        kinds = {
            "/echo/unary": grpc.unary_unary_rpc_method_handler(self._unary),
            "/echo/never": grpc.unary_unary_rpc_method_handler(self._never),
            "/echo/cancelled": grpc.unary_unary_rpc_method_handler(self._count),
            "/echo/calls": grpc.unary_unary_rpc_method_handler(lambda _, __: b"%d" % self.calls),
            "/echo/server": grpc.unary_stream_rpc_method_handler(self._server),
            "/echo/client": grpc.stream_unary_rpc_method_handler(lambda all_, _: b"".join(all_)),
            "/echo/both": grpc.stream_stream_rpc_method_handler(lambda all_, _: all_),
        }
        return kinds.get(handler_call_details.method)

    def _unary(self, request, context):
        self.calls += 1
        sent = dict(context.invocation_metadata())
        context.set_trailing_metadata((("x-sum", "42"), ("x-echo", sent.get("x-from", ""))))
        if request == b"fail":
            context.abort(grpc.StatusCode.INVALID_ARGUMENT, "bad: Ä")
        return request

    def _never(self, request, context):
        over = threading.Event()
        context.add_callback(over.set)
        over.wait(30)
        self.cancelled += 1
        return b""

    def _count(self, request, context):
        return b"%d" % self.cancelled

    def _server(self, request, context):
        for number in range(int(request)):
            yield b"%d" % number


def main() -> None:
    with ThreadPoolExecutor(20) as threads:
        server = grpc.server(threads)
        server.add_generic_rpc_handlers((Echo(),))
        port = server.add_insecure_port("127.0.0.1:0")
        server.start()
        print(port, flush=True)
        sys.stdin.read()
        server.stop(None).wait()


if __name__ == "__main__":
    main()
