"""The first process of a container: sets the stage, runs the program, and buries the rest.

With namespaces it is PID 1 of its own PID namespace: when it ends, the kernel kills whatever the
program left. Without, it adopts orphans and kills its descendants itself. It is never the program's
replacement but its parent, so that the program's signals work as they do outside of a container.

Signals: SIGTERM is passed to the program's process group, SIGUSR1 kills everything. It ends with the
program's exit code, 128 plus the signal's number where a signal ended it.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
from typing import TYPE_CHECKING, NoReturn

from elasti.devcluster.kubelet import linux
from elasti.devcluster.kubelet.supervisor import mounts, tree

if TYPE_CHECKING:
    from elasti.devcluster.kubelet.supervisor.spec import Isolation, ProcessSpec

STOP = signal.SIGTERM
END = signal.SIGUSR1
WATCHED = {signal.SIGCHLD, STOP, END}
# What the supervisor, or Python, ignores; a program would inherit it.
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM)
_INHERITED = 3


class Init:
    """One container, or one command beside it, from inside."""

    def __init__(
        self, spec: ProcessSpec, isolation: Isolation, *, result: int, output: int
    ) -> None:
        self._spec = spec
        self._own_namespaces = isolation.has_namespaces and not spec.join
        self._joins = isolation.has_namespaces and bool(spec.join)
        self._result = result
        self._output = output

    def run(self) -> NoReturn:
        """Never return. `WATCHED` signals are blocked already."""
        try:
            self._set_up()
            program = self._fork_program()
        except OSError as error:
            self._fail(f"error setting up the container: {error}")
        self._let_go()
        code = self._accompany(program)
        if not self._own_namespaces:
            tree.kill_descendants()
        os._exit(code)

    def _set_up(self) -> None:
        linux.die_with_parent(signal.SIGKILL if self._own_namespaces else END)
        if self._own_namespaces:
            self._set_up_namespaces()
            return
        linux.adopt_orphans()
        if self._joins:
            flags = linux.CLONE_NEWNS | linux.CLONE_NEWPID | linux.CLONE_NEWUTS
            linux.setns(os.pidfd_open(self._spec.join), flags)

    def _set_up_namespaces(self) -> None:
        linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWUTS)
        mounts.make_private()
        mounts.mount_proc()
        mounts.bind_all(self._spec.mounts)
        if self._spec.hostname:
            linux.set_hostname(self._spec.hostname)

    def _fork_program(self) -> int:
        pid = os.fork()
        if pid == 0:
            self._become_program()
        # Here too, so that the group exists before anybody signals it.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        return pid

    def _become_program(self) -> NoReturn:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, set())
            for number in _IGNORED:
                signal.signal(number, signal.SIG_DFL)
            if not self._own_namespaces:
                linux.die_with_parent(signal.SIGKILL)
            os.setpgid(0, 0)
            null = os.open(os.devnull, os.O_RDONLY)
            for stream, fd in enumerate((null, self._output, self._output)):
                os.dup2(fd, stream)
            self._change_directory()
            os.execvpe(self._spec.argv[0], self._spec.argv, self._spec.env)  # noqa: S606 -- the pod's command
        except OSError as error:
            self._fail(self._why(error))

    def _change_directory(self) -> None:
        try:
            os.chdir(self._spec.cwd)
        except OSError as error:
            where = f'chdir to cwd ("{self._spec.cwd}") set in config.json failed'
            self._fail(f"{where}: {(error.strerror or '').lower()}")

    def _why(self, error: OSError) -> str:
        program = self._spec.argv[0]
        if error.errno == errno.ENOENT and "/" not in program:
            return f'exec: "{program}": executable file not found in $PATH'
        return f'exec: "{program}": {(error.strerror or str(error)).lower()}'

    def _fail(self, message: str) -> NoReturn:
        os.write(self._result, message.encode())
        os._exit(128)

    def _let_go(self) -> None:
        """Leave result and streams to the program, so that their readers see it close them."""
        os.close(self._result)
        null = os.open(os.devnull, os.O_RDWR)
        for stream in range(_INHERITED):
            os.dup2(null, stream)
        os.close(null)
        os.close(self._output)

    def _accompany(self, program: int) -> int:
        while True:
            number = signal.sigwait(WATCHED)
            if number == signal.SIGCHLD:
                code = self._reap(program)
                if code is not None:
                    return code
            elif number == STOP:
                _signal_group(program, signal.SIGTERM)
            else:
                self._kill_everything(program)

    def _kill_everything(self, program: int) -> None:
        _signal_group(program, signal.SIGKILL)
        if self._own_namespaces:
            with contextlib.suppress(ProcessLookupError):
                os.kill(-1, signal.SIGKILL)
        else:
            for pid in list(tree.descendants(os.getpid())):
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)

    def _reap(self, program: int) -> int | None:
        code = None
        with contextlib.suppress(ChildProcessError):
            while True:
                pid, status = os.waitpid(-1, os.WNOHANG)
                if pid == 0:
                    break
                if pid == program:
                    code = _exit_code(status)
        return code


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def _exit_code(status: int) -> int:
    code = os.waitstatus_to_exitcode(status)
    return code if code >= 0 else 128 - code


def keep_only(*kept: int) -> None:
    """Close every descriptor but the standard streams and those given."""
    previous = _INHERITED - 1
    for fd in (*sorted(kept), sys.maxsize):
        os.closerange(previous + 1, min(fd, 1 << 20))
        previous = fd
