"""Namespaces of their own for a set of processes, seen from the process that owns them."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

ROOT = Path(__file__).resolve().parents[2]


class SandboxError(Exception):
    """The namespaces could not be made here; the text says why."""


class Address(NamedTuple):
    """Where something listens inside the sandbox."""

    host: str
    port: int


def module_command(module: str, *arguments: str) -> list[str]:
    """A command that runs a module's `main` wherever it is started from, without site packages."""
    code = f"import sys; sys.path.insert(0, {str(ROOT)!r}); from {module} import main; main()"
    return [sys.executable, "-I", "-S", "-c", code, *arguments]


class Sandbox:
    """A network, PID and mount namespace that live exactly as long as their owner wants, or lives.

    So does `directory`, an empty one to begin with. `relays` names addresses inside that are
    reachable from outside, each at 127.0.0.1 and the port in `ports`; `relay_from` is the local
    address that such connections have inside, where the kernel would choose one otherwise.
    """

    def __init__(
        self,
        *,
        local_ranges: Sequence[str],
        relays: Mapping[str, Address],
        relay_from: str = "",
        user_namespace: bool = False,
    ) -> None:
        self._processes: list[subprocess.Popen[bytes]] = []
        listeners = {name: socket.create_server(("127.0.0.1", 0)) for name in relays}
        try:
            self.ports = {name: int(s.getsockname()[1]) for name, s in listeners.items()}
            fds = {name: listener.fileno() for name, listener in listeners.items()}
            plan = {
                "local_ranges": list(local_ranges),
                "relays": [{"fd": fds[name], **at._asdict()} for name, at in relays.items()],
                "relay_from": relay_from,
                "user_namespace": user_namespace,
            }
            self._guard = self._spawn_guard(json.dumps(plan), list(fds.values()))
        finally:
            # The guard has its own copies; one left here would accept what nobody answers.
            for listener in listeners.values():
                listener.close()
        self.pid, self.directory = self._wait_for_init()

    def _spawn_guard(self, plan: str, fds: Sequence[int]) -> subprocess.Popen[bytes]:
        return subprocess.Popen(
            module_command("tests.controlplane.guard", plan),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=fds,
            # A Ctrl-C in the terminal is for the owner, which then ends this in its own order.
            start_new_session=True,
        )

    def _wait_for_init(self) -> tuple[int, Path]:
        assert self._guard.stdout is not None
        report = json.loads(self._guard.stdout.readline() or '{"error": "no reason given"}')
        if "error" in report:
            self.close()
            raise SandboxError(
                "cannot make a network namespace: be root or allow unprivileged user namespaces"
                f" ({report['error']})"
            )
        return report["pid"], Path(report["directory"])

    def command(self, argv: Sequence[str]) -> list[str]:
        """`argv` as a command that, run outside, runs inside: same streams, signals and status."""
        return module_command("tests.controlplane.enter", str(self.pid), *argv)

    def popen(
        self,
        argv: Sequence[str],
        *,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = None,
        stderr: int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        pass_fds: Sequence[int] = (),
    ) -> subprocess.Popen[bytes]:
        """Start a program inside; it ends with the sandbox, at the latest."""
        process = subprocess.Popen(
            self.command(argv),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=env,
            cwd=cwd,
            pass_fds=pass_fds,
            start_new_session=True,
        )
        self._processes = [p for p in self._processes if p.poll() is None] + [process]
        return process

    def close(self) -> None:
        """End everything inside and remove the directory. Idempotent."""
        assert self._guard.stdin is not None
        assert self._guard.stdout is not None
        self._guard.stdin.close()
        self._guard.wait()
        self._guard.stdout.close()
        for process in self._processes:
            process.wait()
        self._processes.clear()
