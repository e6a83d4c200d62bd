"""Forwarding by `elasti resolver`: rate, latency and processor time, beside other proxies.

In rotation it keeps clients' connections, as nginx does; after the release every connection carries one
request, as with nginx's `keepalive_timeout 0`.

Backend and client share a core; the proxy that is measured has the other. Rounds alternate. The figures without a
head's name are of a request with a Host alone, which is the cheapest.
"""

from __future__ import annotations

import contextlib
import functools
import re
import socket
import statistics
import subprocess
import sys
import time
from typing import TYPE_CHECKING

from benchmarks.processes import ROOT
from benchmarks.report import Figure, Report, at_most, times_at_least, times_at_most
from benchmarks.resolver_servers import CLOSING, GIB, PROXIES, Server, available, backend
from benchmarks.rounds import alternate, values

if TYPE_CHECKING:
    from benchmarks.rounds import Sample
    from benchmarks.suites import Settings

_CONNECTIONS = 50
_UNITS = {"us": 1e-3, "ms": 1.0, "s": 1000.0}
_GET = "GET /some/path?with=query HTTP/1.1\r\n"
_FIELDS = """\
sec-ch-ua: "Chromium";v="142", "Google Chrome";v="142", "Not_A Brand";v="99"
sec-ch-ua-mobile: ?0
sec-ch-ua-platform: "Linux"
Upgrade-Insecure-Requests: 1
User-Agent: Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/142.0.0.0 Safari/537.36
Accept: text/html,application/xhtml+xml,application/xml;q=0.9,image/avif,image/webp,*/*;q=0.8
Sec-Fetch-Site: same-origin
Sec-Fetch-Mode: navigate
Sec-Fetch-User: ?1
Sec-Fetch-Dest: document
Referer: https://shop.example.com/some/other/path
Accept-Encoding: gzip, deflate, br, zstd
Accept-Language: en-GB,en;q=0.9,de;q=0.8
Cookie: session=8f14e45fceea167a5a36dedd4bea2543; theme=dark; consent=all
"""
# What real clients send: a browser's sixteen fields, and these as ingress-nginx passes them on.
HEADS = {
    "a browser's head": f"Host: shop.example.com\nConnection: keep-alive\n{_FIELDS}",
    "through an ingress": (
        "Host: shop.example.com\nX-Request-ID: 1c2d7b1f0e6a4a0b9d8c7e6f5a4b3c2d\n"
        "X-Real-IP: 203.0.113.7\nX-Forwarded-For: 203.0.113.7\n"
        "X-Forwarded-Host: shop.example.com\nX-Forwarded-Port: 443\nX-Forwarded-Proto: https\n"
        f"X-Forwarded-Scheme: https\nX-Scheme: https\n{_FIELDS}"
    ),
}


def run(settings: Settings) -> list[Figure]:
    """Measure every proxy that can be run here."""
    with contextlib.ExitStack() as stack:
        pod = stack.enter_context(backend(settings.cores.serving))
        proxies = {
            name: stack.enter_context(PROXIES[name](settings.cores.measured, pod.port))
            for name in available()
        }
        closing = {
            name: stack.enter_context(CLOSING[name](settings.cores.measured, pod.port))
            for name in proxies
            if name in CLOSING
        }
        return [
            *_latency(pod, proxies, settings),
            *_rates(proxies, settings),
            *_rates(closing, settings, ends="one request a connection"),
            *(
                figure
                for head in HEADS
                for made, ends in ((proxies, ""), (closing, "one request a connection"))
                for figure in _rates(made, settings, ends=ends, head=head)
            ),
            *_streams(proxies, settings),
        ]


# rates


def _rates(
    proxies: dict[str, Server], settings: Settings, ends: str = "", head: str = ""
) -> list[Figure]:
    seconds = 2 if settings.quick else 4
    variants = {
        name: functools.partial(
            wrk,
            server,
            settings.cores.serving,
            seconds,
            closes=bool(ends) and name == "go",
            head=head,
        )
        for name, server in proxies.items()
        # Go's is asked to close by a field that a given head does not have.
        if not (ends and head and name == "go")
    }
    for variant in variants.values():
        variant()
    samples = alternate(variants, rounds=settings.rounds + 2)
    cpu = {name: values(samples[name], "cpu") for name in samples}
    rate = {name: values(samples[name], "rate") for name in samples}
    figures = []
    mode = "".join(f", {part}" for part in (ends, head) if part)
    for name in samples:
        p50, p99 = (statistics.median(values(samples[name], key)) for key in ("p50", "p99"))
        note = f"p50 {p50:.2f} ms, p99 {p99:.2f} ms"
        is_ours = name == "ours"
        figures += [
            Figure(
                name=f"resolver: {name}, requests at {_CONNECTIONS} connections{mode}",
                samples=rate[name],
                unit="/s",
                reference=statistics.median(rate["go"]) if is_ours and "go" in rate else None,
                goal=times_at_least(2.0) if is_ours and "go" in rate else None,
                note=note + (", to Go's" if is_ours and "go" in rate else ""),
            ),
            Figure(
                name=f"resolver: {name}, CPU a request{mode}",
                samples=cpu[name],
                unit="us",
                reference=statistics.median(cpu["nginx"]) if is_ours and "nginx" in cpu else None,
                goal=times_at_most(1.5) if is_ours else None,
                note="to nginx's" if is_ours else "",
            ),
        ]
    return figures


