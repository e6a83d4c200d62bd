"""Linux calls that Python 3.11 lacks: namespaces and mounts, process trees."""

from __future__ import annotations

import contextlib
import ctypes
import os
import signal
from collections.abc import Iterator
from pathlib import Path

CLONE_NEWNS = 0x00020000
CLONE_NEWUTS = 0x04000000
CLONE_NEWUSER = 0x10000000

MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC = 0x1, 0x2, 0x4, 0x8
MS_REMOUNT, MS_BIND, MS_REC, MS_PRIVATE = 0x20, 0x1000, 0x4000, 0x40000
MNT_DETACH = 0x2

_PR_SET_PDEATHSIG = 1
_PR_SET_CHILD_SUBREAPER = 36
_SYS_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(what: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Move this process into new namespaces."""
    _checked("unshare", _libc.unshare(flags))


def setns(fd: int, flags: int) -> None:
    """Move this process into the namespace, or namespaces of the process, that `fd` names."""
    _checked("setns", _libc.setns(fd, flags))


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send this process a signal when the thread that forked it ends."""
    _checked("prctl", _libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0))


def adopt_orphans() -> None:
    """Become the parent of every descendant whose own parent ends."""
    _checked("prctl", _libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0))


def mount(source: str, target: str, *, kind: str = "", flags: int = 0) -> None:
    """Mount, bind or remount."""
    result = _libc.mount(
        os.fsencode(source), os.fsencode(target), os.fsencode(kind) or None, flags, None
    )
    _checked(f"mount {target}", result)


def unmount(target: str, *, flags: int = 0) -> None:
    """Unmount; MNT_DETACH does it as soon as no process is inside."""
    _checked(f"umount {target}", _libc.umount2(os.fsencode(target), flags))


def pivot_root(new_root: str, put_old: str) -> None:
    """Make another mount the root of this mount namespace."""
    number = _SYS_PIVOT_ROOT.get(os.uname().machine)
    if number is None:
        raise OSError(f"pivot_root is not known on {os.uname().machine}")
    result = _libc.syscall(number, os.fsencode(new_root), os.fsencode(put_old))
    _checked("pivot_root", result)


def set_hostname(name: str) -> None:
    """Name the machine, for this UTS namespace."""
    raw = os.fsencode(name)
    _checked("sethostname", _libc.sethostname(raw, len(raw)))


def children(pid: int) -> list[int]:
    """Return the processes that a process is the parent of; none if it is gone."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for task in Path(f"/proc/{pid}/task").iterdir():
            found += map(int, (task / "children").read_text().split())
    return found


def descendants(pid: int) -> Iterator[int]:
    """Yield every process below one, parents first."""
    for child in children(pid):
        yield child
        yield from descendants(child)


def reap() -> Iterator[tuple[int, int]]:
    """Yield PID and exit code of every child that has ended: 128 and more means by a signal."""
    with contextlib.suppress(ChildProcessError):
        while (found := os.waitpid(-1, os.WNOHANG))[0]:
            code = os.waitstatus_to_exitcode(found[1])
            yield found[0], code if code >= 0 else 128 - code


def signal_descendants() -> None:
    """Send SIGKILL to everything below this process."""
    for pid in list(descendants(os.getpid())):
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def kill_descendants() -> None:
    """Kill everything below this process and return when it is reaped.

    Orphans must come to this process (`adopt_orphans`): then none escapes by forking, since each
    round kills what the last one left.
    """
    while True:
        signal_descendants()
        try:
            os.waitpid(-1, 0)
        except ChildProcessError:
            return
