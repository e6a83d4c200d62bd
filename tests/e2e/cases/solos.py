"""Cases that hurt or change the whole stage; each plays alone."""

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
from tests.e2e.cases.objects import HttpBin
from tests.e2e.cases.scene import Scene
from tests.e2e.settings import ROOT
from tests.e2e.stage import SERVICES, SLICES

LEASES = "coordination.k8s.io/v1/leases"
RBAC = "rbac.authorization.k8s.io/v1"
OUTAGE = 30.0
LATE = 0.5
"""How late nodes hear of endpoints; less than the settle that is there for it."""


async def a_killed_leader_delays_no_wake_up(scene: Scene) -> None:
    """Several sleep, the leader dies, and all are woken before another leads; then it goes on."""
    apps = [scene.app(name=f"target-{number}") for number in range(3)]
    await asyncio.gather(*(scene.sleeping(app) for app in apps))
    leader = await scene.stage.leader()
    await scene.stage.lose(leader)
    async with _its_lease_stands(scene):
        answers = await asyncio.gather(*(scene.ask(app, "/ip") for app in apps))
        assert [answer["status"] for (answer,) in answers] == [200] * len(apps)
        assert [await scene.replicas(app) for app in apps] == [1] * len(apps)
        # Nobody leads, so nobody steps aside yet.
        assert all([await scene.slice_addresses(app) for app in apps])
    successor = await scene.stage.leader()
    assert successor["metadata"]["uid"] != leader["metadata"]["uid"]
    await asyncio.gather(*(scene.reaches(app, "Serve") for app in apps))
    await scene.stage.rolled_out(bundle.NAMESPACE, bundle.OPERATOR)


@contextlib.asynccontextmanager
async def _its_lease_stands(scene: Scene) -> AsyncIterator[None]:
    """Let nobody lead during the block, however long it takes: the dead one's lease is renewed."""
    leases = scene.client.resource(LEASES, namespace=bundle.NAMESPACE)
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


async def half_a_minute_without_an_api_server_changes_nothing(scene: Scene) -> None:
    """Who serves serves on; who is wanted is held for, and answered after; who sleeps sleeps on."""
    serving = await scene.serving(scene.app(name="serving"))
    quiet, wanted = scene.app(name="quiet"), scene.app(name="wanted")
    await asyncio.gather(scene.sleeping(quiet), scene.sleeping(wanted))
    before = await scene.slice_addresses(quiet)
    apps = (serving, wanted)
    at = {app.name: await scene.stage.address(scene.namespace, app.name) for app in apps}
    async with asyncio.TaskGroup() as group:
        async with scene.stage.ground.api_away():
            began = time.monotonic()
            held = group.create_task(scene.ask_at(at["wanted"], "/ip"))
            for _ in range(3):
                (answer,) = await scene.ask_at(at["serving"], "/ip")
                assert answer["status"] == 200
            await asyncio.sleep(began + OUTAGE - time.monotonic())
            assert not held.done()
        await scene.stage.ground.settled()
    assert held.result()[0]["status"] == 200
    await asyncio.gather(*(scene.reaches(app, "Serve") for app in apps))
    assert await scene.slice_addresses(quiet) == before
    assert await scene.replicas(quiet) == 0
    await scene.reaches(quiet, "Proxy")
    (answer,) = await scene.ask(quiet, "/ip")
    assert answer["status"] == 200


async def a_late_node_never_delivers_to_the_next_owner_of_a_port(scene: Scene) -> None:
    """A Service gives its port up and another claims it, while nodes still send there.

    No operator is there that would prevent it, as when two objects come from one backup.
    """
    leaving = await scene.sleeping(scene.app(name="leaving"))
    staying = await scene.serving(scene.app(name="staying"))
    freed = (await scene.status(leaving))["resolverPorts"][0]
    own = (await scene.status(staying))["resolverPorts"][0]
    at = await scene.stage.address(scene.namespace, leaving.name)
    async with _without_operators(scene), asyncio.TaskGroup() as group:
        await scene.stage.ground.delay_endpoints(LATE)
        try:
            asking = group.create_task(scene.ask_at(at, "/ip", timeout=0.3, seconds=LATE + 5.0))
            await asyncio.sleep(LATE)
            await _vanishes(scene, leaving)
            forced = {"resolverPorts": [{**own, "resolverPort": freed["resolverPort"]}]}
            statuses = scene.resource(SERVICES).subresource("status")
            await statuses.patch(staying.name, MergePatch({"status": forced}))
            await asyncio.wait([asking])
        finally:
            await scene.stage.ground.delay_endpoints(0)
    answers = asking.result()
    assert len(answers) > 10
    assert [a for a in answers if '"pod": "staying' in a.get("text", "")] == []


