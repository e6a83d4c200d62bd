"""The processes of the resolver's benchmarks: a backend, and the proxies that are compared.

Each runs on a given core; nginx and HAProxy come from the system, the Go program is built once into a
cache outside of the tree. What is missing is left out with a line that says so.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tests.resolver.installation import installation

from tests.side_loop import SideLoop

if TYPE_CHECKING:
    from collections.abc import Iterator

_GO_SOURCE = Path(__file__).resolve().parent / "goproxy"
_TICK = os.sysconf("SC_CLK_TCK")
GIB = 1 << 30


@dataclass(slots=True)
class Server:
    """A running server, and the process of it that does the work."""

    port: int
    pid: int

    def cpu(self) -> float:
        """Return the processor seconds used so far."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / _TICK

    def peak_rss(self) -> int:
        """Return the most memory that it held."""
        status = Path(f"/proc/{self.pid}/status").read_text()
        return int(status.partition("VmHWM:")[2].split()[0]) * 1024


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextlib.contextmanager
def backend(core: int) -> Iterator[Server]:
    """An nginx that answers its path, and a gibibyte under /gib."""
    if shutil.which("nginx") is None:
        raise SystemExit(
            "the resolver's benchmarks need nginx as a backend: apt-get install nginx-light"
        )
    with tempfile.TemporaryDirectory() as folder:
        with Path(folder, "gib").open("wb") as file:
            file.truncate(GIB)
        os.chmod(folder, 0o755)  # noqa: PTH101 -- nginx's worker is another user
        port = free_port()
        server = (
            f"listen 127.0.0.1:{port} backlog=4096; root {folder}; default_type text/plain;"
            ' location / { return 200 "$request_uri\\n"; } location = /gib {}'
        )
        with _nginx(folder, core, port, server) as running:
            yield running


@contextlib.contextmanager
def nginx_proxy(core: int, backend_port: int, *, keeps: bool = True) -> Iterator[Server]:
    """Nginx as a reverse proxy with kept connections to its pod, and to clients where it `keeps` them."""
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0o755)  # noqa: PTH101 -- as above
        port = free_port()
        upstream = (
            f"upstream pod {{ server 127.0.0.1:{backend_port}; keepalive 200;"
            " keepalive_requests 1000000000; }"
        )
        server = (
            f"listen 127.0.0.1:{port} backlog=4096; {'' if keeps else 'keepalive_timeout 0;'}"
            " location / { proxy_pass http://pod;"
            ' proxy_http_version 1.1; proxy_set_header Connection ""; proxy_set_header Host $host;'
            " proxy_set_header X-Forwarded-For $proxy_add_x_forwarded_for;"
            " proxy_set_header X-Forwarded-Proto $scheme; proxy_max_temp_file_size 0; }"
        )
        with _nginx(folder, core, port, server, upstream) as running:
            yield running


@contextlib.contextmanager
def haproxy(core: int, backend_port: int) -> Iterator[Server]:
    """HAProxy with one thread."""
    with tempfile.TemporaryDirectory() as folder:
        port, path = free_port(), Path(folder, "haproxy.cfg")
        path.write_text(
            "global\n  nbthread 1\n  maxconn 4000\n"
            "defaults\n  mode http\n  option forwardfor\n  http-reuse always\n"
            "  timeout connect 5s\n  timeout client 60s\n  timeout server 60s\n"
            f"frontend f\n  bind 127.0.0.1:{port}\n  default_backend b\n"
            f"backend b\n  server s 127.0.0.1:{backend_port}\n"
        )
        with launched(["haproxy", "-db", "-q", "-f", str(path)], core, port) as running:
            yield running


@contextlib.contextmanager
def go_proxy(core: int, backend_port: int) -> Iterator[Server]:
    """A bare httputil.ReverseProxy."""
    binary = go_binary()
    assert binary is not None
    port = free_port()
    command = [str(binary), f"127.0.0.1:{port}", f"127.0.0.1:{backend_port}"]
    with launched(command, core, port) as running:
        yield running


