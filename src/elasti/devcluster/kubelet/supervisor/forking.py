"""Forking into a new PID namespace."""

from __future__ import annotations

import os

from elasti.devcluster.kubelet import linux


def fork_first() -> int:
    """Fork a child that is the first process of a new PID namespace; like `os.fork` otherwise.

    A process cannot put itself into another PID namespace, nor its next child only. So a process in
    between does it and ends, and the child comes to this process, which must adopt orphans.
    """
    answer, say = os.pipe2(os.O_CLOEXEC)
    gone, stay = os.pipe2(os.O_CLOEXEC)
    between = os.fork()
    if between == 0:
        os.close(answer)
        return _be_between(say, gone, stay)
    os.close(say)
    os.close(gone)
    with os.fdopen(answer) as answers:
        pid, _, problem = answers.read().partition(" ")
    os.waitpid(between, 0)
    os.close(stay)
    if problem or not pid:
        raise OSError(problem or "the process in between was killed")
    return int(pid)


def _be_between(say: int, gone: int, stay: int) -> int:
    """Fork the child and end; only the child returns, when it has its final parent."""
    try:
        linux.unshare(linux.CLONE_NEWPID)
        pid = os.fork()
    except OSError as error:
        os.write(say, f"0 {error}".encode())
        os._exit(1)
    if pid != 0:
        os.write(say, str(pid).encode())
        os._exit(0)
    os.close(say)
    os.close(stay)
    # A wish to die with the parent, made before the parent's end, would be granted at once.
    os.read(gone, 1)
    os.close(gone)
    return 0
