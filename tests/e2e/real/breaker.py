"""Breaks the connections that pods have to an address, from inside the network that they live in.

    python -m tests.e2e.real.breaker HOST PORT

It prints how many there were. Those of nodes and controllers stay: what they do when their watches
break every few seconds is Kubernetes' own affair, and it is to pause for up to a minute.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

# Every pod of a test is told its name.
MARK = b"POD_NAME="
CONNECTION = re.compile(
    r"^\d+ +\d+ +\S+:(?P<port>\d+) +\S+ +users:.*?pid=(?P<pid>\d+)", re.MULTILINE
)


def is_pods(pid: str) -> bool:
    """Whether a process is a pod's."""
    try:
        variables = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return any(variable.startswith(MARK) for variable in variables)


def sockets(*arguments: str) -> str:
    """Run `ss` for TCP connections; returns what it says."""
    command = ["ss", "--no-header", "--numeric", "--tcp", *arguments]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def main() -> None:
    host, port = sys.argv[1:]
    where = f"dst {host} and dport = {port}"
    found = CONNECTION.finditer(sockets("--processes", "state", "established", where))
    ports = [item["port"] for item in found if is_pods(item["pid"])]
    if ports:
        ours = " or ".join(f"sport = {port}" for port in ports)
        sockets("--kill", f"{where} and ( {ours} )")
    print(len(ports))


if __name__ == "__main__":
    main()