@contextlib.contextmanager
def ours(core: int, backend_port: int, *, released: bool = False) -> Iterator[Server]:
    """`elasti resolver` before an API server, with rules, limits and metrics, and a pod that is Ready.

    It is in rotation and keeps connections, as in Engaging and Waking; where it was `released` its slice
    is gone, and every connection ends with its answer.
    """
    port = free_port()
    pids: list[int] = []

    async def main(side: SideLoop) -> None:
        with tempfile.TemporaryDirectory() as folder:
            async with installation(Path(folder)) as made, made.resolver() as running:
                await made.service("web", port)
                await made.endpoint("web", backend_port)
                if not released:
                    await made.publish("web", {"http": port}, "127.0.0.1")
                pids.append(running.process.pid)
                side.ready()
                await side.until_stopped()

    side = SideLoop("elasti resolver", main, start_seconds=60)
    side.start()
    try:
        (pid,) = pids
        os.sched_setaffinity(pid, {core})
        _wait_for(port)
        yield Server(port, pid)
    finally:
        side.stop()


PROXIES = {"nginx": nginx_proxy, "haproxy": haproxy, "go": go_proxy, "ours": ours}
# After the release: one request a connection.
CLOSING = {
    "nginx": functools.partial(nginx_proxy, keeps=False),
    "go": functools.partial(go_proxy),
    "ours": functools.partial(ours, released=True),
}


def available() -> list[str]:
    """Return the proxies that can be run here; a line for each that cannot."""
    found = []
    for name in PROXIES:
        missing = (name == "go" and go_binary() is None) or (
            name in ("nginx", "haproxy") and shutil.which(name) is None
        )
        if missing:
            print(f"{name} is left out: it is not installed", file=sys.stderr)
        else:
            found.append(name)
    return found


def go_binary() -> Path | None:
    """Return the Go program, building it where it is not in the cache; None without Go."""
    digest = hashlib.sha256()
    for path in sorted(_GO_SOURCE.iterdir()):
        digest.update(path.read_bytes())
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "kubeloop-bench"
    binary = cache / f"goproxy-{digest.hexdigest()[:16]}"
    go = shutil.which("go")
    if binary.exists() or go is None:
        return binary if binary.exists() else None
    cache.mkdir(parents=True, exist_ok=True)
    subprocess.run([go, "build", "-o", str(binary), "."], cwd=_GO_SOURCE, timeout=300, check=True)
    return binary


@contextlib.contextmanager
def _nginx(folder: str, core: int, port: int, server: str, upstream: str = "") -> Iterator[Server]:
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    path = Path(folder, "nginx.conf")
    path.write_text(
        f"daemon off; worker_processes 1; worker_rlimit_nofile 20000; pid {folder}/pid;"
        f" error_log {folder}/log; events {{ worker_connections 15000; }}"
        f" http {{ access_log off; sendfile on; keepalive_requests 1000000000;"
        f" keepalive_timeout 600s; {paths} {upstream} server {{ {server} }} }}"
    )
    with launched(["nginx", "-c", str(path)], core, port) as running:
        # The master only watches; its one child works.
        children = Path(f"/proc/{running.pid}/task/{running.pid}/children")
        while not (found := children.read_text().split()):
            time.sleep(0.01)
        running.pid = int(found[0])
        yield running


@contextlib.contextmanager
def launched(command: list[str], core: int, port: int) -> Iterator[Server]:
    """Run a server that listens on a port."""
    process = subprocess.Popen(
        ["taskset", "-c", str(core), *command],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    try:
        _wait_for(port)
        yield Server(port, process.pid)
    finally:
        process.terminate()
        process.wait(timeout=30)


def _wait_for(port: int) -> None:
    deadline = time.monotonic() + 10
    while True:
        with contextlib.suppress(OSError):
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        if time.monotonic() > deadline:
            raise TimeoutError(f"nothing listens on port {port}")
        time.sleep(0.02)