def wrk(server: Server, core: int, seconds: int, *, closes: bool = False, head: str = "") -> Sample:
    """Load a proxy for some seconds; returns rate, processor time a request, and latencies.

    `head`: one of HEADS; without one, a Host alone.
    """
    before = server.cpu()
    # Go's proxy keeps connections unless it is asked not to.
    asks = ["-H", "Connection: close"] if closes else []
    script: list[str] = []
    if head:
        asks += ["-s", str(ROOT / "benchmarks" / "head.lua")]
        script = ["--", _GET + HEADS[head].replace("\n", "\r\n") + "\r\n"]
    command = [
        "taskset", "-c", str(core), "wrk", "-t1", f"-c{_CONNECTIONS}", f"-d{seconds}s", "--latency",
        *asks, f"http://127.0.0.1:{server.port}/some/path?with=query", *script,
    ]  # fmt: skip
    output = subprocess.run(command, check=True, capture_output=True, timeout=120).stdout.decode()
    used = server.cpu() - before
    requests = int(_found(r"(\d+) requests in", output))
    if errors := re.search(r"(Socket errors|Non-2xx).*", output):
        print(f"wrk: {errors[0]}", file=sys.stderr)
    return {
        "rate": float(_found(r"Requests/sec:\s+([\d.]+)", output)),
        "cpu": used / requests * 1e6,
        "p50": _milliseconds(_found(r"(?m)^\s+50%\s+(\S+)", output)),
        "p99": _milliseconds(_found(r"(?m)^\s+99%\s+(\S+)", output)),
    }


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    if match is None:
        raise RuntimeError(f"wrk did not say {pattern}: {text}")
    return match[1]


def _milliseconds(text: str) -> float:
    number, unit = re.fullmatch(r"([\d.]+)(us|ms|s)", text).groups()  # type: ignore[union-attr]  # wrk's own units
    return float(number) * _UNITS[unit]


# latency


def _latency(pod: Server, proxies: dict[str, Server], settings: Settings) -> list[Figure]:
    count = 100 if settings.quick else 150
    ports = {"direct": pod.port, **{name: server.port for name, server in proxies.items()}}
    variants = {name: functools.partial(_paced, port, count) for name, port in ports.items()}
    samples = alternate(variants, rounds=1 if settings.quick else 9)
    # Each round by itself: how fast an idle machine wakes changes from one to the next.
    direct = values(samples["direct"], "p50")
    return [
        Figure(
            name=f"resolver: {name}, added p50 at 100 requests/s",
            samples=[p50 - d for p50, d in zip(values(samples[name], "p50"), direct, strict=True)],
            unit="ms",
            goal=at_most(0.2) if name == "ours" else None,
            note=f"direct {statistics.median(direct):.3f} ms",
        )
        for name in proxies
    ]


def _paced(port: int, count: int) -> Sample:
    times = []
    with socket.create_connection(("127.0.0.1", port), 5) as connection:
        connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        for _ in range(count):
            time.sleep(0.01)
            start = time.perf_counter()
            connection.sendall(b"GET /x HTTP/1.1\r\nHost: pod\r\n\r\n")
            received = b""
            while not received.endswith(b"/x\n"):
                received += connection.recv(4096)
            times.append((time.perf_counter() - start) * 1000)
    return {"p50": statistics.median(times)}


# streams


def _streams(proxies: dict[str, Server], settings: Settings) -> list[Figure]:
    names: list[str] = [name for name in ("nginx", "ours") if name in proxies]
    variants = {name: functools.partial(_gibibyte, proxies[name]) for name in names}
    _gibibyte(proxies["ours"])
    before = proxies["ours"].peak_rss()
    samples = alternate(variants, rounds=1 if settings.quick else 4)
    grown = (proxies["ours"].peak_rss() - before) / 2**20
    figures = []
    for name in names:
        rate, cpu = (values(samples[name], key) for key in ("rate", "cpu"))
        is_compared = name == "ours" and "nginx" in samples
        figures += [
            Figure(
                name=f"resolver: {name}, a gibibyte streamed",
                samples=rate,
                unit="GiB/s",
                reference=_median(samples["nginx"], "rate") if is_compared else None,
                goal=times_at_least(0.7) if name == "ours" else None,
                note="to nginx's" if is_compared else "",
            ),
            Figure(
                name=f"resolver: {name}, CPU for a gibibyte",
                samples=cpu,
                unit="s",
                reference=_median(samples["nginx"], "cpu") if is_compared else None,
            ),
        ]
    grows = Figure(
        name=f"resolver: ours, memory grown over {len(samples['ours'])} more gibibytes",
        samples=[grown],
        unit="MiB",
        goal=at_most(4.0),
        note=f"peak {before / 2**20:.0f} MiB after the first",
    )
    return [*figures, grows]


def _median(samples: list[Sample], key: str) -> float:
    return statistics.median(values(samples, key))


def _gibibyte(server: Server) -> Sample:
    before, start = server.cpu(), time.perf_counter()
    buffer, received = bytearray(1 << 20), 0
    with socket.create_connection(("127.0.0.1", server.port), 30) as connection:
        connection.sendall(b"GET /gib HTTP/1.1\r\nHost: pod\r\nConnection: close\r\n\r\n")
        while size := connection.recv_into(buffer):
            received += size
    if received < GIB:
        raise RuntimeError(f"only {received} bytes of a gibibyte came")
    return {"cpu": server.cpu() - before, "rate": 1 / (time.perf_counter() - start)}


def main() -> None:
    """Run this suite alone."""
    from benchmarks.processes import Cores  # noqa: PLC0415 -- as the package's own main does
    from benchmarks.suites import Settings  # noqa: PLC0415 -- as above

    settings = Settings(quick="--quick" in sys.argv, cores=Cores.of_this_machine())
    print(Report(run(settings)).table())


if __name__ == "__main__":
    main()
