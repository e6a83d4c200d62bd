"""Running a coroutine for a user: Ctrl-C is a normal end, and errors are one line with a remedy.

Some commands run until they are interrupted, which is success. Others end by themselves, and an interruption is a
failure. Each error that a user can fix becomes a `Failure` with a remedy and an exit code.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import re
import signal
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator
from typing import Any, TypeAlias, TypeVar

import click

from elasti.api.names import CLI_FIELD_MANAGER, GROUP, PLURAL
from elasti.cli.cluster import AccessOptions, config_for
from elasti.cli.exits import ExitCode, Failure, os_error_message
from elasti.cli.rendering import echo
from kubeloop.client import Client, KubeError, Timeouts
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

# The message of every API server, with any authorizer.
_REFUSED = re.compile(
    r'cannot (?P<verb>\w+) resource "(?P<resource>[^"]+)" in API group "(?P<group>[^"]*)"'
    r'(?: in the namespace "(?P<namespace>[^"]+)")?'
)


def failure_from(error: Exception, *, source: str = "") -> Failure:
    """Return an error with its remedy; `source` is the origin of the configuration."""
    code = next((code for kind, code in _CODES if isinstance(error, kind)), ExitCode.FAILED)
    message = os_error_message(error) if isinstance(error, OSError) else str(error)
    return Failure(message, code=code, remedy=_remedy(error, source))


def _remedy(error: Exception, source: str) -> str:
    if isinstance(error, Forbidden):
        return _rule(str(error))
    if isinstance(error, Unauthorized):
        return "Log in again, or choose another identity with --context or --kubeconfig."
    if isinstance(error, ConfigError) and not isinstance(error, CredentialError):
        return (
            "Choose another with --kubeconfig or --context. To try Elasti, start a cluster with elasti dev;"
            " if one runs: export KUBECONFIG=~/.kube/elasti-dev.yaml"
        )
    if source and isinstance(error, TransportError | ServiceUnavailable):
        return f"The address is from {source}; choose another with --context or --kubeconfig."
    return ""


def is_not_installed(error: NotFound) -> bool:
    """Whether the server lacks the resource, rather than this ElastiService."""
    details = error.status.details
    # The server names a missing object, but not a missing resource.
    return details is None or not (details.name or details.uid)


def not_installed() -> Failure:
    """Return the failure of a cluster without our CustomResourceDefinition."""
    return Failure(
        f"this cluster has no {PLURAL}.{GROUP}: Elasti is not installed",
        code=ExitCode.NOT_INSTALLED,
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
# A person waits: a server that accepts no connection in this time is treated as absent.
_TIMEOUTS = Timeouts(connect=5.0, request=30.0)


@contextlib.asynccontextmanager
async def connected(access: AccessOptions) -> AsyncIterator[Client]:
    """Connect to a cluster; errors in the block name the configuration. Raises Failure."""
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
    """Print the server's warnings during the block, as kubectl does: one a line."""
    logger, printer = logging.getLogger("kubeloop.client.warnings"), _WarningPrinter()
    logger.addHandler(printer)
    try:
        yield
    finally:
        logger.removeHandler(printer)


def run_program(
    program: Callable[..., None], options: dict[str, Any], *, refused: type[click.ClickException]
) -> None:
    """Run a program of an installation; `refused`: what is raised for wrong settings.

    If the program was started without this command line (`elasti.__main__`), its error is raised.
    """
    from elasti.api.parsing import SettingsError
    from elasti.cli.programs import CannotRun

    try:
        if isinstance(failed := click.get_current_context().obj, BaseException):
            raise failed
        program(**options)
    except SettingsError as error:
        raise refused(str(error)) from error
    except CannotRun as error:
        raise click.ClickException(str(error)) from error
    except (KubeError, NotSynced, OSError) as error:
        raise failure_from(error) from error


def run_to_end(job: Job[T]) -> T:
    """Run a job and return its result; interrupted by SIGINT or SIGTERM, the exit code is 130.

    Errors that a user can fix become a `Failure`.
    """
    try:
        return _run(job)
    except asyncio.CancelledError:
        raise click.exceptions.Exit(ExitCode.INTERRUPTED) from None


def run_until_interrupted(job: Job[None], *, loop_factory: LoopFactory | None = None) -> None:
    """Run a job until it ends, or until SIGINT or SIGTERM cancels it; both are success.

    Errors that a user can fix become a `Failure`.
    """
    with contextlib.suppress(asyncio.CancelledError):
        _run(job, loop_factory)


def _run(job: Job[T], loop_factory: LoopFactory | None = None) -> T:
    try:
        with asyncio.Runner(loop_factory=loop_factory) as runner:
            return runner.run(_cancelled_by_signals(job))
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
