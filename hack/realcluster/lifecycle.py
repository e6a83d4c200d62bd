"""Up, down and what is in between, from outside: for the command line and for tests.

Every function may be called at any time, also after a crash and at the same time as another: one command
at a time works on a directory, and what a dead cluster left is cleared by the next one.
"""

from __future__ import annotations

import fcntl
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager
from dataclasses import asdict
from typing import TYPE_CHECKING

from hack.realcluster import machine
from hack.realcluster.owner import sweep
from hack.realcluster.programs import ROOT, Programs
from hack.realcluster.state import State, is_owned, try_lock
from tests.controlplane.sandbox import module_command

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from hack.realcluster.cluster import Options

START_SECONDS = 300.0
STOP_SECONDS = 60.0
POLL_SECONDS = 0.05
LOG = "owner.log"


class ClusterError(Exception):
    """It did not do what was asked; the text says why."""


@contextmanager
def one_at_a_time(directory: Path) -> Iterator[None]:
    """Let other commands on this directory wait."""
    directory.mkdir(parents=True, exist_ok=True)
    with (directory / "command.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def up(directory: Path, options: Options, *, beneficiary: int | None = None) -> State:
    """Return when the cluster serves; one that does already is left as it is.

    With `beneficiary`, the number of a process, it ends when that process does.
    """
    directory = directory.resolve()
    with one_at_a_time(directory):
        lock = try_lock(directory)
        if lock is None:
            return expect(wait_until_ready(directory), options)
        try:
            machine.check(os.environ)
            sweep(directory)
            shutil.rmtree(directory / "logs", ignore_errors=True)
            (directory / "logs").mkdir()
            spawn_owner(directory, options, lock, beneficiary)
        finally:
            os.close(lock)  # the owner has its own copy
        try:
            return wait_until_ready(directory)
        except KeyboardInterrupt:
            end_owner(directory)
            raise


def expect(state: State, options: Options) -> State:
    """The cluster that runs, if it is the one that is wanted."""
    if (state.nodes, state.proxy) != (options.nodes, options.proxy):
        raise ClusterError(
            f"a cluster with {state.nodes} node(s) and {state.proxy} is up: take it down first"
        )
    return state


def spawn_owner(directory: Path, options: Options, lock: int, beneficiary: int | None) -> None:
    """Start the process that the cluster lives with, and that lives on when this one ends."""
    given = json.dumps({**asdict(options), "beneficiary": beneficiary})
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from hack.realcluster.owner import main; main()"
    with (directory / "logs" / LOG).open("wb") as log:
        owner = subprocess.Popen(
            [sys.executable, "-c", code, str(directory), str(lock), given],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            pass_fds=[lock],
            cwd="/",
            start_new_session=True,
        )
    # It is not ours to wait for: whoever looks at the lock sees its end.
    owner.returncode = 0


def wait_until_ready(directory: Path) -> State:
    """The report of a cluster that serves; ClusterError when its owner ends or takes too long."""
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        owned = is_owned(directory)
        state = State.read(directory)
        if owned and state is not None and state.ready:
            return state
        if not owned:
            raise ClusterError(f"the cluster did not come up:\n{log_tail(directory)}")
        time.sleep(POLL_SECONDS)
    raise ClusterError(f"not up after {START_SECONDS:.0f} s:\n{log_tail(directory)}")


def log_tail(directory: Path, lines: int = 25) -> str:
    """The owner's last words."""
    path = directory / "logs" / LOG
    if not path.exists():
        return f"(no {path})"
    return "\n".join(path.read_text(errors="replace").splitlines()[-lines:])


def down(directory: Path) -> bool:
    """End the cluster and remove all of it but the logs; whether there was one."""
    directory = directory.resolve()
    if not directory.exists():
        return False
    with one_at_a_time(directory):
        was_up = is_owned(directory)
        end_owner(directory)
        sweep(directory)
    return was_up


def end_owner(directory: Path) -> None:
    """Return when no owner lives."""
    deadline = time.monotonic() + STOP_SECONDS
    asked = False
    while is_owned(directory):
        state = State.read(directory)
        if state is not None and not asked:
            asked = send(state.owner, signal.SIGTERM)
        if time.monotonic() > deadline and state is not None:
            send(state.owner, signal.SIGKILL)
        time.sleep(POLL_SECONDS)


def send(pid: int, number: signal.Signals) -> bool:
    """Signal the owner; whether it was there."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return False
    return True


def state_of(directory: Path) -> State | None:
    """The report of a cluster that serves now, or None."""
    state = State.read(directory.resolve())
    return state if state is not None and state.ready and is_owned(directory.resolve()) else None


def load(state: State, archive: Path) -> None:
    """Import an archive of images into every node; ClusterError where one refuses it."""
    _images(state, "import", "--local", str(archive))


def tag(state: State, image: str, name: str) -> None:
    """Give an image another name on every node."""
    _images(state, "tag", "--force", image, name)


def _images(state: State, *words: str) -> None:
    ctr = str(Programs.locate(os.environ).containerd / "ctr")
    for place in state.nodes_places:
        done = subprocess.run(
            inside(state, place.name, [ctr, "--namespace=k8s.io", "images", *words]),
            check=False,
            capture_output=True,
            text=True,
        )
        if done.returncode != 0:
            raise ClusterError(f"{place.name}: {shlex.join(words)} failed: {done.stderr[-500:]}")


def inside(state: State, place: str, argv: Sequence[str]) -> list[str]:
    """`argv` as a command that, run here, runs in a place's namespaces."""
    return module_command("tests.controlplane.enter", str(state.place(place).pid), *argv)
