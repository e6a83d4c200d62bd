"""What the trigger `network` takes of an operator with many nodes: memory above rest, and CPU a node.

    .venv/bin/python -m benchmarks.kubelet_summaries [--nodes 1000] [--rounds 3] [--pods 110]

One process pretends to be every kubelet, by TLS on loopback addresses, with a summary of two containers a pod
(266 KB for 110). Another reads all of them, as the operator's rounds do, and weighs itself.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import json
import resource
import ssl
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from benchmarks.certificate import make_certificate, server_context
from elasti.triggers.kubelets import KubeletAccess, Kubelets
from kubeloop.client.auth.tls import shrink_read_buffers

_STAMP = "2026-11-19T00:00:00Z"


def summary(pods: int) -> bytes:
    """Return a node's answer, with what a kubelet says of each pod and container."""
    usage = {"time": _STAMP, "usageNanoCores": 12345678, "usageCoreNanoSeconds": 123456789012345}
    memory = {
        "time": _STAMP,
        "availableBytes": 123456789,
        "usageBytes": 123456789,
        "workingSetBytes": 123456789,
        "rssBytes": 123456789,
        "pageFaults": 123456,
        "majorPageFaults": 12,
    }
    disk = {
        "time": _STAMP,
        "availableBytes": 123456789012,
        "capacityBytes": 123456789012,
        "usedBytes": 123456,
        "inodesFree": 12345678,
        "inodes": 12345678,
        "inodesUsed": 123,
    }
    container = {
        "startTime": _STAMP,
        "cpu": usage,
        "memory": memory,
        "rootfs": disk,
        "logs": disk,
        "swap": {"time": _STAMP, "swapUsageBytes": 0},
    }

    def pod(number: int) -> dict[str, Any]:
        interface = {"rxBytes": 10**9 + number, "rxErrors": 0, "txBytes": 10**9, "txErrors": 0}
        return {
            "podRef": {"name": f"web-{number}", "namespace": "shop", "uid": f"uid-{number:032}"},
            "startTime": _STAMP,
            "containers": [{"name": f"c{one}", **container} for one in range(2)],
            "cpu": usage,
            "memory": memory,
            "network": {"time": _STAMP, "name": "eth0", **interface, "interfaces": [interface]},
            "volume": [{"name": "token", **disk}],
            "ephemeral-storage": disk,
            "process_stats": {"process_count": 0},
        }

    node = {"nodeName": "node", "cpu": usage, "memory": memory, "fs": disk}
    return json.dumps({"node": node, "pods": [pod(number) for number in range(pods)]}).encode()


async def serve(pods: int) -> None:
    """Answer every request with the summary, until standard input ends."""
    body = summary(pods)
    head = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
    answer = head + b"Content-Length: %d\r\n\r\n" % len(body) + body

    async def answered(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while await reader.readuntil(b"\r\n\r\n"):
                writer.write(answer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            writer.close()

    context = server_context(*make_certificate())
    server = await asyncio.start_server(answered, "0.0.0.0", 0, ssl=context, backlog=1024)
    print(json.dumps([server.sockets[0].getsockname()[1], len(body)]), flush=True)
    await asyncio.to_thread(sys.stdin.read)


class Open(KubeletAccess):
    """A token, and trust in anyone."""

    def __init__(self) -> None:
        self._context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        self._context.check_hostname, self._context.verify_mode = False, ssl.CERT_NONE

    async def get(self) -> tuple[str, ssl.SSLContext]:
        return "token", self._context


def _resident() -> float:
    text = Path("/proc/self/status").read_text()
    return int(text.partition("VmRSS:")[2].split()[0]) / 1024


async def measure(port: int, nodes: int, rounds: int, pause: float) -> dict[str, Any]:
    """Read every node in each round; each keeps what the trigger keeps."""
    shrink_read_buffers()  # as the operator does at its start
    kubelets = Kubelets(Open(), port=port, timeout=60.0)
    addresses = [f"127.{1 + n // 62500}.{n // 250 % 250}.{1 + n % 250}" for n in range(nodes)]
    gc.collect()
    before, cpus = _resident(), []
    for _ in range(rounds):
        cpu, began = time.process_time(), time.monotonic()
        await asyncio.gather(*(kubelets.counters(one, max_age=0.0) for one in addresses))
        cpus.append(((time.process_time() - cpu) / nodes * 1000, time.monotonic() - began))
        kubelets.end_round()
        await asyncio.sleep(pause)
    result = {
        "nodes": nodes,
        "MiB before": before,
        "MiB after": _resident(),
        "MiB at most": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
        "ms of CPU a node": [round(cpu, 2) for cpu, _ in cpus],
        "seconds a round": [round(seconds, 1) for _, seconds in cpus],
        "mCPU at one round in 30 s": [round(cpu * nodes / 30, 1) for cpu, _ in cpus],
    }
    await kubelets.close()
    return result


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--pods", type=int, default=110)
    parser.add_argument("--pause", type=float, default=26.0)
    parser.add_argument("--serve", action="store_true", help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.serve:
        asyncio.run(serve(arguments.pods))
        return
    argv = [
        sys.executable,
        "-m",
        "benchmarks.kubelet_summaries",
        "--serve",
        "--pods",
        str(arguments.pods),
    ]
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as server:
        assert server.stdout is not None
        port, size = json.loads(server.stdout.readline())
        found = asyncio.run(measure(port, arguments.nodes, arguments.rounds, arguments.pause))
        assert server.stdin is not None
        server.stdin.close()
    print(json.dumps({"bytes a node": size, **found}, indent=1))


if __name__ == "__main__":
    main()
