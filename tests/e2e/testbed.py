"""What an environment stands on: a cluster with nodes whose pods are processes here, and ways to hurt it.

There are several: the dev cluster, and the real control plane with either of two service proxies.
Each implements `Testbed`; everything that can be said in Kubernetes' own words is in `environment` and is
the same on all of them.
"""

from __future__ import annotations

import asyncio
import contextlib
from asyncio.subprocess import Process
from collections.abc import AsyncIterator, Mapping, Sequence
from pathlib import Path

from kubeloop.client import Client
from tests.e2e.settings import ROOT

PATIENCE = 300.0
"""How long to wait, in seconds, for what takes a few on an idle machine."""


class Unsupported(Exception):
    """A testbed cannot do this; the text says why, and the report shows it."""


class Testbed:
    """A running cluster. The faults that not every testbed has raise `Unsupported`."""

    name: str
    """As the report calls it."""
    client: Client
    """The administrator's. Elasti itself never uses it."""
    kubeconfig: Path
    """The administrator's, for programs outside."""
    audit: Path | None = None
    """The API server's audit log (`tests.history.audit`), if it writes one."""
    most_connections: int
    """How many connections the way to one Service carries at once, by the machine's limits."""

    def inside(self, argv: Sequence[str]) -> Sequence[str]:
        """Return the command that runs a program where the cluster's addresses can be reached."""
        return argv

    async def spawn(
        self,
        argv: Sequence[str],
        *,
        stdin: int | None = None,
        stdout: int | None = None,
        stderr: int | None = None,
        env: Mapping[str, str] | None = None,
    ) -> Process:
        """Run a program where Services' addresses and pods' addresses can be reached.

        The streams are as in `asyncio.create_subprocess_exec`; the caller ends the program. It runs in
        the repository's root, and shares the file system.
        """
        return await asyncio.create_subprocess_exec(
            *self.inside(argv),
            stdin=stdin,
            stdout=stdout,
            stderr=stderr,
            env=env,
            cwd=ROOT,
            start_new_session=True,
        )

    def processes_of(self, pod_name: str) -> list[int]:
        """Return the ids, here, of a pod's processes; empty where it has none."""
        return pids_with(f"POD_NAME={pod_name}")

    async def settled(self) -> None:
        """Wait until the cluster itself is whole again after a fault."""

    @contextlib.asynccontextmanager
    async def api_away(self) -> AsyncIterator[None]:
        """Let nobody reach the API server during the block."""
        raise Unsupported(f"{self.name}: the API server cannot be stopped")
        yield

    async def restart_etcd(self) -> None:
        """Stop and start the API server's storage."""
        raise Unsupported(f"{self.name}: there is no etcd")

    async def drop_watches(self) -> int:
        """Break every watch connection that is open now; returns how many."""
        raise Unsupported(f"{self.name}: watch connections cannot be broken")

    async def delay_endpoints(self, seconds: float) -> None:
        """Let the service proxy hear of every change this much later; 0 for at once."""
        raise Unsupported(f"{self.name}: the service proxy cannot be delayed")


def pids_with(variable: str) -> list[int]:
    """Return the processes of this machine that have a variable (`NAME=value`) in their environment."""
    wanted, found = variable.encode(), []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if wanted in path.read_bytes().split(b"\0"):
                found.append(int(path.parent.name))
    return sorted(found)
