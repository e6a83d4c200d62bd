"""What people and pods do: dying, scaling by hand, deleting, coming from KubeElasti."""

from __future__ import annotations

import signal
import time

from elasti.api.defaults import RESOLVER_SHARED_PORT
from elasti.api.names import private_service_name, resolver_slice_name
from kubeloop.objects.meta import JsonObject
from tests.e2e import bundle
from tests.e2e.play import Play
from tests.e2e.stage import SLICES
from tests.e2e.workload import PORT, App

_KILLED = (
    "a pod was killed: what it was executing is gone with it, and until its endpoint is gone nodes"
    " send connections to it"
)
EXITS = (
    "the pod ended at SIGTERM without serving on: until its endpoint is gone nodes send connections"
    " to it; a rolling update loses those, too"
)


async def pod_leaves_and_comes_back(play: Play) -> None:
    """The first pod becomes ready, is told to end before it is trusted, and comes back."""
    app = await play.sleeping_app()
    await play.load(app)
    await _dies_when_ready(play, app, signal.SIGTERM)
    await play.awake(app)
    await play.flow_out()


async def pod_dies_and_comes_back(play: Play) -> None:
    """The first pod becomes ready, is killed before it is trusted, and comes back."""
    app = await play.sleeping_app(play.new_app(linger=0))
    await play.load(app)
    died = await _dies_when_ready(play, app, signal.SIGKILL)
    await play.observer.until_true(lambda: not play.pods(app, "ready"), "it is known to be dead")
    play.count_apart(died, _KILLED)
    await play.awake(app)
    await play.flow_out()


async def scaled_to_zero_by_hand(play: Play) -> None:
    """Somebody scales the target to zero in the middle of traffic."""
    app = await play.serving_app()
    await play.load(app)
    await play.flow(play.length.load / 4)
    await play.stage.scale(play.namespace, app.name, 0)
    await _comes_back(play, app)


async def scaled_to_zero_by_hand_and_exits_at_once(play: Play) -> None:
    """The same, with an app that does not serve on after SIGTERM."""
    app = await play.serving_app(play.new_app(linger=0))
    await play.load(app)
    await play.flow(play.length.load / 4)
    scaled = time.monotonic()
    await play.stage.scale(play.namespace, app.name, 0)
    await play.observer.until_true(lambda: not play.pods(app, "ready"), "the pod leaves")
    play.count_apart(scaled, EXITS)
    await _comes_back(play, app)


async def deleted_at_zero(play: Play) -> None:
    """The ElastiService of a sleeping target is deleted while traffic arrives."""
    app = await play.sleeping_app()
    await play.load(app)
    await play.delete_elasti_service(app)
    await play.observer.until("state", app.name, "none")
    await play.observer.until("slice", app.name, "removed")
    await play.flow_out()
    assert await play.stage.replicas(play.namespace, app.name) == 1


async def taken_over_from_kubeelasti(play: Play) -> None:
    """KubeElasti left a parked target behind; traffic arrives before our operator does, and after."""
    app = play.new_app(replicas=0)
    operators = play.stage.installed.operators if play.stage.installed else 1
    await play.stage.scale(bundle.NAMESPACE, bundle.OPERATOR, 0)
    try:
        await play.stage.apply(*_parked_by_kubeelasti(app, await _resolver_addresses(play)))
        await play.observer.until("slice", app.name, "published")
        await play.reachable(app)
        address = await play.stage.address(app.namespace, app.name)
        probe = await play.probe(address, host=f"{app.name}.{app.namespace}.svc.cluster.local")
        await probe.rate(play.length.rate)
        await play.flow(play.length.load / 4)
    finally:
        await play.stage.scale(bundle.NAMESPACE, bundle.OPERATOR, operators)
    await play.stage.rolled_out(bundle.NAMESPACE, bundle.OPERATOR)
    await play.awake(app)
    await play.flow_out()
    slices = play.stage.client.resource(SLICES, namespace=play.namespace)
    left = [piece["metadata"]["name"] async for piece in slices.items()]
    assert resolver_slice_name(app.name) not in left


async def _dies_when_ready(play: Play, app: App, signum: signal.Signals) -> float:
    await play.observer.until_true(lambda: bool(play.pods(app, "ready")), "the pod is ready")
    assert play.observer.now["slice", app.name] == "published"
    died = time.monotonic()
    await play.stage.kill(await play.pod(play.pods(app, "ready")[0]), signum)
    return died


async def _comes_back(play: Play, app: App) -> None:
    await play.observer.until("state", app.name, "Proxy", "Waking")
    await play.awake(app)
    await play.flow_out()


async def _resolver_addresses(play: Play) -> list[str]:
    return [pod["status"]["podIP"] for pod in await play.stage.resolver_pods()]


def _parked_by_kubeelasti(app: App, resolvers: list[str]) -> list[JsonObject]:
    """Return what KubeElasti has in a cluster for a target that it parked, ElastiService included."""
    private = app.service()
    private["metadata"] = {**private["metadata"], "name": private_service_name(app.name)}
    meta = {
        "name": resolver_slice_name(app.name),
        "namespace": app.namespace,
        "labels": {"kubernetes.io/service-name": app.name},
    }
    pointing = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": meta,
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": RESOLVER_SHARED_PORT, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address]} for address in resolvers],
    }
    assert private["spec"]["ports"][0]["port"] == PORT
    return [*app.objects(), private, pointing]
