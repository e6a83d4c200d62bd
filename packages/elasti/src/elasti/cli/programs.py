"""The programs of an installation, without the command line's library: click is 1.2 MiB that a pod never needs.

`elasti operator` and `elasti resolver` without options, as pods start them, come here directly; with
options they come through their commands, which also turn what is raised here into messages and exit codes.
"""

from __future__ import annotations

import asyncio
import functools
import os
import signal
import sys
from typing import TYPE_CHECKING, Any, TypeAlias

from elasti.cli import logs

if TYPE_CHECKING:
    from collections.abc import Callable, Coroutine

    from elasti.operator.settings import OperatorSettings
    from elasti.resolver.settings import ResolverSettings

    Job: TypeAlias = Callable[[asyncio.Event], Coroutine[Any, Any, object]]


class CannotRun(Exception):
    """The machine does not suit the program, or a second signal ended it before everything was served."""


def run_operator(
    *,
    context: str | None = None,
    log_level: str = "info",
    pretty: bool | None = None,
    **overrides: Any,
) -> None:
    """Run the operator until SIGTERM. Raises SettingsError, KubeError and OSError."""
    from elasti.api.triggers.registry import trigger_types
    from elasti.operator.settings import KUBEELASTI_ONLY, VARIABLES, OperatorSettings
    from kubeloop.client.auth.tls import shrink_read_buffers

    settings = OperatorSettings.from_env(os.environ, **overrides)
    logs.configure(level=log_level, pretty=pretty)
    triggers = (name for trigger in trigger_types().values() for name in trigger.variables)
    logs.warn_of_variables({*VARIABLES, *triggers}, KUBEELASTI_ONLY, os.environ)
    shrink_read_buffers()
    asyncio.run(_operate(settings, context))


async def _operate(settings: OperatorSettings, context: str | None) -> None:
    from elasti.operator.app import OperatorApp
    from kubeloop.client import Client, ClientConfig
    from kubeloop.controller import run_until_signal

    config = ClientConfig.from_env(context=context)
    async with Client(config) as client:
        operator = OperatorApp(
            settings,
            client=client,
            open_client=lambda: Client(ClientConfig.from_env(context=context)),
        )
        await run_until_signal(operator)


def run_resolver(
    *,
    log_level: str = "info",
    pretty: bool | None = None,
    worker_socket: str = "",
    **overrides: Any,
) -> None:
    """Run until SIGTERM or SIGINT; a second signal ends it at once.

    Raises SettingsError, CannotRun, KubeError, NotSynced and OSError.
    """
    from elasti.api.parsing import SettingsError
    from elasti.resolver.app import check_descriptors, serve
    from elasti.resolver.settings import KUBEELASTI_ONLY, VARIABLES, ResolverSettings

    logs.configure(level=log_level, pretty=pretty)
    settings = ResolverSettings.from_env(os.environ, **overrides)
    try:
        check_descriptors()
    except SettingsError as error:
        raise CannotRun(str(error)) from error
    if not worker_socket:
        logs.warn_of_variables(VARIABLES, KUBEELASTI_ONLY, os.environ)
    if worker_socket or settings.workers == 1:
        _run_loop(functools.partial(serve, settings, admin_socket=worker_socket))
    else:
        _run_several(settings)


def _run_several(settings: ResolverSettings) -> None:
    import tempfile

    from elasti.resolver.app import supervise

    with tempfile.TemporaryDirectory(prefix="elasti-resolver-") as directory:
        sockets = [f"{directory}/{number}.sock" for number in range(settings.workers)]
        call = [sys.executable, "-c", "from elasti.cli.main import main; main()", *sys.argv[1:]]
        workers = ["--workers", str(settings.workers)]
        commands = [[*call, *workers, "--worker-socket", path] for path in sockets]
        _run_loop(functools.partial(supervise, settings, commands=commands, sockets=sockets))


def _run_loop(job: Job) -> None:
    with asyncio.Runner(loop_factory=fast_loop()) as runner:
        try:
            runner.run(_with_signals(job))
        except asyncio.CancelledError:
            raise CannotRun("stopped before everything was served") from None


def fast_loop() -> Callable[[], asyncio.AbstractEventLoop] | None:
    """Return uvloop if it is installed: a watch over TLS takes a fifth of asyncio's memory."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


async def _with_signals(job: Job) -> None:
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
