"""Uninstalling, in the order in which nothing gets lost.

1. Every target that sleeps is woken, and waited for: from here on Services do without us.
2. ElastiServices are deleted, and the operator finalizes them; or, if they are kept, the operator
stops and they are released.
3. The programs go, then their Services, policies, rights and accounts.
4. The definition goes last.

If the cluster's operator does not work, a stand-in does steps 1 and 2. Each step reads what
is there, so calling again goes on where a call ended.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import logging
from typing import TYPE_CHECKING, Any, Self

from elasti.api.names import GROUP, LEASE_NAME, QUARANTINE_CONFIG_MAP, TEMPLATES_PLURAL
from elasti.api.parsing import SettingsError
from elasti.api.states import State
from elasti.cli.exits import ExitCode, Failure
from elasti.cli.install.access import ENROLMENT
from elasti.cli.install.choices import Program, account, selector
from elasti.cli.install.inventory import name_some
from elasti.cli.rendering import counted
from elasti.cli.uninstall.survey import DEFINITION, DEFINITIONS, UninstallSurvey
from elasti.cli.uninstall.targets import UninstallTargets
from elasti.operator.app import OperatorApp
from elasti.operator.settings import OperatorSettings
from kubeloop.client import Client, ClientConfig
from kubeloop.client.errors import Forbidden, NotFound
from kubeloop.objects.meta import JsonObject, PartialObjectMetadata

if TYPE_CHECKING:
    from collections.abc import AsyncIterator, Callable, Iterable, Iterator

    from elasti.api.wire import ActivityReport
    from elasti.cli.rendering import Progress

_DEPLOYMENTS = "apps/v1/deployments"
_POLL_INTERVAL = 0.5
# No manifest has them, so no label of an installation finds them.
_MADE_BY_THE_OPERATOR = (
    ("coordination.k8s.io/v1/leases", LEASE_NAME),
    ("v1/configmaps", QUARANTINE_CONFIG_MAP),
)
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
        return False

    async def activity(
        self, address: str, namespace: str, service: str, *, hold: bool | None = None
    ) -> ActivityReport | None:
        """No resolver reports, so nothing is put to sleep."""
        return None

    async def reachable(self, address: str, ended: Callable[[], None]) -> bool:
        """None is taken out because it cannot be reached from here."""
        return True


@contextlib.asynccontextmanager
async def standin_operator(config: ClientConfig, survey: UninstallSurvey) -> AsyncIterator[None]:
    """Operate during the block, as soon as the lease is free, for a cluster whose own operator is gone.

    It is the same program with the rights of the person who calls: it wakes, waits for ready endpoints, takes
    the resolver out of rotations and lets go of finalizers. Resolvers cannot be reached from here, so it
    confirms none and never puts a target to sleep; what is published stays until pods take over.
    Raises KubeError.
    """
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
    """Run it during the block; if it fails for good, the block ends with its error."""
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
    loggers = [logging.getLogger(name) for name in ("elasti", "kubeloop")]
    levels = [one.level for one in loggers]
    for one in loggers:
        one.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        for one, level in zip(loggers, levels, strict=True):
            one.setLevel(level)


@dataclasses.dataclass(eq=False)
class Uninstaller:
    """One call of `elasti uninstall`. Raises Failure, KubeError.

    keep: ElastiServices and their definition stay. force: go on although a target cannot be woken.
    """

    client: Client
    survey: UninstallSurvey
    progress: Progress
    _: dataclasses.KW_ONLY
    keep: bool
    force: bool
    seconds: float

    def __post_init__(self) -> None:
        self._targets = UninstallTargets(self.client, self.survey, self.progress)

    async def run(self) -> None:
        """Remove it."""
        if not self.keep:
            # Without this right, the operator cannot enrol again what is deleted here.
            with contextlib.suppress(NotFound, Forbidden):
                bindings = self.client.resource("rbac.authorization.k8s.io/v1/clusterrolebindings")
                await bindings.delete(ENROLMENT)
        if self.survey.elastiservices:
            if await self._operator_works():
                await self._end(works=True)
            else:
                self.progress.say("no operator works in the cluster: one runs here for now")
                async with self._standin_operator():
                    await self._end(works=False)
            if self.keep:
                await self._let_go()
        await self._remove_objects()
        if not self.keep:
            await self._remove_definition()

    # ElastiServices

    async def _end(self, *, works: bool) -> None:
        await self._targets.ask_to_wake(self.seconds)
        await self._check(await self._targets.until_awake(self.seconds))
        if not self.keep:
            await self._delete(works=works)

    async def _check(self, asleep: list[JsonObject]) -> None:
        """Raise Failure unless all are awake, or it goes on all the same."""
        await self._targets.say_what_to_patch(asleep)
        if asleep and not self.force:
            raise _not_woken(asleep, self.seconds)

    async def _delete(self, *, works: bool) -> None:
        await self._targets.delete()
        left = await self._targets.until_gone(self.seconds)
        if left and works:
            left = await self._instead(left)
        if left and not self.force:
            raise Failure(
                f"not finalized in time: {name_some(left)}",
                code=ExitCode.TIMED_OUT,
                remedy="Run it again to continue; --force removes their finalizers.",
            )
        if left:
            await self._targets.let_go()
        self.progress.done("ElastiServices", "removed")

    async def _instead(self, left: list[JsonObject]) -> list[JsonObject]:
        """Finalize them from here, after the cluster's operator had its time."""
        self.progress.say(f"the operator does not finalize {len(left)}: stopping it")
        await self._stop(Program.OPERATOR)
        async with self._standin_operator():
            return await self._targets.until_gone(self.seconds)

    async def _let_go(self) -> None:
        """Stop the operator, so that no target falls asleep again, and leave all awake.

        Private Services go after the resolvers: those still take connections from nodes that have not
        heard yet, and find the pods by them.
        """
        await self._stop(Program.OPERATOR)
        async with self._standin_operator():
            asleep = await self._targets.until_settled(self.seconds)
        await self._check(asleep)
        await self._stop(Program.RESOLVER)
        await self._targets.let_go()
        self.progress.done("ElastiServices", "awake, and kept")

    def _standin_operator(self) -> contextlib.AbstractAsyncContextManager[None]:
        return standin_operator(self.client.config, self.survey)

    async def _operator_works(self) -> bool:
        deployments = self.client.resource(_DEPLOYMENTS, namespace=self.survey.namespace)
        try:
            found = await deployments.get(account(Program.OPERATOR))
        except NotFound:
            return False
        return bool((found.get("status") or {}).get("availableReplicas"))

    # Everything else

    async def _stop(self, program: Program) -> None:
        deployments = self.client.resource(_DEPLOYMENTS, namespace=self.survey.namespace)
        try:
            await deployments.delete(account(program), propagation="Background")
        except NotFound:
            return
        self.progress.done(f"Deployment {self.survey.namespace}/{account(program)}", "removed")
        await self._until_gone([program])

    async def _until_gone(self, programs: Iterable[Program]) -> None:
        """Wait until the pods are gone; those that still serve a connection are not waited out."""
        namespace, left = self.survey.namespace, 0
        pods = self.client.resource("v1/pods", PartialObjectMetadata, namespace=namespace)
        # A user who may not list pods does not wait for them.
        with contextlib.suppress(TimeoutError, Forbidden), self.progress.waiting() as waiting:
            async with asyncio.timeout(self.seconds):
                for program in programs:
                    chosen = ",".join(f"{k}={v}" for k, v in selector(program).items())
                    while left := len([pod async for pod in pods.items(selector=chosen)]):
                        waiting.show(
                            account(program), f"{counted(left, 'pod')} finishing open connections"
                        )
                        await asyncio.sleep(_POLL_INTERVAL)
        if left:
            self.progress.say(
                f"{counted(left, 'pod')} still serving connections; they end when those close"
            )

    async def _remove_objects(self) -> None:
        programs_gone = False
        for found in self.survey.objects:
            if found.kind.kind != "Deployment" and not programs_gone:
                await self._until_gone(Program)
                programs_gone = True
            resource = self.client.resource(found.kind.resource)
            try:
                await resource.delete(
                    found.name, namespace=found.namespace or None, propagation="Background"
                )
            except NotFound:
                continue
            self.progress.done(str(found), "removed")
        for kind, name in _MADE_BY_THE_OPERATOR:
            with contextlib.suppress(NotFound, Forbidden):
                await self.client.resource(kind).delete(name, namespace=self.survey.namespace)

    async def _remove_definition(self) -> None:
        if not self.survey.has_definition or self.survey.needed_by:
            return
        for name in (DEFINITION, f"{TEMPLATES_PLURAL}.{GROUP}"):
            with contextlib.suppress(NotFound):
                await self.client.resource(DEFINITIONS).delete(name)
                self.progress.done(f"CustomResourceDefinition {name}", "removed")


def _not_woken(asleep: list[JsonObject], seconds: float) -> Failure:
    dark = any(es["status"].get("state") != State.SERVE for es in asleep)
    loss = "Services would not answer requests" if dark else "pods would keep small requests"
    return Failure(
        f"not awake after {seconds:.0f} s: {name_some(asleep)}. Without Elasti their {loss}",
        code=ExitCode.TIMED_OUT,
        remedy="See why: elasti describe NAME. Then try again with a longer --timeout, or leave them"
        " so with --force.",
    )
