"""Where an operator is measured: an API server, and a network in which things can be started.

Two of a kind. `dev_place` has the dev cluster's server, on loopback: nothing is needed for it, but it
is Python and takes its share of two cores. `real_place` has etcd and kube-apiserver in a network
namespace, where everything else is started too, since a real server takes no loopback addresses for
endpoints. Neither has controllers: the benchmark plays what they would do.
"""

from __future__ import annotations

import contextlib
import os
import random
import socket
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from benchmarks.operator_ledger import OPERATOR_USER, POLICY
from benchmarks.processes import ROOT, environment, serving
from tests.controlplane.binaries import Binaries, BinariesMissing
from tests.controlplane.keyring import MASTERS
from tests.controlplane.rig import ControlPlane, Options

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

_OPERATOR_PORT = 8013


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """An API server and the network around it.

    `admin` is a kubeconfig for the benchmark itself, outside; `operator` one for the operator, inside.
    `ledger` is the file in which the server notes what the operator asks. `enter` turns a command into one
    that runs inside.
    """

    name: str
    admin: Path
    operator: Path
    ledger: Path
    directory: Path
    resolver_address: str
    operator_port: int
    enter: Callable[[Sequence[str]], list[str]]

    def start(
        self,
        argv: Sequence[str],
        *,
        core: int,
        variables: Mapping[str, str] | None = None,
        stderr: int | None = None,
        piped: bool = False,
    ) -> subprocess.Popen[bytes]:
        """Start a program inside, on one core; `piped` connects its standard input and output."""
        usual = os.sched_getaffinity(0)
        os.sched_setaffinity(0, {core})  # inherited by what is started
        try:
            return subprocess.Popen(
                self.enter(argv),
                cwd=ROOT,
                env=environment() | dict(variables or {}),
                stdin=subprocess.PIPE if piped else subprocess.DEVNULL,
                stdout=subprocess.PIPE if piped else None,
                stderr=stderr,
            )
        finally:
            os.sched_setaffinity(0, usual)


@contextlib.contextmanager
def dev_place(core: int) -> Iterator[Place]:
    """Run the dev cluster's API server for the time of the block."""
    with (
        tempfile.TemporaryDirectory() as name,
        serving("benchmarks.operator_devserver", "--directory", name, core=core),
    ):
        directory = Path(name)
        yield Place(
            name="dev server",
            admin=directory / "admin",
            operator=directory / OPERATOR_USER,
            ledger=directory / "audit.log",
            directory=directory,
            resolver_address=_loopback(),
            operator_port=_free_port(),
            enter=list,
        )


@contextlib.contextmanager
def real_place(core: int) -> Iterator[Place]:
    """Run etcd and kube-apiserver for the time of the block. Raises BinariesMissing."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        policy, ledger = directory / "policy.yaml", directory / "audit.log"
        policy.write_text(POLICY)
        audit = (f"--audit-policy-file={policy}", f"--audit-log-path={ledger}")
        options = Options(controllers=False, scheduler=False, apiserver_flags=audit)
        with _pinned(core), ControlPlane(_binaries(), options) as plane:
            yield Place(
                name="kube-apiserver",
                admin=plane.kubeconfig,
                operator=plane.kubeconfig_for(OPERATOR_USER, MASTERS, inside=True),
                ledger=ledger,
                directory=directory,
                resolver_address="10.200.0.5",
                operator_port=_OPERATOR_PORT,
                enter=plane.inside,
            )


def why_not_real() -> str | None:
    """Return why this machine has no real control plane, and how to get one; None where it has."""
    try:
        _binaries()
    except BinariesMissing as error:
        return str(error)
    return None


def _binaries() -> Binaries:
    assets = os.environ.get("KUBEBUILDER_ASSETS")
    return Binaries.locate(Path(assets) if assets else None)


@contextlib.contextmanager
def _pinned(core: int) -> Iterator[None]:
    usual = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {core})
    try:
        yield
    finally:
        os.sched_setaffinity(0, usual)


def _loopback() -> str:
    """Return an address that another run on this machine most likely does not use."""
    return "127." + ".".join(str(random.randrange(2, 254)) for _ in range(3))


def _free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return int(listener.getsockname()[1])


def elasti(*arguments: str) -> list[str]:
    """Return the command line of our own program."""
    return [sys.executable, "-c", "from elasti.cli.main import main; main()", *arguments]
