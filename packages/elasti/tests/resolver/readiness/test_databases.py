"""Databases accept connections before they serve: asked in their own words, and left to Kubernetes."""

from __future__ import annotations

import asyncio
import contextlib
import os
import pwd
import shutil
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from tests.resolver.cluster import FakeCluster, endpoint, fake_operator, pod
from tests.resolver.support import free_port, held, worker
from tests.resolver.traffic import served

from elasti.api.wire import WakeOutcome
from elasti.resolver.projections import DatabaseKind, ServiceKey
from elasti.resolver.readiness import prober
from elasti.resolver.readiness.checks import NetworkChecks
from elasti.resolver.readiness.plan import PlannedProbe
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterator

CHECKS = NetworkChecks()
NOBODY = 65534


def postgresql_error(code: bytes) -> bytes:
    fields = b"SFATAL\0VFATAL\0C%b\0Mwhatever it says\0\0" % code
    return b"E" + (len(fields) + 4).to_bytes(4, "big") + fields


RECOVERING = postgresql_error(b"57P03")


async def serves(database: DatabaseKind, port: int, timeout: float = 5.0) -> bool:
    return await CHECKS.ask("127.0.0.1", PlannedProbe(database, port, timeout))


@pytest.mark.parametrize(
    ("database", "answer", "is_serving"),
    [
        (DatabaseKind.POSTGRESQL, b"R\0\0\0\x08\0\0\0\0", True),
        (DatabaseKind.POSTGRESQL, RECOVERING, False),
        (DatabaseKind.POSTGRESQL, postgresql_error(b"28000"), True),
        (DatabaseKind.POSTGRESQL, b"HTTP/1.1 400 Bad Request\r\n\r\n", False),
        (DatabaseKind.POSTGRESQL, b"E\xff\xff\xff\xff", False),
        (DatabaseKind.MYSQL, b"\x4a\0\0\0\x0a8.0.36\0", True),
        (DatabaseKind.MYSQL, b"\x20\0\0\0\xff\x1d\x04shutting down", False),
        (DatabaseKind.MYSQL, b"\x20\0\0\0\xff\x10\x04Too many connections", True),
        (DatabaseKind.MYSQL, b"SSH-2.0-x\r\n", False),
        (DatabaseKind.REDIS, b"+PONG\r\n", True),
        (DatabaseKind.REDIS, b"-NOAUTH Authentication required.\r\n", True),
        (DatabaseKind.REDIS, b"-LOADING Redis is loading the dataset in memory\r\n", False),
        (DatabaseKind.REDIS, b"+" * 100_000, False),
        (DatabaseKind.REDIS, b"", False),
    ],
)
async def test_an_answer_says_whether_a_database_serves(database, answer, is_serving):
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        if database is not DatabaseKind.MYSQL:
            await reader.read(1)
        writer.write(answer)
        await writer.drain()

    async with served(talk) as port:
        assert await serves(database, port) is is_serving


async def test_silence_is_not_serving():
    async def talk(reader: asyncio.StreamReader, _writer: asyncio.StreamWriter) -> None:
        await reader.read()

    async with served(talk) as port:
        assert not await serves(DatabaseKind.MYSQL, port, timeout=0.05)


class Server:
    """One that a machine may have, in a directory of its own; not as root, which servers refuse."""

    def __init__(self, directory: Path) -> None:
        self.directory = directory
        root = os.geteuid() == 0
        self._user: Any = {"user": NOBODY, "group": NOBODY, "extra_groups": []} if root else {}
        if root:
            shutil.chown(directory, NOBODY, NOBODY)

    async def start(self, *command: object) -> asyncio.subprocess.Process:
        return await asyncio.create_subprocess_exec(
            *map(str, command), cwd=self.directory, stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.DEVNULL, **self._user,
        )  # fmt: skip

    @contextlib.asynccontextmanager
    async def running(self, *command: object) -> AsyncIterator[None]:
        process = await self.start(*command)
        try:
            yield
        finally:
            process.kill()
            await process.wait()


@pytest.fixture
def server() -> Iterator[Server]:
    # pytest's own directories are closed to other users.
    with tempfile.TemporaryDirectory(prefix="elasti-") as directory:
        yield Server(Path(directory))


@contextlib.asynccontextmanager
async def postgresql(server: Server, binary: Path | None) -> AsyncIterator[int]:
    """PostgreSQL that recovers until there is a file, or what a client sees of that."""
    recovered = server.directory / "recovered"
    if binary is None:
        database = Recovering(lambda: not recovered.exists())
        async with served(database.talk) as port:
            yield port
        return
    data, port = server.directory / "data", free_port()
    made = await server.start(binary / "initdb", "--no-sync", "-A", "trust", "-D", data)
    assert await made.wait() == 0
    (data / "recovery.signal").touch()
    restore = f"restore_command=while ! test -e {recovered}; do sleep 0.05; done; exit 1"
    options = f"listen_addresses=127.0.0.1 port={port} unix_socket_directories= hot_standby=off"
    flags = [word for option in (restore, *options.split()) for word in ("-c", option)]
    async with server.running(binary / "postgres", "-D", data, *flags):
        yield port


# A machine without a server has a played one.
# initdb refuses a user without a name.
HAS_NAME = any(user.pw_uid == os.geteuid() for user in pwd.getpwall())
POSTGRESQL = [
    path.parent for path in Path("/usr/lib/postgresql").glob("*/bin/postgres") if HAS_NAME
]
REDIS = shutil.which("redis-server")