@contextlib.asynccontextmanager
async def _without_operators(scene: Scene) -> AsyncIterator[None]:
    before = len(await scene.stage.operator_pods())
    await scene.stage.scale(bundle.NAMESPACE, bundle.OPERATOR, 0)
    await scene.stage.rolled_out(bundle.NAMESPACE, bundle.OPERATOR)
    try:
        yield
    finally:
        await scene.stage.scale(bundle.NAMESPACE, bundle.OPERATOR, before)
        await scene.stage.rolled_out(bundle.NAMESPACE, bundle.OPERATOR)


async def _vanishes(scene: Scene, app: HttpBin) -> None:
    """Let an ElastiService and its slice be gone, as if an operator had removed both."""
    objects = scene.resource(SERVICES)
    await objects.patch(app.name, MergePatch({"metadata": {"finalizers": None}}))
    await objects.delete(app.name)
    await scene.resource(SLICES).delete(resolver_slice_name(app.name))


async def case_14_confined_to_a_namespace_it_needs_no_cluster_role(scene: Scene) -> None:
    """KubeElasti's last: what is in scope sleeps and wakes, what is not is left alone."""
    await scene.stage.until(lambda: _nobody_is_left(scene), "the other cases' objects are gone")
    outside = scene.app(namespace=await scene.stage.namespace("outside"))
    assert await _cluster_wide(scene) != []
    await _install(scene, "--namespaced", "--watch-namespace", scene.namespace)
    assert await _cluster_wide(scene) == []
    inside = await scene.sleeping(scene.app())
    await scene.stage.apply(*outside.objects())
    (answer,) = await scene.ask(inside, "/ip")
    assert answer["status"] == 200
    await scene.reaches(inside, "Serve")
    left_alone = await scene.client.resource(SERVICES, namespace=outside.namespace).get("target")
    assert not left_alone.get("status")
    assert not left_alone["metadata"].get("finalizers")
    await scene.client.resource("v1/namespaces").delete(outside.namespace)


async def _nobody_is_left(scene: Scene) -> bool:
    """Whether no ElastiService is there; the command refuses to forsake one."""
    return not [es async for es in scene.client.resource(SERVICES).items()]


async def _install(scene: Scene, *options: str) -> None:
    haste = [
        "operator:POLLING_INTERVAL=1s",
        "operator:ELASTI_ENGAGE_SETTLE=2s",
        "operator:ELASTI_RELEASE_SETTLE=1s",
        "resolver:ELASTI_ENGAGE_SETTLE=2s",
    ]
    argv = [sys.executable, "-m", "elasti", "install", "--kubeconfig"]
    argv += [str(scene.stage.ground.kubeconfig), *options]
    argv += [word for variable in haste for word in ("--env", variable)]
    process = await asyncio.create_subprocess_exec(
        *argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, cwd=ROOT
    )
    output, _ = await process.communicate()
    assert process.returncode == 0, output.decode()


async def _cluster_wide(scene: Scene) -> list[str]:
    """Return what of Elasti's rights is the whole cluster's."""
    return [
        f"{plural} {item['metadata']['name']}"
        for plural in ("clusterroles", "clusterrolebindings")
        async for item in scene.client.resource(f"{RBAC}/{plural}").items()
        if item["metadata"]["name"].startswith((bundle.OPERATOR, bundle.RESOLVER))
    ]


SOLOS = (
    a_killed_leader_delays_no_wake_up,
    a_late_node_never_delivers_to_the_next_owner_of_a_port,
    half_a_minute_without_an_api_server_changes_nothing,
    case_14_confined_to_a_namespace_it_needs_no_cluster_role,
)
"""In their order: the last one leaves Elasti confined."""
