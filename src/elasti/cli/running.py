"""Running a coroutine for a person: Ctrl-C is a normal end, and errors are one line.

Two kinds of commands: those that go on until they are interrupted, for which that is success, and
those that come to an end, which were cut short by it. Whatever a user can mend leaves here as a
`Failure`, with the remedy and the exit code.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from elasti.cli.exits import ExitCode
from elasti.cli.failures import failure_from
from kubeloop.client import Client, ClientConfig, KubeError, Timeouts
from kubeloop.informer.sync import NotSynced
from kubeloop.objects.selector_tokens import SelectorError

if TYPE_CHECKING:
    from elasti.cli.options import Access

T = TypeVar("T")
Job: TypeAlias = Callable[[], Coroutine[Any, Any, T]]
LoopFactory: TypeAlias = Callable[[], asyncio.AbstractEventLoop]

_EXPECTED = (KubeError, NotSynced, SelectorError, OSError)
# A person waits: a server that takes no connection in this time is not there.
_TIMEOUTS = Timeouts(connect=5.0, request=30.0)


def config_for(access: Access) -> ClientConfig:
    """Return where the cluster is and who we are. Raises ConfigError."""
    if access.kubeconfig is not None:
        return ClientConfig.from_kubeconfig(
            access.kubeconfig.expanduser(), context=access.context or None
        )
    return ClientConfig.from_env(context=access.context or None)


@contextlib.asynccontextmanager
async def connected(access: Access) -> AsyncIterator[Client]:
    """Speak to a cluster; errors in the block say which configuration was used. Raises Failure."""
    source = ""
    try:
        config = config_for(access)
        source = config.source
        async with Client(config, timeouts=_TIMEOUTS, user_agent="elasti-cli") as client:
            with warnings_told():
                yield client
    except KubeError as error:
        raise failure_from(error, source=source) from error


class _Teller(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        click.echo(f"Warning: {getattr(record, 'warning', record.getMessage())}", err=True)


@contextlib.contextmanager
def warnings_told() -> Iterator[None]:
    """Tell during the block what a server warns about as kubectl does: each in a line."""
    logger, teller = logging.getLogger("kubeloop.client.warnings"), _Teller()
    logger.addHandler(teller)
    try:
        yield
    finally:
        logger.removeHandler(teller)


def run_to_end(job: Job[T]) -> T:
    """Run a job and return its result; interrupted by SIGINT or SIGTERM, the exit code is 130.

    What a user can mend becomes a `Failure`.
    """
    try:
        with asyncio.Runner() as runner:
            return runner.run(_cancelled_by_signals(job))
    except asyncio.CancelledError:
        raise click.exceptions.Exit(ExitCode.INTERRUPTED) from None
    except BrokenPipeError:
        raise
    except _EXPECTED as error:
        raise failure_from(error) from error


def run_until_interrupted(job: Job[None], *, loop_factory: LoopFactory | None = None) -> None:
    """Run a job until it ends, or until SIGINT or SIGTERM cancels it; both are success.

    What a user can mend becomes a `Failure`.
    """
    try:
        with (
            contextlib.suppress(asyncio.CancelledError),
            asyncio.Runner(loop_factory=loop_factory) as runner,
        ):
            runner.run(_cancelled_by_signals(job))
    except BrokenPipeError:
        raise
    except _EXPECTED as error:
        raise failure_from(error) from error


async def _cancelled_by_signals(job: Job[T]) -> T:
    task = asyncio.current_task()
    assert task is not None
    for signum in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(signum, task.cancel)
    return await job()
