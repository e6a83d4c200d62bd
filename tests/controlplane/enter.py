"""Run a program inside the namespaces of another process, as if it were run here.

    enter PID PROGRAM [ARGUMENT...]

A process can only put its *children* into another PID namespace, so this one stays as the program's
parent and makes itself invisible: it passes signals on, and ends the way the program ends. Killed
outright, it takes the program with it. Standard streams, other inherited descriptors, environment
and working directory are the program's own.
"""

from __future__ import annotations

import os
import resource
import signal
import sys
from pathlib import Path
from typing import NoReturn

from tests.controlplane import linux

FORWARDED = {
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGTERM,
    signal.SIGUSR1,
    signal.SIGUSR2,
}


def join(pid: int) -> None:
    """Enter the namespaces of `pid`; the PID namespace only takes effect for children."""
    flags = linux.CLONE_NEWNS | linux.CLONE_NEWNET | linux.CLONE_NEWPID
    # The kernel refuses to enter the user namespace one is in already.
    if not Path(f"/proc/{pid}/ns/user").samefile("/proc/self/ns/user"):
        flags |= linux.CLONE_NEWUSER
    here = Path.cwd()
    linux.setns(os.pidfd_open(pid), flags)
    os.chdir(here)  # entering a mount namespace moved us to its root


def become(argv: list[str], mask: set[signal.Signals]) -> NoReturn:
    """In the child: be the program, and do not outlive the parent."""
    linux.die_with_parent(signal.SIGKILL)
    # The parent is outside this PID namespace and shows as 0; anything else means it died before
    # the line above.
    if os.getppid() != 0:
        os._exit(1)
    os.setsid()
    signal.pthread_sigmask(signal.SIG_SETMASK, mask)
    try:
        os.execvp(argv[0], argv)
    except OSError as error:
        os.write(2, f"{argv[0]}: {error.strerror}\n".encode())
        os._exit(127)


def let_go_of_streams() -> None:
    """Leave the standard streams to the program, so that their other ends see it close them."""
    null = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(null, stream)


def accompany(child: int, signals: set[signal.Signals]) -> int:
    """Pass signals to `child` until it ends; return its wait status."""
    while True:
        number = signal.sigwait(signals)
        if number != signal.SIGCHLD:
            os.kill(child, number)
            continue
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid == child:
            return status


def end_like(status: int) -> NoReturn:
    """End this process as `status` says another one ended."""
    code = os.waitstatus_to_exitcode(status)
    if code < 0:
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_UNBLOCK, {-code})
        os.kill(os.getpid(), -code)
    os._exit(code if code >= 0 else 128 - code)


def main() -> None:
    pid, argv = int(sys.argv[1]), sys.argv[2:]
    join(pid)
    signals = FORWARDED | {signal.SIGCHLD}
    # Blocked before the fork: what arrives from here on waits for `accompany` instead of being lost.
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, signals)
    child = os.fork()
    if child == 0:
        become(argv, {signal.Signals(number) for number in mask})
    let_go_of_streams()
    end_like(accompany(child, signals))
