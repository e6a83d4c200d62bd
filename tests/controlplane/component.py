"""One program of the control plane: start it, stop it, kill it, freeze it."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tests.controlplane.sandbox import Sandbox

POLL_SECONDS = 0.02
START_SECONDS = 30.0
STOP_SECONDS = 30.0
# Proxy settings and the like of whoever runs the tests must not reach the programs.
CLEAN_ENVIRONMENT = (
    "env",
    "-i",
    "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
)


class ComponentError(Exception):
    """A component ended by itself or did not do in time what it was asked to; has its last words."""


class Component:
    """A program in the sandbox, and the log it writes over all its lives.

    The methods block until what they ask for has happened (milliseconds, seconds for a start): from
    a running event loop call them with `asyncio.to_thread`. They may be called from any thread, by
    one thread at a time.
    """

    def __init__(
        self,
        name: str,
        argv: Sequence[str],
        *,
        sandbox: Sandbox,
        log: Path,
        ready: Callable[[], bool],
    ) -> None:
        self.name = name
        self.log = log
        self._argv = argv
        self._sandbox = sandbox
        self._ready = ready
        self._process: subprocess.Popen[bytes] | None = None

    def __repr__(self) -> str:
        return f"<Component {self.name} {'running' if self.running else 'stopped'}>"

    @property
    def running(self) -> bool:
        return self._process is not None and self._process.poll() is None

    @property
    def pid(self) -> int:
        """The program's own process, as seen from outside."""
        process = self._running_process()
        # The process we started is `enter`; the program is its only child, once it has forked.
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
        return int(children[0]) if children else process.pid

    def launch(self) -> None:
        """Start it and do not wait."""
        if self.running:
            raise ComponentError(f"{self.name} runs already")
        with self.log.open("ab") as log:
            self._process = self._sandbox.popen(
                [*CLEAN_ENVIRONMENT, *self._argv], stdout=log.fileno(), stderr=subprocess.STDOUT
            )

    def wait_ready(self, timeout: float = START_SECONDS) -> None:
        """Return when it serves; ComponentError if it ends or takes too long."""
        process = self._running_process()
        deadline = time.monotonic() + timeout
        while not self._ready():
            if time.monotonic() > deadline:
                raise self._failure(f"not ready after {timeout:.0f} s")
            try:
                status = process.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                continue
            raise self._failure(f"ended with status {status}")

    def start(self) -> None:
        """Start it and return when it serves."""
        self.launch()
        self.wait_ready()

    def stop(self, timeout: float = STOP_SECONDS) -> None:
        """Ask it to end (SIGTERM) and return when it has."""
        process = self._running_process()
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(timeout)
        except subprocess.TimeoutExpired:
            self.kill()
            raise self._failure(f"did not stop in {timeout:.0f} s") from None

    def kill(self) -> None:
        """End it with SIGKILL and return when it is gone, its ports free again."""
        process = self._running_process()
        self.send_signal(signal.SIGKILL)
        process.wait()

    def restart(self) -> None:
        """Stop in order, start, return when it serves."""
        self.stop()
        self.start()

    def freeze(self) -> None:
        """Let it hang: connections stay open, nothing answers."""
        self.send_signal(signal.SIGSTOP)

    def thaw(self) -> None:
        """Undo `freeze`."""
        self.send_signal(signal.SIGCONT)

    def send_signal(self, number: signal.Signals) -> None:
        """Send a signal to the program itself."""
        os.kill(self.pid, number)

    def tail(self, lines: int = 20) -> str:
        """The end of its log."""
        if not self.log.exists():
            return ""
        return "\n".join(self.log.read_text(errors="replace").splitlines()[-lines:])

    def _running_process(self) -> subprocess.Popen[bytes]:
        if self._process is None or self._process.poll() is not None:
            raise self._failure("is not running")
        return self._process

    def _failure(self, what: str) -> ComponentError:
        return ComponentError(f"{self.name}: {what}; the end of {self.log}:\n{self.tail()}")
