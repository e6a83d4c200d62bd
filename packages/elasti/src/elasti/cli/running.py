"""Running a coroutine for a user: Ctrl-C is a normal end, and errors are one line with a remedy.

Two kinds of commands: those that run until they are interrupted, for which that is success, and
those that come to an end, which were cut short by it. Whatever a user can mend leaves here as a
`Failure`, with the remedy and the exit code.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import click

from elasti.api.names import CLI_FIELD_MANAGER, GROUP, PLURAL
from elasti.cli.exits import ExitCode, Failure, os_error_message
from elasti.cli.rendering import echo
from kubeloop.client import Client, ClientConfig, KubeError, Timeouts
from kubeloop.client.errors import (
    ConfigError,
    CredentialError,
    Forbidden,
    MappingError,
    NotFound,
    ServiceUnavailable,
    TransportError,
    Unauthorized,
)
from kubeloop.informer.sync import NotSynced
from kubeloop.objects.selectors import SelectorError

if TYPE_CHECKING:
    from elasti.cli.options import AccessOptions


INSTALL = "elasti install"

# The first that fits counts.
_CODES: tuple[tuple[type[Exception], ExitCode], ...] = (
    (CredentialError, ExitCode.NOT_ALLOWED),
    (ConfigError, ExitCode.NO_CLUSTER),
    (TransportError, ExitCode.NO_CLUSTER),
    (ServiceUnavailable, ExitCode.NO_CLUSTER),
    (Unauthorized, ExitCode.NOT_ALLOWED),
    (Forbidden, ExitCode.NOT_ALLOWED),
    (NotFound, ExitCode.NOT_FOUND),
    (MappingError, ExitCode.NOT_FOUND),
    (SelectorError, ExitCode.USAGE),
)

# The message of every API server, whatever authorizes.
_REFUSED = re.compile(
    r'cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)


def failure_from(error: Exception, *, source: str = "") -> Failure:
    """Return an error as a person can act on it; `source` is where the configuration came from."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAILED)
    message = os_error_message(error) if isinstance(error, OSError) else str(error)
    return Failure(code, message, remedy=_remedy(error, source))


def _remedy(error: Exception, source: str) -> str:
    if isinstance(error, Forbidden):
        return _rule(str(error))
    if isinstance(error, Unauthorized):
        return "(log in again; --context and --kubeconfig choose another identity)"
    if isinstance(error, ConfigError) and not isinstance(error, CredentialError):
        return (
            "(--kubeconfig and --context choose another; elasti dev starts a cluster to try it on)"
        )
    if source and isinstance(error, TransportError | ServiceUnavailable):
        return f"(from {source}; --context and --kubeconfig choose another)"
    return ""


def is_not_installed(error: NotFound) -> bool:
    """Whether a request for an ElastiService found no such resource, rather than not this one."""
    details = error.status.details
    # An object that is not there is named; a resource that is not there names nothing.
    return details is None or not (details.name or details.uid)


def not_installed() -> Failure:
    """Return the failure of a cluster without our CustomResourceDefinition."""
    return Failure(
        ExitCode.NOT_INSTALLED,
        f"this cluster has no {PLURAL}.{GROUP}: Elasti is not installed",
        remedy=f"Install it: {INSTALL}\nOr only the definition: elasti crd | kubectl apply"
        " --server-side -f -",
    )


def _rule(message: str) -> str:
    found = _REFUSED.search(message)
    if found is None:
        return ""
    kind = "Role" if found["namespace"] else "ClusterRole"
    where = f" in namespace {found['namespace']}" if found["namespace"] else ""
    return (
        f"A {kind}{where} with this rule allows it:\n"
        f'  - apiGroups: ["{found["group"]}"]\n'
        f'    resources: ["{found["resource"]}"]\n'
        f'    verbs: ["{found["verb"]}"]'
    )


T = TypeVar("T")
Job: TypeAlias = Callable[[], Coroutine[Any, Any, T]]
LoopFactory: TypeAlias = Callable[[], asyncio.AbstractEventLoop]

_EXPECTED = (KubeError, NotSynced, SelectorError, OSError)
# A person waits: a server that takes no connection in this time is not there.
_TIMEOUTS = Timeouts(connect=5.0, request=30.0)


def config_for(access: AccessOptions) -> ClientConfig:
    """Return where the cluster is and who we are. Raises ConfigError."""
    if access.kubeconfig is not None:
        return ClientConfig.from_kubeconfig(
            access.kubeconfig.expanduser(), context=access.context or None
        )
    return ClientConfig.from_env(context=access.context or None)


@contextlib.asynccontextmanager
async def connected(access: AccessOptions) -> AsyncIterator[Client]:
    """Speak to a cluster; errors in the block say which configuration was used. Raises Failure."""
    source = ""
    try:
        config = config_for(access)
        source = config.source
        async with Client(config, timeouts=_TIMEOUTS, user_agent=CLI_FIELD_MANAGER) as client:
            with print_server_warnings():
                yield client
    except KubeError as error:
        raise failure_from(error, source=source) from error


class _WarningPrinter(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        echo(f"Warning: {getattr(record, 'warning', record.getMessage())}", err=True)


@contextlib.contextmanager
def print_server_warnings() -> Iterator[None]:
    """Print what a server warns about during the block, as kubectl does: each in a line."""
    logger, printer = logging.getLogger("kubeloop.client.warnings"), _WarningPrinter()
    logger.addHandler(printer)
    try:
        yield
    finally:
        logger.removeHandler(printer)


def fast_loop() -> LoopFactory | None:
    """Return uvloop where it is installed: a watch over TLS takes a fifth of asyncio's memory there."""
    try:
        import uvloop
    except ImportError:
        return None
    return uvloop.new_event_loop


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
