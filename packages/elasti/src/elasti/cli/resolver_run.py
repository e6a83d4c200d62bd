"""What `elasti resolver` does: settings, signals, an event loop, one worker or several."""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
import tempfile
from typing import TYPE_CHECKING, Any

import click
import structlog

from elasti.api.parsing import SettingsError
from elasti.cli import logs
from elasti.cli.running import failure_from
from elasti.resolver.app import serve, supervise
from elasti.resolver.settings import ResolverSettings, without_effect
from kubeloop.client.errors import KubeError
from kubeloop.informer.sync import NotSynced

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

_log = structlog.get_logger(__name__)


def run(flags: dict[str, Any], *, log_level: str, pretty: bool | None, worker_socket: str) -> None:
    """Run until SIGTERM or SIGINT; a second signal ends it at once."""
    logs.configure(level=log_level, pretty=pretty)
    try:
        settings = ResolverSettings.from_env(os.environ, **flags)
    except SettingsError as error:
        raise click.UsageError(str(error)) from error
    if (names := without_effect(os.environ)) and not worker_socket:
        _log.info("some variables are set that mean nothing here", names=names)
    try:
        if worker_socket or settings.workers == 1:
            _run(functools.partial(serve, settings, admin_socket=worker_socket))
        else:
            _run_several(settings)
    except (KubeError, NotSynced, OSError) as error:
        raise failure_from(error) from error


def _run_several(settings: ResolverSettings) -> None:
    with tempfile.TemporaryDirectory(prefix="elasti-resolver-") as directory:
        sockets = [f"{directory}/{number}.sock" for number in range(settings.workers)]
        call = [sys.executable, "-c", "from elasti.cli.main import main; main()", *sys.argv[1:]]
        workers = ["--workers", str(settings.workers)]
        commands = [[*call, *workers, "--worker-socket", path] for path in sockets]
        _run(functools.partial(supervise, settings, commands=commands, sockets=sockets))


def _run(job: Callable[[asyncio.Event], Coroutine[Any, Any, object]]) -> None:
    with asyncio.Runner(loop_factory=_loop_factory()) as runner:
        try:
            runner.run(_with_signals(job))
        except asyncio.CancelledError:
            raise click.ClickException("stopped before everything was served") from None


async def _with_signals(job: Callable[[asyncio.Event], Coroutine[Any, Any, object]]) -> None:
    stop = asyncio.Event()
    task = asyncio.current_task()
    assert task is not None

    def asked() -> None:
        if stop.is_set():
            task.cancel()
        stop.set()

    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, asked)
    await job(stop)


def _loop_factory() -> Callable[[], asyncio.AbstractEventLoop] | None:
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop
