"""The first process of a container: sets up its mounts, runs the program, and reaps the rest.

It adopts orphans and kills its descendants when the program has ended: a container sees the machine's
processes, and none of its own outlives it. It is never the program's replacement but its parent, so that
the program's signals work as they do outside of a container.

Signals: SIGTERM is passed to the program's process group, SIGUSR1 kills everything. It ends with the
program's exit code, 128 plus the signal's number where a signal ended it.

A container sees the host's file system with volumes bound into it. A mount point that the host lacks
must not be made on the host. So the deepest directory that exists is replaced, in the container's mount
namespace only, by an empty one that shows the same entries, and the mount point is made there. For the
root itself that is a new root.
"""

from __future__ import annotations

import contextlib
import errno
import os
import signal
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import NoReturn

from devkube.kubelet.supervisor import linux
from devkube.kubelet.supervisor.spec import Isolation, Mount, ProcessSpec

# Flags of a mount that a user namespace may not take away when it mounts again.
_KEPT = (
    (os.ST_NOSUID, linux.MS_NOSUID),
    (os.ST_NODEV, linux.MS_NODEV),
    (os.ST_NOEXEC, linux.MS_NOEXEC),
)
STOP = signal.SIGTERM
END = signal.SIGUSR1
WATCHED = {signal.SIGCHLD, STOP, END}
# Signals that the supervisor, or Python, ignores; a program would inherit that.
_IGNORED = (signal.SIGPIPE, signal.SIGXFSZ, signal.SIGINT, signal.SIGTERM)
_INHERITED = 3


def bind_all(mounts: Iterable[Mount]) -> None:
    """Bind volumes, outer mount points before inner ones."""
    ordered = sorted(mounts, key=lambda mount: len(Path(mount.target).parts))
    _prepare_root(mount.target for mount in ordered)
    own: set[Path] = set()
    for mount in ordered:
        target = _mount_point(mount, own)
        linux.mount(mount.source, str(target), flags=linux.MS_BIND | linux.MS_REC)
        if mount.read_only:
            flags = linux.MS_BIND | linux.MS_REMOUNT | linux.MS_RDONLY
            present = os.statvfs(target).f_flag
            flags |= sum(flag for seen, flag in _KEPT if present & seen)
            linux.mount("none", str(target), flags=flags)


def _prepare_root(targets: Iterable[str]) -> None:
    if any(_deepest_existing(Path(target)) == Path("/") for target in targets):
        _replace_root()


def _mount_point(mount: Mount, own: set[Path]) -> Path:
    """Return the place to mount at, made if it is missing; `own` are directories not the host's."""
    target = Path(os.path.realpath(mount.target))
    if not target.exists():
        parent = _deepest_existing(target)
        if parent not in own:
            _shadow(parent)
            own.add(parent)
        _make_place(target, directory=Path(mount.source).is_dir())
        own.update(place for place in target.parents if parent in place.parents)
    return target


def _deepest_existing(path: Path) -> Path:
    path = Path(os.path.realpath(path))
    while not path.is_dir():
        if path.exists():
            return path
        path = path.parent
    return path


def _make_place(path: Path, *, directory: bool) -> None:
    if directory:
        path.mkdir(parents=True, exist_ok=True)
    else:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()


def _shadow(directory: Path) -> None:
    """Cover a directory with an empty one that shows its entries."""
    if directory == Path("/"):
        return  # the root is a new one already
    with tempfile.TemporaryDirectory() as stash:
        linux.mount(str(directory), stash, flags=linux.MS_BIND | linux.MS_REC)
        linux.mount("tmpfs", str(directory), kind="tmpfs", flags=linux.MS_NOSUID)
        _show_entries(Path(stash), directory)
        linux.unmount(stash, flags=linux.MNT_DETACH)


def _show_entries(source: Path, target: Path) -> None:
    for entry in source.iterdir():
        place = target / entry.name
        if entry.is_symlink():
            place.symlink_to(entry.readlink())
        else:
            _make_place(place, directory=entry.is_dir())
            linux.mount(str(entry), str(place), flags=linux.MS_BIND | linux.MS_REC)


def _replace_root() -> None:
    """Go to a new root directory that shows the entries of the old one."""
    root = Path(tempfile.mkdtemp())
    linux.mount("tmpfs", str(root), kind="tmpfs")
    _show_entries(Path("/"), root)
    os.chdir(root)
    linux.pivot_root(".", ".")
    linux.unmount(".", flags=linux.MNT_DETACH)
    os.chdir("/")
    # The new root shows the directory that it was made in, and in that a copy of itself.
    linux.unmount(str(root), flags=linux.MNT_DETACH)
    root.rmdir()


class ContainerInit:
    """One container, or one command beside it, from inside."""

    def __init__(
        self, spec: ProcessSpec, isolation: Isolation, *, result: int, output: int
    ) -> None:
        self._spec = spec
        self._namespaces = isolation.has_namespaces
        self._result = result
        self._output = output

    def run(self) -> NoReturn:
        """Never return. `WATCHED` signals are blocked already."""
        try:
            linux.die_with_parent(END)
            linux.adopt_orphans()
            if self._namespaces and self._spec.join:
                linux.setns(os.pidfd_open(self._spec.join), linux.CLONE_NEWNS | linux.CLONE_NEWUTS)
            elif self._namespaces:
                linux.unshare(linux.CLONE_NEWNS | linux.CLONE_NEWUTS)
                # The mounts of this mount namespace must not spread.
                linux.mount("none", "/", flags=linux.MS_REC | linux.MS_PRIVATE)
                bind_all(self._spec.mounts)
                if self._spec.hostname:
                    linux.set_hostname(self._spec.hostname)
            program = self._fork_program()
        except OSError as error:
            self._fail(f"error setting up the container: {error}")
        self._let_go()
        code = self._accompany(program)
        linux.kill_descendants()
        os._exit(code)

    def _fork_program(self) -> int:
        pid = os.fork()
        if pid == 0:
            self._become_program()
        # Here too, so that the group exists before it is signalled.
        with contextlib.suppress(OSError):
            os.setpgid(pid, pid)
        return pid

    def _become_program(self) -> NoReturn:
        try:
            signal.pthread_sigmask(signal.SIG_SETMASK, set())
            for number in _IGNORED:
                signal.signal(number, signal.SIG_DFL)
            linux.die_with_parent(signal.SIGKILL)
            os.setpgid(0, 0)
            null = os.open(os.devnull, os.O_RDONLY)
            for stream, fd in enumerate((null, self._output, self._output)):
                os.dup2(fd, stream)
            try:
                os.chdir(self._spec.cwd)
            except OSError as error:
                where = f'chdir to cwd ("{self._spec.cwd}") set in config.json failed'
                self._fail(f"{where}: {(error.strerror or '').lower()}")
            os.execvpe(self._spec.argv[0], self._spec.argv, self._spec.env)  # noqa: S606 -- the pod's command
        except OSError as error:
            self._fail(self._why(error))

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
                ended = dict(linux.reap())
                if program in ended:
                    return ended[program]
            elif number == STOP:
                _signal_group(program, signal.SIGTERM)
            else:
                _signal_group(program, signal.SIGKILL)
                linux.signal_descendants()


def _signal_group(leader: int, number: int) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(leader, number)


def keep_only(*kept: int) -> None:
    """Close every descriptor but the standard streams and those given."""
    previous = _INHERITED - 1
    for fd in (*sorted(kept), sys.maxsize):
        os.closerange(previous + 1, min(fd, 1 << 20))
        previous = fd
