"""Cases that hurt or change the whole environment; each plays alone."""

from __future__ import annotations

import asyncio
import contextlib
import datetime as dt
import subprocess
import sys
import time
from collections.abc import AsyncIterator

from elasti.api.names import LEASE_NAME, resolver_slice_name
from kubeloop.objects.patches import MergePatch
from tests.e2e import bundle
from tests.e2e.cases.context import CaseContext
from tests.e2e.cases.objects import HttpBin
from tests.e2e.environment import SERVICES, SLICES
from tests.e2e.settings import ROOT

LEASES = "coordination.k8s.io/v1/leases"
RBAC = "rbac.authorization.k8s.io/v1"
OUTAGE = 30.0
LATE = 0.5
"""How late nodes hear of endpoints; less than the settle that is there for it."""


async def a_killed_leader_delays_no_wake_up(context: CaseContext) -> None:
    """Several sleep, the leader dies, and all are woken before another leads; then it goes on."""
    apps = [context.app(name=f"target-{number}") for number in range(3)]
    await asyncio.gather(*(context.sleeping(app) for app in apps))
    leader = await context.environment.leader()
    await context.environment.lose(leader)
    async with _its_lease_stands(context):
        answers = await asyncio.gather(*(context.ask(app, "/ip") for app in apps))
        assert [answer["status"] for (answer,) in answers] == [200] * len(apps)
        assert [await context.replicas(app) for app in apps] == [1] * len(apps)
        # Nobody leads, so nobody steps aside yet.
        assert all([await context.slice_addresses(app) for app in apps])
    successor = await context.environment.leader()
    assert successor["metadata"]["uid"] != leader["metadata"]["uid"]
    await asyncio.gather(*(context.reaches(app, "Serve") for app in apps))
    await context.environment.rolled_out(bundle.NAMESPACE, bundle.OPERATOR)


