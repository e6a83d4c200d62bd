"""A cluster with an operator for commands to talk to, on a thread of its own.

Commands run an event loop themselves, as they do for a user, so that the cluster needs another one.
"""

from __future__ import annotations

import asyncio
import concurrent.futures
import contextlib
import dataclasses
import io
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any, TypeVar

import yaml
from click.testing import CliRunner, Result
from tests.operator.fakes import FakePrometheus
from tests.operator.rig import Rig
from tests.operator.servers import dev_rig

from devkube.apiserver.server import ApiServer
from devkube.auth.install import fill, install
from devkube.auth.jwt import SigningKey
from devkube.kubeconfig import write
from elasti.cli.main import main
from kubeloop.client import Client
from kubeloop.objects.meta import JsonObject
from tests.waiting import eventually

T = TypeVar("T")
PATIENCE = 60.0
NOBODY = "nobody-at-all"
_RBAC = "rbac.authorization.k8s.io"


class Terminal(io.StringIO):
    """An output that calls itself a terminal."""

    def isatty(self) -> bool:
        return True


class CommandEnvironment:
    """A cluster with everything, one without our definition, and none at all."""

    def __init__(
        self, rig: Rig, bare: ApiServer, prometheus: FakePrometheus, directory: Path
    ) -> None:
        self.rig = rig
        self._bare = bare
        self.prometheus = prometheus
        self.namespace = rig.namespace
        self.admin = directory / "kubeconfig"
        self.nobody = directory / "nobody"
        self.bare = directory / "bare"
        self.nowhere = directory / "nowhere"
        self._directory = directory
        self._loop = asyncio.get_running_loop()

    def call(self, coroutine: Coroutine[Any, Any, T]) -> T:
        """Run a coroutine where the cluster is."""
        future = asyncio.run_coroutine_threadsafe(coroutine, self._loop)
        return future.result(PATIENCE)

    def run(self, *arguments: str, kubeconfig: Path | None = None, **options: Any) -> Result:
        """Run a command as the administrator, or with another kubeconfig, in our namespace."""
        path = kubeconfig or self._namespaced(self.admin)
        return CliRunner(env={"KUBECONFIG": str(path)}, **options).invoke(main, list(arguments))

    def ok(self, *arguments: str, **options: Any) -> str:
        """Run a command that succeeds, and return what it prints."""
        result = self.run(*arguments, **options)
        assert result.exit_code == 0, result.output
        return result.stdout

    def eventually(self, condition: Any) -> None:
        """Wait until a condition, made of coroutines, holds."""
        self.call(eventually(condition, timeout=PATIENCE - 5, every=0.05))

    def user(self, name: str, *rules: JsonObject) -> Path:
        """Return the kubeconfig of a user who may do exactly this, everywhere."""
        assert self.rig.cluster._server is not None
        path = self._directory / f"user-{name}"
        _write(path, self.rig.cluster._server, name)
        self.call(_grant(self.rig.client, name, list(rules)))
        return self._namespaced(path)

    def bare_user(self, name: str, *rules: JsonObject) -> Path:
        """Return the kubeconfig of such a user where our definition is missing."""
        path = self._directory / f"bare-user-{name}"
        _write(path, self._bare, name)

        async def grant() -> None:
            async with Client.from_kubeconfig(self.bare) as client:
                await _grant(client, name, list(rules))

        self.call(grant())
        return path

    def _namespaced(self, path: Path) -> Path:
        document = yaml.safe_load(path.read_text())
        for entry in document["contexts"]:
            entry["context"]["namespace"] = self.namespace
        made = path.with_name(f"{path.name}-namespaced")
        made.write_text(yaml.safe_dump(document))
        return made


async def _grant(client: Client, name: str, rules: list[JsonObject]) -> None:
    meta = {"metadata": {"name": name}}
    role = {"kind": "ClusterRole", "name": name, "apiGroup": _RBAC}
    subjects = [{"kind": "User", "name": name, "apiGroup": _RBAC}]
    await client.resource(f"{_RBAC}/v1/clusterroles").create({**meta, "rules": rules})
    await client.resource(f"{_RBAC}/v1/clusterrolebindings").create(
        {**meta, "subjects": subjects, "roleRef": role}
    )


def _write(path: Path, server: ApiServer, user: str) -> None:
    write(path, dataclasses.replace(server.access(user, ()), name=user))


@contextlib.asynccontextmanager
async def _bare_server() -> AsyncIterator[ApiServer]:
    server = ApiServer()
    auth = install(server.core, key=SigningKey.create())
    async with server:
        fill(server.core, auth)
        yield server


@contextlib.asynccontextmanager
async def command_environment(directory: Path) -> AsyncIterator[CommandEnvironment]:
    """A cluster with an operator, a bare one, and the way to none."""
    async with (
        FakePrometheus().running() as prometheus,
        dev_rig(directory) as rig,
        rig.operator(watch_namespaces=(rig.namespace,)),
        _bare_server() as bare,
    ):
        environment = CommandEnvironment(rig, bare, prometheus, directory)
        assert rig.cluster._server is not None
        _write(environment.nobody, rig.cluster._server, NOBODY)
        environment.bare.write_text(bare.admin_kubeconfig())
        document = yaml.safe_load(environment.admin.read_text())
        document["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:9"
        environment.nowhere.write_text(yaml.safe_dump(document))
        yield environment


@contextlib.contextmanager
def in_background(make: Callable[[], AbstractAsyncContextManager[T]]) -> Iterator[T]:
    """Keep something open on a thread with a loop of its own."""
    ready: concurrent.futures.Future[tuple[T, asyncio.AbstractEventLoop]]
    ready = concurrent.futures.Future()
    stop = asyncio.Event()

    async def play() -> None:
        try:
            async with make() as made:
                ready.set_result((made, asyncio.get_running_loop()))
                await stop.wait()
        except BaseException as error:
            if ready.done():
                raise
            ready.set_exception(error)

    thread = threading.Thread(target=lambda: asyncio.run(play()), name="environment")
    thread.start()
    try:
        made, loop = ready.result(PATIENCE)
        try:
            yield made
        finally:
            loop.call_soon_threadsafe(stop.set)
    finally:
        thread.join(PATIENCE)
