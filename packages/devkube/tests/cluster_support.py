"""A whole dev cluster in this process, and kubectl for it."""

from __future__ import annotations

import asyncio
import contextlib
import shutil
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import yaml

from devkube import kubeconfig
from devkube.apiserver.auth import ADMIN_GROUP, UserInfo
from devkube.apiserver.calls import Attributes
from devkube.cluster import DevCluster
from kubeloop.client import Client

CACHE = Path.home() / ".cache" / "elasti" / "controlplane"


def kubectls() -> list[str]:
    """Every kubectl there is: the machine's own and the control plane's."""
    found = [shutil.which("kubectl"), *map(str, sorted(CACHE.glob("*/kubectl")))]
    return [path for path in found if path]


class Kubectl:
    """The real kubectl, with a kubeconfig and a cache of its own."""

    def __init__(self, directory: Path, program: str = "") -> None:
        self.kubeconfig = directory / "kubeconfig.yaml"
        self._command = [program or (kubectls() or ["kubectl"])[0]]
        self._command += ["--kubeconfig", str(self.kubeconfig), "--cache-dir", f"{directory}/cache"]

    async def run(self, *arguments: str, stdin: Any = None) -> tuple[int, str]:
        """Return the exit code and everything that was said."""
        text = stdin if isinstance(stdin, str) else yaml.safe_dump(stdin) if stdin else ""
        process = await asyncio.create_subprocess_exec(
            *self._command,
            *arguments,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
        )
        output, _ = await process.communicate(text.encode())
        assert process.returncode is not None
        return process.returncode, output.decode()

    async def __call__(self, *arguments: str, stdin: Any = None) -> str:
        """Return the output of a command that succeeds."""
        code, output = await self.run(*arguments, stdin=stdin)
        assert code == 0, output
        return output

    async def fails(self, *arguments: str, stdin: Any = None) -> str:
        """Return what a command says that fails."""
        code, output = await self.run(*arguments, stdin=stdin)
        assert code != 0, output
        return output


class Running:
    """A cluster and an administrator's client."""

    def __init__(self, cluster: DevCluster, client: Client, kubectl: Kubectl) -> None:
        self.cluster = cluster
        self.client = client
        self.kubectl = kubectl


@contextlib.asynccontextmanager
async def running(directory: Path, **options: Any) -> AsyncIterator[Running]:
    async with DevCluster(**options) as cluster:
        kubectl = Kubectl(directory)
        kubeconfig.write(kubectl.kubeconfig, cluster.access())
        config = cluster.server.client_config("admin", [ADMIN_GROUP])
        async with Client(config) as client, asyncio.timeout(50):
            await cluster.wait_ready()
            yield Running(cluster, client, kubectl)


class Refusals:
    """The last authorizer in the row: notes who was refused by all the others."""

    def __init__(self) -> None:
        self.seen: list[str] = []

    async def authorize(self, user: UserInfo, attributes: Attributes) -> bool:
        self.seen.append(f"{user.name}: {attributes}")
        return False
