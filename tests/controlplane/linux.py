"""The Linux calls that namespaces need and that Python 3.11 does not have."""

from __future__ import annotations

import ctypes
import os

CLONE_NEWNS = 0x00020000
CLONE_NEWUSER = 0x10000000
CLONE_NEWPID = 0x20000000
CLONE_NEWNET = 0x40000000

_PR_SET_PDEATHSIG = 1
_MS_NOSUID, _MS_NODEV, _MS_NOEXEC = 0x2, 0x4, 0x8
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000

_libc = ctypes.CDLL(None, use_errno=True)


def _checked(what: str, result: int) -> None:
    if result != 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")


def unshare(flags: int) -> None:
    """Move this process into new namespaces (for CLONE_NEWPID: its children)."""
    _checked("unshare", _libc.unshare(flags))


def setns(fd: int, flags: int) -> None:
    """Move this process into namespaces of the process that the pidfd `fd` names."""
    _checked("setns", _libc.setns(fd, flags))


def die_with_parent(signal_number: int) -> None:
    """Have the kernel send this process a signal when the thread that forked it ends."""
    _checked("prctl", _libc.prctl(_PR_SET_PDEATHSIG, signal_number, 0, 0, 0))


def make_mounts_private() -> None:
    """Keep the mounts of this mount namespace from spreading to the one it was copied from."""
    _checked("mount /", _libc.mount(b"none", b"/", None, _MS_REC | _MS_PRIVATE, None))


def mount_proc() -> None:
    """Show this PID namespace's processes, and no others, in /proc."""
    flags = _MS_NOSUID | _MS_NODEV | _MS_NOEXEC
    _checked("mount /proc", _libc.mount(b"proc", b"/proc", b"proc", flags, None))
