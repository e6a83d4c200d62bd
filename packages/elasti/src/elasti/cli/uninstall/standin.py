"""An operator in this process, for a cluster whose own one is gone or does not work.

It is the same program with the rights of the person who calls: it wakes, waits for ready endpoints,
takes the resolver out of rotations and lets go of finalizers. Resolvers cannot be reached from here,
so it confirms none and never puts a target to sleep; what is published stays until pods take over.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import TYPE_CHECKING, Any, NoReturn, Self

import structlog

from elasti.api.parsing import SettingsError
from elasti.operator.app import OperatorApp
from elasti.operator.settings import OperatorSettings
from kubeloop.client import Client, ClientConfig

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Iterator

    from elasti.api.wire import ActivityReport
    from elasti.cli.uninstall.survey import UninstallSurvey

_IDENTITY = "elasti-uninstall"
_SETTLES = ("ELASTI_ENGAGE_SETTLE", "ELASTI_RELEASE_SETTLE")


class UnreachableResolvers:
    """Resolvers that cannot be asked; a `ResolverClient`."""

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_exc: object) -> None:
        return

    async def owns(self, address: str, port: int, namespace: str, service: str) -> bool:
        """No resolver can confirm its port from here."""
        del address, port, namespace, service
        return False

    async def activity(self, address: str, namespace: str, service: str) -> ActivityReport | None:
        """No resolver reports, so nothing is put to sleep."""
        del address, namespace, service
        return None

    async def reachable(self, address: str) -> bool:
        """None is taken out because it cannot be reached from here."""
        del address
        return True


@contextlib.asynccontextmanager
async def standin_operator(config: ClientConfig, survey: UninstallSurvey) -> AsyncIterator[None]:
    """Operate during the block, as soon as the lease is free. Raises KubeError."""
    settings = _settings(survey)
    with _quiet():
        async with Client(config) as client:
            operator = OperatorApp(
                settings,
                client=client,
                open_client=lambda: Client(config),
                resolver_client=UnreachableResolvers,
            )
            async with _running(operator):
                yield


def _settings(survey: UninstallSurvey) -> OperatorSettings:
    """Return settings for here, with the settles of the cluster's own operator."""
    own: dict[str, Any] = {
        "operator_namespace": survey.namespace,
        "resolver_namespace": survey.namespace,
        "watch_namespaces": survey.watches,
        "host": "127.0.0.1",
        "port": 0,
        "health_port": 0,
        "authenticate": False,
        "identity": _IDENTITY,
    }
    settles = {name: survey.variables[name] for name in _SETTLES if name in survey.variables}
    try:
        return OperatorSettings.from_env(settles, **own)
    except SettingsError:
        # Perhaps the very reason why that operator does not work.
        return OperatorSettings(**own)


@contextlib.asynccontextmanager
async def _running(operator: OperatorApp) -> AsyncIterator[None]:
    """Run it during the block; where it fails for good, the block ends with its error."""
    try:
        async with asyncio.TaskGroup() as group:
            group.create_task(operator.run(), name="stand-in operator")
            try:
                yield
            finally:
                operator.stop()
    except BaseExceptionGroup as failed:
        raise failed.exceptions[0] from None


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep the operator's log out of a person's terminal."""
    before, library = structlog.get_config(), logging.getLogger("kubeloop")
    level = library.level
    structlog.configure(processors=[_drop])
    library.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        library.setLevel(level)
        structlog.configure(**before)


def _drop(_logger: object, _method: str, _event: object) -> NoReturn:
    raise structlog.DropEvent
