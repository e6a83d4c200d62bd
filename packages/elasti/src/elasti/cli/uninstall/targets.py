"""The ElastiServices of an installation on their way out: woken, deleted, or let go.

Nothing here decides a hand-over: an operator does that, the cluster's or a stand-in. Here it is asked
for, and waited for.
"""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
from typing import TYPE_CHECKING

import msgspec

from elasti.api.names import (
    ELASTISERVICES,
    FINALIZER,
    KEEP_AWAKE_ANNOTATION,
    MANAGED_BY,
    PRIVATE_LABEL,
)
from elasti.api.types import DozeStatus
from elasti.api.wire import Ask
from elasti.cli.install.inventory import is_held, key_of, list_elastiservices, name_some
from elasti.cli.uninstall.survey import UninstallSurvey, sleeps
from elasti.operator.doze.requests import Originals, command
from elasti.operator.model.children import drain_patch, is_drained
from elasti.operator.model.doze import DozePod
from kubeloop.client.errors import Conflict, Forbidden, Invalid, NotFound
from kubeloop.controller.finalizers import remove_finalizers
from kubeloop.objects.core import PODS, SERVICES, Service
from kubeloop.objects.meta import JsonObject, PartialObjectMetadata
from kubeloop.objects.patches import MergePatch, Patch

if TYPE_CHECKING:
    from collections.abc import Callable, Collection

    from elasti.cli.rendering import Progress
    from kubeloop.client import Client

_POLL_INTERVAL = 1.0
_COMPANIONS = (
    ("discovery.k8s.io/v1/endpointslices", f"endpointslice.kubernetes.io/managed-by={MANAGED_BY}"),
    ("v1/services", f"{PRIVATE_LABEL}=true"),
)


def is_going(es: JsonObject) -> bool:
    """Whether it is being deleted already."""
    return bool(es["metadata"].get("deletionTimestamp"))


class UninstallTargets:
    """All of them. Waits return what is left when the time is over."""

    def __init__(self, client: Client, survey: UninstallSurvey, progress: Progress) -> None:
        self._client = client
        self._survey = survey
        self._progress = progress
        self._objects = client.resource(ELASTISERVICES)
        self._kept_awake: set[str] = set()

    async def present(self) -> list[JsonObject]:
        """Return those that are there now."""
        if not self._survey.elastiservices:
            return []
        return await list_elastiservices(self._client, self._survey.watches) or []

    async def ask_to_wake(self, seconds: float) -> None:
        """Ask for those that sleep, and keep them awake: a cooldown may be shorter than a start."""
        now = dt.datetime.now(dt.UTC)
        asked = MergePatch(Ask.WAKE.patch(now, now + dt.timedelta(seconds=seconds)))
        for es in await self.present():
            if sleeps(es) and not is_going(es):
                self._kept_awake.add(key_of(es))
                await self._patch(es, asked)

    async def until_awake(self, seconds: float) -> list[JsonObject]:
        """Wait until each was seen awake; one that falls asleep again later counts as seen."""
        seen: set[str] = set()

        def left(present: list[JsonObject]) -> list[JsonObject]:
            waited = [es for es in present if not is_going(es)]
            seen.update(key_of(es) for es in waited if not sleeps(es))
            return [es for es in waited if key_of(es) not in seen]

        return await self._wait(left, "waiting until they are awake", seconds)

    async def until_settled(self, seconds: float) -> list[JsonObject]:
        """Wait until all are awake at the same time."""
        return await self._wait(
            lambda present: [es for es in present if sleeps(es)],
            "waiting until traffic goes to their pods",
            seconds,
        )

    async def say_what_to_patch(self, left: Collection[JsonObject]) -> None:
        """Show how to restore the requests of pods that still doze."""
        pods = self._client.resource(PODS, DozePod)
        for es in left:
            if (found := es["status"].get("doze")) is None:
                continue
            doze, place = msgspec.convert(found, DozeStatus), es["metadata"]["namespace"]
            # A user who may not list pods finds the originals in status.
            with contextlib.suppress(Forbidden):
                async for pod in pods.items(selector=doze.selector, namespace=place):
                    if text := command(pod, Originals(doze.containers)):
                        self._progress.say(f"requests are not restored; run {text}")

    async def delete(self) -> None:
        """Delete all; the operator ends them."""
        for es in await self.present():
            meta = es["metadata"]
            with contextlib.suppress(NotFound):
                await self._objects.delete(meta["name"], namespace=meta["namespace"])

    async def until_gone(self, seconds: float) -> list[JsonObject]:
        """Wait until all are gone."""
        return await self._wait(
            lambda present: present, "waiting until they are finalized", seconds
        )

    async def let_go(self) -> None:
        """Remove our finalizers and whatever belongs to ElastiServices; they stay otherwise."""
        # The next installation puts them to sleep as before.
        no_longer = MergePatch({"metadata": {"annotations": {KEEP_AWAKE_ANNOTATION: None}}})
        for es in await self.present():
            if key_of(es) in self._kept_awake:
                await self._patch(es, no_longer)
        while held := list(filter(is_held, await self.present())):
            for es in held:
                patch = remove_finalizers(es["metadata"]["finalizers"], [FINALIZER])
                assert patch is not None
                await self._patch(es, patch)
        await self._undrain()
        for resource, selector in _COMPANIONS:
            await self._remove_all(resource, selector)

    async def _undrain(self) -> None:
        """Let pods back into the rotation of Services that lead to the resolver alone."""
        services = self._client.resource(SERVICES, Service)
        for namespace in self._survey.watches or ("",):
            async for item in services.items(namespace=namespace):
                if is_drained(item):
                    meta, patch = item.metadata, drain_patch(drained=False)
                    await services.patch(meta.name, patch, namespace=meta.namespace)

    async def _remove_all(self, resource: str, selector: str) -> None:
        objects = self._client.resource(resource, PartialObjectMetadata)
        for namespace in self._survey.watches or ("",):
            async for item in objects.items(selector=selector, namespace=namespace):
                with contextlib.suppress(NotFound):
                    await objects.delete(item.metadata.name, namespace=item.metadata.namespace)

    async def _patch(self, es: JsonObject, patch: Patch) -> None:
        meta = es["metadata"]
        # It may go or change meanwhile; the wait reads it again.
        with contextlib.suppress(NotFound, Conflict, Invalid):
            await self._objects.patch(meta["name"], patch, namespace=meta["namespace"])

    async def _wait(
        self,
        left_of: Callable[[list[JsonObject]], Collection[JsonObject]],
        words: str,
        seconds: float,
    ) -> list[JsonObject]:
        loop = asyncio.get_running_loop()
        until = loop.time() + seconds
        with self._progress.waiting() as waiting:
            while True:
                left = list(left_of(await self.present()))
                if not left or loop.time() >= until:
                    return left
                waiting.show("ElastiServices", f"{words}: {name_some(left)}")
                await asyncio.sleep(_POLL_INTERVAL)
