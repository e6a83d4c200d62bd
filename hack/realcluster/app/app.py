"""The app that sleeps: answers every path, says in its log when it listens and what it was asked.

START_DELAY (seconds) makes it slow to start; PORT is where it listens.
"""

from __future__ import annotations

import http.server
import os
import socket
import time


class Handler(http.server.BaseHTTPRequestHandler):
    """Counts requests for the `pods` trigger; probes do not count."""

    protocol_version = "HTTP/1.1"
    count = 0

    def do_GET(self) -> None:
        """Answer a request, or a probe."""
        if self.path in ("/ready", "/live", "/metrics"):
            text = f"# TYPE http_requests_total counter\nhttp_requests_total {Handler.count}\n"
        else:
            Handler.count += 1
            text = f"hello from {socket.gethostname()} {self.path}\n"
        self.send_response(200)
        self.send_header("Content-Length", str(len(text)))
        self.end_headers()
        self.wfile.write(text.encode())

    def log_message(self, format: str, *values: object) -> None:  # noqa: A002
        """One line per request, with the time on the machine's clock."""
        print(f"{time.time():.4f} {format % values}", flush=True)


def main() -> None:
    """Serve for ever."""
    time.sleep(float(os.environ.get("START_DELAY", "0")))
    server = http.server.ThreadingHTTPServer(("", int(os.environ.get("PORT", "8080"))), Handler)
    print(f"{time.time():.4f} listening", flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main()