@pytest.mark.parametrize("binary", POSTGRESQL or [None])
async def test_postgresql_says_that_it_recovers(server, binary):
    async with postgresql(server, binary) as port:
        answers = []

        async def asked() -> bool:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.close()
            answers.append(await serves(DatabaseKind.POSTGRESQL, port))
            return len(answers) >= 3

        await eventually(asked, ignore=(OSError,), timeout=30, every=0.05)
        assert answers == [False] * 3
        (server.directory / "recovered").touch()
        await eventually(lambda: serves(DatabaseKind.POSTGRESQL, port), timeout=30, every=0.05)


async def test_redis_says_that_it_serves(server):
    async def talk(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        assert await reader.readline() == b"PING\r\n"
        writer.write(b"+PONG\r\n")
        await writer.drain()

    port = free_port()
    flags = ["--port", port, "--save", "", "--dir", server.directory]
    async with server.running(REDIS, *flags) if REDIS else served(talk, port):
        await eventually(lambda: serves(DatabaseKind.REDIS, port), timeout=30, every=0.05)


class Recovering:
    """PostgreSQL as far as a client that asks once sees it."""

    def __init__(self, is_recovering: Callable[[], bool] = lambda: True) -> None:
        self.is_recovering = is_recovering

    async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readexactly(1)
        writer.write(RECOVERING if self.is_recovering() else b"R\0\0\0\x08\0\0\0\0")
        await writer.drain()


@contextlib.asynccontextmanager
async def sleeping_database(database: Recovering, probe: str) -> AsyncIterator[Any]:
    """A client of a database with a TCP probe, whose pod has begun to accept."""
    cluster, port = FakeCluster(), free_port()
    cluster.elasti_service("db", ("postgres", port), wake={"probe": probe})
    cluster.private_service("db", {"name": "postgres", "port": 5432})
    cluster.publish("db", {"postgres": port})
    async with (
        served(database.talk) as pod_port,
        fake_operator(lambda _: WakeOutcome.SCALING) as url,
        worker(cluster, url) as resolver,
    ):
        container = {"readinessProbe": {"tcpSocket": {"port": pod_port}}}
        cluster.pods["db-1"] = pod("db-1", container)

        def listed(*, ready: bool) -> None:
            found = endpoint("127.0.0.1", ready=ready, pod="db-1")
            cluster.endpoints("db", found, ports={"postgres": pod_port})

        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"\0\0\0\x08\0\3\0\0")
        await eventually(lambda: held(resolver, "db") == 1, timeout=30, every=0.005)
        listed(ready=False)
        yield resolver, listed, reader
        writer.close()


async def test_a_tcp_probe_alone_is_left_to_kubernetes():
    recovering = [True]
    database = Recovering(lambda: bool(recovering))
    async with sleeping_database(database, "Auto") as (resolver, listed, reader):
        port = resolver.registry.get(ServiceKey("shop", "db")).port("postgres")
        tasks = port._prober._tasks
        await eventually(
            lambda: tasks and all(task.done() for _, task in tasks.values()),
            timeout=30,
            every=0.005,
        )
        assert held(resolver, "db") == 1
        recovering.clear()
        listed(ready=True)
        assert await asyncio.wait_for(reader.readexactly(1), 30) == b"R"


async def test_a_database_that_says_it_serves_needs_no_ready():
    recovering = [True]
    database = Recovering(lambda: bool(recovering))
    async with sleeping_database(database, "Protocol") as (resolver, _, reader):
        await asyncio.sleep(0)
        assert held(resolver, "db") == 1
        recovering.clear()
        assert await asyncio.wait_for(reader.readexactly(1), 30) == b"R"


@pytest.mark.parametrize("probe", ["Auto", "Protocol"])
async def test_a_ready_database_that_says_it_starts_gets_no_client(probe):
    recovering = [True]
    asked = 0

    def is_recovering() -> bool:
        nonlocal asked
        asked += 1
        return bool(recovering)

    async with sleeping_database(Recovering(is_recovering), probe) as (resolver, listed, reader):
        listed(ready=True)
        before = asked
        await eventually(lambda: asked > before + 2, timeout=30, every=0.005)
        assert held(resolver, "db") == 1
        recovering.clear()
        assert await asyncio.wait_for(reader.readexactly(1), 30) == b"R"


async def test_a_ready_database_is_believed_after_a_while(monkeypatch):
    monkeypatch.setattr(prober, "LONGEST_DOUBT", 0.2)
    async with sleeping_database(Recovering(), "Auto") as (_, listed, reader):
        listed(ready=True)
        assert await asyncio.wait_for(reader.readexactly(1), 30) == b"E"


async def test_a_ready_pod_that_only_has_a_databases_port_is_not_waited_for(monkeypatch):
    monkeypatch.setattr(prober, "LONGEST_DOUBT", 3600.0)

    class Other(Recovering):
        async def talk(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            await reader.readexactly(1)
            writer.write(b"220 mail.example.com\r\n")
            await writer.drain()

    async with sleeping_database(Other(), "Auto") as (_, listed, reader):
        listed(ready=True)
        assert await asyncio.wait_for(reader.readexactly(3), 30) == b"220"
