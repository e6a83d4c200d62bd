"""Both programs' ends of their calls, on loopback, with certificates as a kubelet mounts them."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import datetime as dt
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Self

from elasti.api.names import TLS_NAME
from elasti.api.wire import ActivityReport, IncomingReply, WakeOutcome
from elasti.authn.authenticator import CallerAuthenticator
from elasti.authn.tls import PeerTls
from elasti.authn.tokens import TokenDecision
from elasti.operator.certificates import LIFETIMES
from elasti.operator.handover.resolver_client import HttpResolverClient
from elasti.operator.metrics import OperatorMetrics
from elasti.operator.server import Server
from elasti.operator.watch.directory import Directory
from elasti.resolver.admin import AdminServer
from elasti.resolver.metrics import Readiness
from elasti.resolver.projections import ServiceKey
from elasti.resolver.services.operators import OperatorClient
from kubeloop.aio.clock import SystemClock
from kubeloop.aio.tasks import finish
from kubeloop.http.health import HealthChecks
from kubeloop.webhook.certificate_secret import CertificateSet
from kubeloop.webhook.certificates import renewed

TOKEN = "a-token-for-the-peer-alone"
KEY = ServiceKey("shop", "web")
NOW = dt.datetime.now(dt.UTC)
DAY = dt.timedelta(days=1)


def made(
    found: CertificateSet | None = None, at: dt.datetime = NOW, name: str = TLS_NAME
) -> CertificateSet:
    """What the leader makes of a Secret at a time."""
    return renewed(found, (name,), at, LIFETIMES)


class Mount:
    """A volume with a Secret's files, changed as a kubelet does: all at once, by a link."""

    def __init__(self, place: Path) -> None:
        self.place = place
        place.mkdir()
        self._versions = 0

    def holds(self, found: CertificateSet) -> None:
        """Bring what the Secret holds."""
        self.write(
            {"ca.crt": found.authorities, "tls.crt": found.certificate, "tls.key": found.key}
        )

    def write(self, files: dict[str, bytes]) -> None:
        """Bring these files, and take all others away."""
        self._versions += 1
        version = self.place / f"..{self._versions}"
        version.mkdir()
        for name, content in files.items():
            (version / name).write_bytes(content)
            link = self.place / name
            if not link.is_symlink():
                link.symlink_to(f"..data/{name}")
        (self.place / "..new").symlink_to(version.name)
        (self.place / "..new").replace(self.place / "..data")


class View:
    """A resolver that has seen one Service."""

    async def activity(self, key: ServiceKey, *, hold: bool | None = None) -> ActivityReport | None:
        return ActivityReport(held=1, open=2)

    async def readiness(self) -> Readiness:
        return Readiness(ok=True, text="ok")

    async def metrics(self) -> bytes:
        return b""


class Wakes:
    """An operator that wakes whatever is asked for."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        pass

    async def wake(self, *_asked: str) -> IncomingReply:
        return IncomingReply(WakeOutcome.SCALING)


class Verifier:
    """Knows one token."""

    async def verify(self, token: str) -> TokenDecision:
        return TokenDecision("peer" if token == TOKEN else "", "unknown")

    async def ready(self) -> str:
        return "in a test"


def authenticator() -> CallerAuthenticator:
    return CallerAuthenticator(Verifier(), audience="x", allowed=["peer"], clock=SystemClock())


@contextlib.asynccontextmanager
async def operator_port(tls: PeerTls | None) -> AsyncIterator[int]:
    """The operator's server."""
    server = Server(
        wake_requests=Wakes(),  # type: ignore[arg-type]  # the part of it that a server needs
        directory=Directory(),
        authenticator=authenticator(),
        metrics=OperatorMetrics(),
        healthz=HealthChecks("healthz"),
        readyz=HealthChecks("readyz"),
        is_synced=lambda: True,
        host="127.0.0.1",
        port=0,
        tls=tls,
    )
    running = asyncio.create_task(server.run())
    try:
        await server.wait_until_ready()
        yield server.port
    finally:
        await finish([running])


@contextlib.asynccontextmanager
async def resolver_port(tls: PeerTls | None) -> AsyncIterator[int]:
    """The resolver's admin server."""
    server = AdminServer(View(), callers=authenticator(), tls=tls)
    await server.start(host="127.0.0.1")
    try:
        yield server.port
    finally:
        await server.aclose()


@dataclasses.dataclass
class Calls:
    """Calls a program as the other one does, and knows whether it worked."""

    tls: PeerTls | None
    token_file: str

    async def operator(self, port: int) -> str:
        """Ask an operator for a wake-up; returns the outcome. Raises OperatorUnreachable."""
        client = OperatorClient(
            url=f"http://127.0.0.1:{port}", token_file=self.token_file, tls=self.tls, timeout=2.0
        )
        async with client:
            return (await client.wake(KEY, count=1)).outcome.value

    async def resolver(self, port: int) -> ActivityReport | None:
        """Ask a resolver for its activity; None if that does not work."""
        client = HttpResolverClient(admin_port=port, token_file=self.token_file, tls=self.tls)
        async with client:
            return await client.activity("127.0.0.1", *KEY)


class Wire:
    """Carries bytes to a port, and sees all of them."""

    def __init__(self, port: int) -> None:
        self.seen = b""
        self.port = 0
        self._to = port

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._carry, "127.0.0.1", 0)
        self.port = self._server.sockets[0].getsockname()[1]
        return self

    async def __aexit__(self, *_exc: object) -> None:
        self._server.close()
        await self._server.wait_closed()

    async def _carry(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far_reader, far_writer = await asyncio.open_connection("127.0.0.1", self._to)
        await asyncio.gather(self._pump(reader, far_writer), self._pump(far_reader, writer))

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(OSError):
            while data := await reader.read(65536):
                self.seen += data
                writer.write(data)
                await writer.drain()
        writer.close()
        with contextlib.suppress(OSError):
            await writer.wait_closed()
