"""The supervisor: forks containers for a kubelet and sees to it that none outlives it.

    main FD ISOLATION

FD is a connected SOCK_SEQPACKET socket, ISOLATION the most that containers are to get. A request `start ID` brings three descriptors: the program
as JSON, where to say why it could not be started (closed without a word when it was), and its
output; `stop ID` and `end ID` signal one. Answers: `mode ISOLATION` once, then `forked ID PID` and
`exited ID CODE`.

When the kubelet goes, by whatever means, its end of the socket closes: everything is killed, and the
supervisor ends. Should the supervisor be killed itself, the kernel signals every container's first
process, which then goes with all it has.
"""

from __future__ import annotations

import contextlib
import os
import select
import signal
import socket
import sys
from pathlib import Path

from devkube.kubelet.supervisor import linux
from devkube.kubelet.supervisor.init import END, STOP, WATCHED, ContainerInit, keep_only
from devkube.kubelet.supervisor.spec import Isolation, ProcessSpec

_DESCRIPTORS = 3
_MESSAGE = 1024
_NAMESPACES = linux.CLONE_NEWNS | linux.CLONE_NEWUTS


class ContainerSupervisor:
    """Owns the containers' first processes."""

    def __init__(self, control: socket.socket, most: Isolation) -> None:
        self._control = control
        self._isolation = choose_isolation(most)
        self._running: dict[str, int] = {}
        self._wakeup, written = os.pipe2(os.O_NONBLOCK | os.O_CLOEXEC)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(written, warn_on_full_buffer=False)

    def run(self) -> None:
        """Serve until the kubelet is gone; nothing is left then."""
        linux.adopt_orphans()
        self._say(f"mode {self._isolation.value}")
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._wakeup, select.POLLIN)
        try:
            while True:
                ready = [fd for fd, _ in poll.poll()]
                if self._wakeup in ready:
                    self._reap()
                if self._control.fileno() in ready and not self._obey():
                    return
        finally:
            for pid in self._running.values():
                os.kill(pid, END)
            linux.kill_descendants()

    def _obey(self) -> bool:
        """Carry out one message; False after the last one."""
        data, fds, _, _ = socket.recv_fds(self._control, _MESSAGE, _DESCRIPTORS)
        for fd in fds:
            os.set_inheritable(fd, False)  # noqa: FBT003 -- its signature
        if not data:
            return False
        verb, name = data.decode().split()
        if verb == "start":
            self._start(name, *fds)
        elif name in self._running:
            os.kill(self._running[name], STOP if verb == "stop" else END)
        return True

    def _start(self, name: str, spec_fd: int, result: int, output: int) -> None:
        with os.fdopen(spec_fd, "rb") as file:
            spec = ProcessSpec.decode(file.read())
        try:
            pid = self._fork(spec, result, output)
        except OSError as error:
            os.write(result, f"error creating the container: {error}".encode())
            self._say(f"exited {name} 128")
        else:
            self._running[name] = pid
            self._say(f"forked {name} {pid}")
        finally:
            os.close(result)
            os.close(output)

    def _fork(self, spec: ProcessSpec, result: int, output: int) -> int:
        # Signals that come before the child is ready for them must wait, not be lost.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, WATCHED)
        try:
            pid = os.fork()
            if pid == 0:
                signal.set_wakeup_fd(-1)
                keep_only(result, output)
                ContainerInit(spec, self._isolation, result=result, output=output).run()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return pid

    def _reap(self) -> None:
        with contextlib.suppress(BlockingIOError):
            os.read(self._wakeup, _MESSAGE)
        names = {pid: name for name, pid in self._running.items()}
        for pid, code in linux.reap():
            if pid in names:
                del self._running[names[pid]]
                self._say(f"exited {names[pid]} {code}")

    def _say(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError, ConnectionError):
            self._control.send(text.encode())


def choose_isolation(most: Isolation) -> Isolation:
    """Find out what this machine allows; enters a user namespace if that is needed."""
    if most is Isolation.PRIVILEGED and _succeeds(_NAMESPACES):
        return Isolation.PRIVILEGED
    if most is Isolation.NONE or not _succeeds(linux.CLONE_NEWUSER | _NAMESPACES):
        return Isolation.NONE
    uid, gid = os.geteuid(), os.getegid()
    linux.unshare(linux.CLONE_NEWUSER)
    own = Path("/proc/self")
    (own / "setgroups").write_text("deny")
    (own / "uid_map").write_text(f"{uid} {uid} 1")
    (own / "gid_map").write_text(f"{gid} {gid} 1")
    return Isolation.USER


def _succeeds(flags: int) -> bool:
    """Whether a child can enter such namespaces and mount in them."""
    pid = os.fork()
    if pid == 0:
        try:
            linux.unshare(flags)
            linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
        except OSError:
            os._exit(1)
        os._exit(0)
    return os.waitpid(pid, 0)[1] == 0


def main() -> None:
    """Run on the socket whose descriptor is the argument."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the kubelet decides what Ctrl-C means
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    control = socket.socket(fileno=int(sys.argv[1]))
    control.set_inheritable(False)
    ContainerSupervisor(control, Isolation(sys.argv[2])).run()