@contextlib.asynccontextmanager
async def _its_lease_stands(context: CaseContext) -> AsyncIterator[None]:
    """Let nobody lead during the block, however long it takes: the dead one's lease is renewed."""
    leases = context.client.resource(LEASES, namespace=bundle.NAMESPACE)
    holder = (await leases.get(LEASE_NAME))["spec"]["holderIdentity"]

    async def renew() -> None:
        while True:
            now = dt.datetime.now(dt.UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
            patch = {"spec": {"holderIdentity": holder, "renewTime": now}}
            await leases.patch(LEASE_NAME, MergePatch(patch))
            await asyncio.sleep(1.0)

    task = asyncio.create_task(renew())
    try:
        yield
        assert not task.done(), task
        assert (await leases.get(LEASE_NAME))["spec"]["holderIdentity"] == holder
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


async def half_a_minute_without_an_api_server_changes_nothing(context: CaseContext) -> None:
    """Who serves serves on; who is wanted is held for, and answered after; who sleeps sleeps on."""
    serving = await context.serving(context.app(name="serving"))
    quiet, wanted = context.app(name="quiet"), context.app(name="wanted")
    await asyncio.gather(context.sleeping(quiet), context.sleeping(wanted))
    before = await context.slice_addresses(quiet)
    apps = (serving, wanted)
    at = {app.name: await context.environment.address(context.namespace, app.name) for app in apps}
    async with asyncio.TaskGroup() as group:
        async with context.environment.testbed.api_away():
            began = time.monotonic()
            held = group.create_task(context.ask_at(at["wanted"], "/ip"))
            for _ in range(3):
                (answer,) = await context.ask_at(at["serving"], "/ip")
                assert answer["status"] == 200
            await asyncio.sleep(began + OUTAGE - time.monotonic())
            assert not held.done()
        await context.environment.testbed.settled()
    assert held.result()[0]["status"] == 200
    await asyncio.gather(*(context.reaches(app, "Serve") for app in apps))
    assert await context.slice_addresses(quiet) == before
    assert await context.replicas(quiet) == 0
    await context.reaches(quiet, "Proxy")
    (answer,) = await context.ask(quiet, "/ip")
    assert answer["status"] == 200


async def a_late_node_never_delivers_to_the_next_owner_of_a_port(context: CaseContext) -> None:
    """A Service gives its port up and another claims it, while nodes still send there.

    No operator is there that would prevent it, as when two objects come from one backup.
    """
    leaving = await context.sleeping(context.app(name="leaving"))
    staying = await context.serving(context.app(name="staying"))
    freed = (await context.status(leaving))["resolverPorts"][0]
    own = (await context.status(staying))["resolverPorts"][0]
    at = await context.environment.address(context.namespace, leaving.name)
    async with _without_operators(context), asyncio.TaskGroup() as group:
        await context.environment.testbed.delay_endpoints(LATE)
        try:
            asking = group.create_task(context.ask_at(at, "/ip", timeout=0.3, seconds=LATE + 5.0))
            await asyncio.sleep(LATE)
            await _vanishes(context, leaving)
            forced = {"resolverPorts": [{**own, "resolverPort": freed["resolverPort"]}]}
            statuses = context.resource(SERVICES).subresource("status")
            await statuses.patch(staying.name, MergePatch({"status": forced}))
            await asyncio.wait([asking])
        finally:
            await context.environment.testbed.delay_endpoints(0)
    answers = asking.result()
    assert len(answers) > 10
    assert [a for a in answers if '"pod": "staying' in a.get("text", "")] == []


@contextlib.asynccontextmanager
async def _without_operators(context: CaseContext) -> AsyncIterator[None]:
    before = len(await context.environment.operator_pods())
    await context.environment.scale(bundle.NAMESPACE, bundle.OPERATOR, 0)
    await context.environment.rolled_out(bundle.NAMESPACE, bundle.OPERATOR)
    try:
        yield
    finally:
        await context.environment.scale(bundle.NAMESPACE, bundle.OPERATOR, before)
        await context.environment.rolled_out(bundle.NAMESPACE, bundle.OPERATOR)


async def _vanishes(context: CaseContext, app: HttpBin) -> None:
    """Let an ElastiService and its slice be gone, as if an operator had removed both."""
    objects = context.resource(SERVICES)
    await objects.patch(app.name, MergePatch({"metadata": {"finalizers": None}}))
    await objects.delete(app.name)
    await context.resource(SLICES).delete(resolver_slice_name(app.name))


async def case_14_confined_to_a_namespace_it_needs_no_cluster_role(context: CaseContext) -> None:
    """KubeElasti's last: what is in scope sleeps and wakes, what is not is left alone."""
    await context.environment.until(
        lambda: _nobody_is_left(context), "the other cases' objects are gone"
    )
    outside = context.app(namespace=await context.environment.namespace("outside"))
    assert await _cluster_wide(context) != []
    await _install(context, "--namespaced", "--watch-namespace", context.namespace)
    assert await _cluster_wide(context) == []
    inside = await context.sleeping(context.app())
    await context.environment.apply(*outside.objects())
    (answer,) = await context.ask(inside, "/ip")
    assert answer["status"] == 200
    await context.reaches(inside, "Serve")
    left_alone = await context.client.resource(SERVICES, namespace=outside.namespace).get("target")
    assert not left_alone.get("status")
    assert not left_alone["metadata"].get("finalizers")
    await context.client.resource("v1/namespaces").delete(outside.namespace)


async def _nobody_is_left(context: CaseContext) -> bool:
    """Whether no ElastiService is there; the command refuses to forsake one."""
    return not [es async for es in context.client.resource(SERVICES).items()]


async def _install(context: CaseContext, *options: str) -> None:
    haste = [
        "operator:POLLING_INTERVAL=1s",
        "operator:ELASTI_ENGAGE_SETTLE=2s",
        "operator:ELASTI_RELEASE_SETTLE=1s",
        "resolver:ELASTI_ENGAGE_SETTLE=2s",
    ]
    argv = [sys.executable, "-m", "elasti", "install", "--kubeconfig"]
    argv += [str(context.environment.testbed.kubeconfig), "--image=elasti:e2e", *options]
    argv += [word for variable in haste for word in ("--env", variable)]
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


async def _cluster_wide(context: CaseContext) -> list[str]:
    """Return what of Elasti's rights is the whole cluster's."""
    return [
        f"{plural} {item['metadata']['name']}"
        for plural in ("clusterroles", "clusterrolebindings")
        async for item in context.client.resource(f"{RBAC}/{plural}").items()
        if item["metadata"]["name"].startswith((bundle.OPERATOR, bundle.RESOLVER))
    ]


EXCLUSIVE_CASES = (
    a_killed_leader_delays_no_wake_up,
    a_late_node_never_delivers_to_the_next_owner_of_a_port,
    half_a_minute_without_an_api_server_changes_nothing,
    case_14_confined_to_a_namespace_it_needs_no_cluster_role,
)
"""In their order: the last one leaves Elasti confined."""
