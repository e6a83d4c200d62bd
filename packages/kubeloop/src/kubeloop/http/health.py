"""Health checks, and the HTTP server for probes and metrics: `/healthz`, `/readyz`, `/metrics`.

A check is a function, plain or `async`, that raises when something is wrong. `HealthChecks`
aggregates checks under one name. The reasons of failures go to the log; the response only names
the checks that failed, because every pod of the cluster can read it.
"""

from __future__ import annotations

import asyncio
import dataclasses
import functools
import inspect
import logging
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import TYPE_CHECKING, TypeAlias

from kubeloop.http.server import HttpError, HttpServer, Request, Response, Router
from kubeloop.metrics.text import CONTENT_TYPE

if TYPE_CHECKING:
    import ssl

    from kubeloop.http.server import ConnectionLimits, Handler

Check: TypeAlias = Callable[[], Awaitable[object] | object]

_log = logging.getLogger(__name__)


@dataclasses.dataclass(frozen=True, slots=True)
class HealthAnswer:
    """The outcome, and the text that goes over the wire."""

    ok: bool
    text: str


class HealthChecks:
    """Named checks. Without any, the answer is that of `ping`: a process that answers is alive."""

    def __init__(self, name: str, checks: Mapping[str, Check] | None = None) -> None:
        self._name = name
        self._checks: dict[str, Check] = {}
        for check_name, check in (checks or {}).items():
            self.add(check_name, check)

    def add(self, name: str, check: Check) -> None:
        """Add a check. Raises ValueError if the name is taken or would not do in a path."""
        if not name or "/" in name:
            raise ValueError(f"check {name!r}: the name must not be empty nor contain '/'")
        if name in self._checks:
            raise ValueError(f"check {name!r} is already registered")
        self._checks[name] = check

    async def run(self, *, exclude: Collection[str] = (), verbose: bool = False) -> HealthAnswer:
        """Run all checks but the excluded ones; a failure is always reported check by check."""
        lines, ok = [], True
        for name, check in sorted(self._present().items()):
            if name in exclude:
                lines.append(f"[+]{name} excluded: ok")
                continue
            passed = await self._passes(name, check)
            ok = ok and passed
            lines.append(f"[+]{name} ok" if passed else f"[-]{name} failed: reason withheld")
        lines += _complaint(set(exclude) - self._present().keys())
        lines.append(f"{self._name} check {'passed' if ok else 'failed'}")
        return HealthAnswer(ok, "\n".join(lines) + "\n" if verbose or not ok else "ok")

    async def run_one(self, name: str) -> HealthAnswer | None:
        """Run a single check; None if there is no check of that name."""
        check = self._present().get(name)
        if check is None:
            return None
        ok = await self._passes(name, check)
        return HealthAnswer(ok, "ok" if ok else f"{name} failed: reason withheld\n")

    def _present(self) -> Mapping[str, Check]:
        return self._checks or {"ping": _ping}

    async def _passes(self, name: str, check: Check) -> bool:
        try:
            result = check()
            if inspect.isawaitable(result):
                await result
        except Exception as error:  # noqa: BLE001 -- whatever it raises, that is how a check fails
            # Probes come every few seconds, and a program may be unready for a good reason: one
            # line is enough.
            _log.warning(
                "%s check %s failed: %s", self._name, name, str(error) or type(error).__name__
            )
            return False
        return True


def _ping() -> None:
    """A process that can run this is alive."""


def _complaint(unknown: set[str]) -> list[str]:
    if not unknown:
        return []
    names = ", ".join(f'"{name}"' for name in sorted(unknown))
    return [f"warn: some health checks cannot be excluded: no matches for {names}"]


class HealthServer:
    """A runnable for `Group.SERVERS`; ready when it listens.

    `metrics` returns the present metrics in Prometheus' text format. Port 0 takes any free one;
    `port` has it then. `limits` hold callers to sending something; at the end, requests under way
    have `shutdown_timeout` seconds. `optional_tls`: as of `HttpServer.open`.
    """

    def __init__(
        self,
        *,
        healthz: HealthChecks | None = None,
        readyz: HealthChecks | None = None,
        metrics: Callable[[], bytes] | None = None,
        host: str | None = None,
        port: int = 8081,
        limits: ConnectionLimits | None = None,
        shutdown_timeout: float = 60.0,
        optional_tls: Callable[[], ssl.SSLContext | None] | None = None,
    ) -> None:
        self._optional_tls = optional_tls
        self._checks = {"healthz": healthz, "readyz": readyz}
        self._metrics = metrics
        self._host = host
        self._wanted_port = port
        self._limits = limits
        self._shutdown_timeout = shutdown_timeout
        self._listening = asyncio.Event()
        self._http_server: HttpServer | None = None

    @property
    def port(self) -> int:
        """The port that it listens on; known when ready. Raises RuntimeError before."""
        if self._http_server is None:
            raise RuntimeError("the server does not listen yet")
        return self._http_server.port

    async def run(self) -> None:
        """Serve until cancelled."""
        router = Router(self.routes(), yields=True)
        self._http_server = HttpServer(
            router, self._limits, shutdown_timeout=self._shutdown_timeout
        )
        try:
            await self._http_server.open(
                self._host, self._wanted_port, optional_tls=self._optional_tls
            )
            self._listening.set()
            await asyncio.get_running_loop().create_future()
        finally:
            await self._http_server.close()

    async def wait_until_ready(self) -> None:
        """Wait until it listens."""
        await self._listening.wait()

    def routes(self) -> dict[str, Handler]:
        """Return what is served, by method and path; a program may have more of it in a class of its own."""
        routes: dict[str, Handler] = {}
        for name, checks in self._checks.items():
            if checks is not None:
                routes |= _check_routes(name, checks)
        if self._metrics is not None:
            routes["GET /metrics"] = functools.partial(_serve_metrics, self._metrics)
        return routes


def _check_routes(name: str, checks: HealthChecks) -> dict[str, Handler]:
    async def every(request: Request) -> Response:
        exclude, verbose = request.query.get("exclude", ()), "verbose" in request.query
        return _response(await checks.run(exclude=exclude, verbose=verbose))

    async def one(request: Request) -> Response:
        return _response(await checks.run_one(request.arguments["check"]))

    return {f"GET /{name}": every, f"GET /{name}/": every, f"GET /{name}/{{check}}": one}


async def _serve_metrics(metrics: Callable[[], bytes], _request: Request) -> Response:
    return Response(body=metrics(), content_type=CONTENT_TYPE)


def _response(answer: HealthAnswer | None) -> Response:
    if answer is None:
        raise HttpError(404, "no such check\n")
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store"}
    return Response(200 if answer.ok else 500, answer.text.encode(), headers=headers)
