"""The two processes that make a sandbox and take it down again, whatever happens to its owner.

    guard PLAN      (a JSON object, see `Plan`)

The guard is the owner's child. It makes the namespaces, forks their first process ("init", PID 1 in
there), reports init's PID on standard output and waits. The owner holds the other end of the guard's
standard input and never writes to it: end-of-file means that the owner is gone, politely or by
SIGKILL. Then the guard kills init, upon which the kernel kills everything in its PID namespace, the
network namespace vanishes for want of members, and the guard removes the owner's directory. Should
the guard itself be killed, init goes with it.

Init adopts orphans and relays. It inherits listening sockets which were made outside, and a socket
stays in the namespace it was made in: so it accepts connections outside and connects inside.
"""

from __future__ import annotations

import json
import os
import select
import shutil
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tests.controlplane import linux

NAMESPACES = linux.CLONE_NEWNET | linux.CLONE_NEWPID | linux.CLONE_NEWNS
# Users without privileges often lack the sbin directories on their PATH.
TOOL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True, slots=True)
class Relay:
    """An inherited listening socket and the address inside that its connections go to."""

    fd: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What the owner asks for."""

    directory: str
    """Removed at the end."""
    local_ranges: list[str]
    """Address ranges that are this host's own, inside."""
    relays: list[Relay]
    user_namespace: bool
    """Take a user namespace even where privileges make one unnecessary."""

    @classmethod
    def parse(cls, text: str) -> Plan:
        fields = json.loads(text)
        return cls(**{**fields, "relays": [Relay(**relay) for relay in fields["relays"]]})


def make_namespaces(*, user_namespace: bool) -> None:
    """Enter new namespaces: plainly where privileges allow it, else inside a user namespace."""
    uid, gid = os.geteuid(), os.getegid()
    if not user_namespace:
        try:
            return linux.unshare(NAMESPACES)
        except PermissionError:
            pass
    linux.unshare(NAMESPACES | linux.CLONE_NEWUSER)
    own = Path("/proc/self")
    (own / "setgroups").write_text("deny")
    (own / "uid_map").write_text(f"0 {uid} 1")
    (own / "gid_map").write_text(f"0 {gid} 1")
    return None


def set_up_network(local_ranges: list[str]) -> None:
    """Bring up loopback, and make every address of the ranges one that a process here can bind."""
    ip = shutil.which("ip", path=TOOL_PATH)
    if ip is None:
        raise FileNotFoundError("no `ip` program: install iproute2")
    subprocess.run([ip, "link", "set", "lo", "up"], check=True)
    for local_range in local_ranges:
        subprocess.run([ip, "route", "add", "local", local_range, "dev", "lo"], check=True)


def set_up_mounts() -> None:
    linux.make_mounts_private()
    try:
        linux.mount_proc()
    except PermissionError:
        # Some containers mask parts of /proc, and the kernel will not let a user namespace unmask
        # them. Programs inside then see the outer /proc, which they can live with.
        print("guard: /proc stays the outer one", file=sys.stderr, flush=True)


def init(plan: Plan, ready: int) -> NoReturn:
    """Be PID 1 of the sandbox, for ever."""
    linux.die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if os.getppid() != 0:  # the guard, outside this PID namespace, shows as 0 while it lives
        os._exit(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    set_up_mounts()
    set_up_network(plan.local_ranges)

    # Imported here: asyncio takes a while to load, and the guard itself has no use for it.
    from tests.controlplane import relay  # noqa: PLC0415

    os.write(ready, b"1")
    os.close(ready)
    relay.serve([(r.fd, r.host, r.port) for r in plan.relays])
    os._exit(1)


def fork_init(plan: Plan) -> int:
    """Start init; return its PID once the sandbox is ready."""
    reader, writer = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        init(plan, writer)
    os.close(writer)
    for relay in plan.relays:
        os.close(relay.fd)
    if not os.read(reader, 1):
        os.waitpid(pid, 0)
        sys.exit("guard: the sandbox could not be set up")
    return pid


def wait_for_the_end(init_pid: int) -> None:
    """Return when the owner is gone, or init is."""
    select.select([0, os.pidfd_open(init_pid)], [], [])


def end(init_pid: int) -> None:
    """Kill everything in the PID namespace; return when the last process of it is gone."""
    os.kill(init_pid, signal.SIGKILL)
    os.waitpid(init_pid, 0)


def main() -> None:
    plan = Plan.parse(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides what Ctrl-C means
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # as if the owner had gone
    try:
        make_namespaces(user_namespace=plan.user_namespace)
        pid = fork_init(plan)
        try:
            print(pid, flush=True)
            wait_for_the_end(pid)
        finally:
            end(pid)
    finally:
        shutil.rmtree(plan.directory, ignore_errors=True)
