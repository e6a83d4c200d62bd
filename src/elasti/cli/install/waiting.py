"""Waiting until the definition is served and the programs run, and saying why they do not yet."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from elasti.api.names import GROUP, PLURAL
from elasti.cli.exits import ExitCode, Failure
from elasti.cli.install.choices import Program
from elasti.cli.install.parts import account, selector
from elasti.cli.install.rollout import Rollout, rollout
from kubeloop.aio.wait import poll
from kubeloop.client.errors import Forbidden, NotFound

if TYPE_CHECKING:
    from elasti.cli.install.progress import Progress
    from kubeloop.client import Client
    from kubeloop.objects.meta import JsonObject

_DEFINITIONS = "apiextensions.k8s.io/v1/customresourcedefinitions"
_LOOK_EVERY = 0.5


async def definition_served(client: Client, seconds: float) -> None:
    """Wait until ElastiServices can be made. Raises Failure."""
    definitions = client.resource(_DEFINITIONS)

    async def served() -> bool:
        found = await definitions.get(f"{PLURAL}.{GROUP}")
        conditions = found.get("status", {}).get("conditions") or ()
        return any(c["type"] == "Established" and c["status"] == "True" for c in conditions)

    try:
        await poll(served, _LOOK_EVERY / 5, immediate=True, timeout=seconds)
    except TimeoutError:
        raise Failure(
            ExitCode.TIMED_OUT, f"the cluster does not serve {PLURAL}.{GROUP} after {seconds:g} s"
        ) from None
    client.mapper.invalidate()


async def programs_available(
    client: Client, namespace: str, seconds: float, progress: Progress
) -> None:
    """Wait until every pod of both programs is of the newest kind and available. Raises Failure."""
    last: list[Rollout] = []
    try:
        with progress.waiting() as waiting:
            async with asyncio.timeout(seconds):
                while not last or not all(item.is_done for item in last):
                    last = [await _look(client, namespace, program) for program in Program]
                    for item in last:
                        waiting.show(item.name, item.words)
                    await asyncio.sleep(_LOOK_EVERY)
    except TimeoutError:
        raise _late(last, namespace, seconds) from None


async def _look(client: Client, namespace: str, program: Program) -> Rollout:
    deployments = client.resource("apps/v1/deployments", namespace=namespace)
    try:
        found = await deployments.get(account(program))
    except NotFound:
        return Rollout(account(program), 0, 0, 0, is_done=False, troubles=("it was deleted",))
    seen = rollout(found)
    return seen if seen.is_done else rollout(found, await _pods(client, namespace, program))


async def _pods(client: Client, namespace: str, program: Program) -> list[JsonObject]:
    chosen = ",".join(f"{key}={value}" for key, value in selector(program).items())
    pods = client.resource("v1/pods", namespace=namespace)
    try:
        return [pod async for pod in pods.items(selector=chosen)]
    except Forbidden:
        # Who may not look at pods is told less, and can install all the same.
        return []


def _late(last: list[Rollout], namespace: str, seconds: float) -> Failure:
    late = [item for item in last if not item.is_done]
    troubles = list(dict.fromkeys(what for item in late for what in item.troubles))
    remedy = [*troubles]
    if any("Image" in what for what in troubles):
        remedy.append("The nodes cannot pull the image: name one that they can with --image.")
    remedy.append(
        f"Look: kubectl -n {namespace} describe pods. Running the command again goes on waiting."
    )
    states = "; ".join(f"{item.name}: {item.words}" for item in late)
    return Failure(
        ExitCode.TIMED_OUT, f"not ready after {seconds:g} s: {states}", remedy="\n".join(remedy)
    )
