"""The two processes that make a sandbox and take it down again, whatever happens to its owner.

    guard PLAN      (a JSON object, see `Plan`)

The guard is the owner's child. It makes a directory and the namespaces, forks their first process
("init", PID 1 in there), reports directory and PID on standard output and waits. The owner holds the other end of the guard's
standard input and never writes to it: end-of-file means that the owner is gone, politely or by
SIGKILL. Then the guard kills init, upon which the kernel kills everything in its PID namespace, the
network namespace vanishes for want of members, and the guard removes the directory. Should the guard
itself be killed, init goes with it.

Init adopts orphans and relays. It inherits listening sockets which were made outside, and a socket
stays in the namespace it was made in: so it accepts connections outside and connects inside.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import shutil
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from tests.controlplane import linux

NAMESPACES = linux.CLONE_NEWNET | linux.CLONE_NEWPID | linux.CLONE_NEWNS
# Users without privileges often lack the sbin directories on their PATH.
TOOL_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
OK = b"ok"


@dataclass(frozen=True, slots=True)
class Relay:
    """An inherited listening socket and the address inside that its connections go to."""

    fd: int
    host: str
    port: int


@dataclass(frozen=True, slots=True)
class Plan:
    """What the owner asks for."""

    local_ranges: list[str]
    """Address ranges that are this host's own, inside."""
    relays: list[Relay]
    relay_from: str
    """The address that relayed connections come from, inside; empty: the kernel's choice."""
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
        raise OSError("no `ip` program: install iproute2")
    commands = [["link", "set", "lo", "up"]]
    commands += [["route", "add", "local", local, "dev", "lo"] for local in local_ranges]
    for command in commands:
        done = subprocess.run([ip, *command], check=False, stderr=subprocess.PIPE, text=True)
        if done.returncode != 0:
            raise OSError(f"ip {' '.join(command)}: {done.stderr.strip()}")


def set_up_mounts() -> None:
    linux.make_mounts_private()
    try:
        linux.mount_proc()
    except PermissionError:
        # Some containers mask parts of /proc, and the kernel will not let a user namespace unmask
        # them. Programs inside then see the outer /proc, which they can live with.
        print("guard: /proc stays the outer one", file=sys.stderr, flush=True)


def init(plan: Plan, ready: int) -> NoReturn:
    """Be PID 1 of the sandbox, for ever; write to `ready` what went wrong, or OK."""
    linux.die_with_parent(signal.SIGKILL)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if os.getppid() != 0:  # the guard, outside this PID namespace, shows as 0 while it lives
        os._exit(1)
    null = os.open(os.devnull, os.O_RDWR)
    os.dup2(null, 0)
    os.dup2(null, 1)
    try:
        set_up_mounts()
        set_up_network(plan.local_ranges)
    except OSError as error:
        os.write(ready, str(error).encode())
        os._exit(1)

    # Imported here: asyncio takes a while to load, and the guard itself has no use for it.
    from tests.controlplane import relay  # noqa: PLC0415

    os.write(ready, OK)
    os.close(ready)
    relay.serve([(r.fd, r.host, r.port) for r in plan.relays], source=plan.relay_from)
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
    with os.fdopen(reader, "rb") as answers:
        answer = answers.read()
    if answer != OK:
        os.waitpid(pid, 0)
        raise OSError(answer.decode())
    return pid


def wait_for_the_end(init_pid: int) -> None:
    """Return when the owner is gone, or init is."""
    select.select([0, os.pidfd_open(init_pid)], [], [])


def end(init_pid: int) -> None:
    """Kill everything in the PID namespace; return when the last process of it is gone."""
    os.kill(init_pid, signal.SIGKILL)
    os.waitpid(init_pid, 0)


def guard(plan: Plan, directory: str) -> None:
    """Make the sandbox, report it, and end it when its time has come."""
    make_namespaces(user_namespace=plan.user_namespace)
    pid = fork_init(plan)
    try:
        report({"pid": pid, "directory": directory})
        wait_for_the_end(pid)
    finally:
        end(pid)


def report(what: dict[str, object]) -> None:
    """Tell the owner; one that is gone already is noticed elsewhere."""
    with contextlib.suppress(BrokenPipeError):
        os.write(1, json.dumps(what).encode() + b"\n")


def main() -> None:
    plan = Plan.parse(sys.argv[1])
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the owner decides what Ctrl-C means
    signal.signal(signal.SIGTERM, lambda *_: sys.exit())  # as if the owner had gone
    # Made here and not by the owner, whose sudden end could then leave it behind.
    with tempfile.TemporaryDirectory(prefix="elasti-", ignore_cleanup_errors=True) as directory:
        try:
            guard(plan, directory)
        except OSError as error:
            report({"error": str(error)})
