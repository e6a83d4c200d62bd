"""What people and pods do: dying, scaling by hand, deleting, coming from KubeElasti."""

from __future__ import annotations

import signal
import time

from elasti.api.defaults import RESOLVER_SHARED_PORT
from elasti.api.names import FINALIZER, private_service_name, resolver_slice_name
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch
from tests.e2e import bundle
from tests.e2e.environment import SERVICES, SLICES
from tests.e2e.trial import Trial
from tests.e2e.workload import PORT, App

_KILLED = (
    "a pod was killed: what it was executing is gone with it, and until its endpoint is gone nodes"
    " send connections to it"
)
EXITS = (
    "the pod ended at SIGTERM without serving on: until its endpoint is gone nodes send connections"
    " to it; a rolling update loses those, too"
)


async def pod_leaves_and_comes_back(trial: Trial) -> None:
    """The first pod becomes ready, gets SIGTERM before it is trusted, and comes back."""
    app = await trial.sleeping_app()
    await trial.load(app)
    await _dies_when_ready(trial, app, signal.SIGTERM)
    await trial.awake(app)
    await trial.flow_out()


async def pod_dies_and_comes_back(trial: Trial) -> None:
    """The first pod becomes ready, is killed before it is trusted, and comes back."""
    app = await trial.sleeping_app(trial.new_app(linger=0))
    await trial.load(app)
    died = await _dies_when_ready(trial, app, signal.SIGKILL)
    await trial.observer.until_true(lambda: not trial.pods(app, "ready"), "it is known to be dead")
    trial.count_apart(died, _KILLED)
    await trial.awake(app)
    await trial.flow_out()


async def scaled_to_zero_by_hand(trial: Trial) -> None:
    """A person scales the target to zero in the middle of traffic."""
    app = await trial.serving_app()
    await trial.load(app)
    await trial.flow(trial.length.load / 4)
    await trial.environment.scale(trial.namespace, app.name, 0)
    await _comes_back(trial, app)


async def scaled_to_zero_by_hand_and_exits_at_once(trial: Trial) -> None:
    """The same, with an app that does not serve on after SIGTERM."""
    app = await trial.serving_app(trial.new_app(linger=0))
    await trial.load(app)
    await trial.flow(trial.length.load / 4)
    scaled = time.monotonic()
    await trial.environment.scale(trial.namespace, app.name, 0)
    await trial.observer.until_true(lambda: not trial.pods(app, "ready"), "the pod leaves")
    trial.count_apart(scaled, EXITS)
    await _comes_back(trial, app)


async def deleted_at_zero(trial: Trial) -> None:
    """The ElastiService of a sleeping target is deleted while traffic arrives."""
    app = await trial.sleeping_app()
    await trial.load(app)
    await trial.delete_elasti_service(app)
    await trial.observer.until("state", app.name, "none")
    await trial.observer.until("slice", app.name, "removed")
    await trial.flow_out()
    assert await trial.environment.replicas(trial.namespace, app.name) == 1


async def taken_over_from_kubeelasti(trial: Trial) -> None:
    """KubeElasti left a parked target behind; traffic arrives before our operator does, and after.

    Its objects are made as v0.1.30 makes them; in the place of its resolver is ours, on the shared port.
    """
    app = trial.new_app(replicas=0)
    operators = trial.environment.installed.operators if trial.environment.installed else 1
    await trial.environment.scale(bundle.NAMESPACE, bundle.OPERATOR, 0)
    try:
        await _parked_by_kubeelasti(trial, app)
        await trial.observer.until("slice", app.name, "published")
        await trial.reachable(app)
        address = await trial.environment.address(app.namespace, app.name)
        probe = await trial.probe(address, host=f"{app.name}.{app.namespace}.svc.cluster.local")
        await probe.rate(trial.length.rate)
        await trial.flow(trial.length.load / 4)
    finally:
        await trial.environment.scale(bundle.NAMESPACE, bundle.OPERATOR, operators)
    await trial.environment.rolled_out(bundle.NAMESPACE, bundle.OPERATOR)
    await trial.awake(app)
    await trial.flow_out()
    slices = trial.environment.client.resource(SLICES, namespace=trial.namespace)
    left = [piece["metadata"]["name"] async for piece in slices.items()]
    assert resolver_slice_name(app.name) not in left
    services = trial.environment.client.resource("v1/services", namespace=trial.namespace)
    (owner,) = (await services.get(private_service_name(app.name)))["metadata"]["ownerReferences"]
    assert (owner["kind"], owner["name"]) == ("Service", app.name)


async def _dies_when_ready(trial: Trial, app: App, signum: signal.Signals) -> float:
    await trial.observer.until_true(lambda: bool(trial.pods(app, "ready")), "the pod is ready")
    assert trial.observer.now["slice", app.name] == "published"
    died = time.monotonic()
    await trial.environment.kill(await trial.pod(trial.pods(app, "ready")[0]), signum)
    return died


async def _comes_back(trial: Trial, app: App) -> None:
    await trial.observer.until("state", app.name, "Proxy", "Waking")
    await trial.awake(app)
    await trial.flow_out()


async def _parked_by_kubeelasti(trial: Trial, app: App) -> None:
    """Make what KubeElasti has in a cluster for a target that it parked, ElastiService included."""
    es = app.elasti_service()
    es["metadata"]["finalizers"] = [FINALIZER]
    await trial.environment.apply(app.workload(), app.service(), es)
    objects = trial.environment.client.resource(SERVICES, namespace=app.namespace)
    status = {"mode": "proxy", "lastReconciledTime": "2026-07-23T17:50:19Z"}
    es = await objects.subresource("status").patch(app.name, MergePatch({"status": status}))
    owner = {"apiVersion": es["apiVersion"], "kind": es["kind"], "name": app.name}
    owner |= {"uid": es["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}
    private = app.service()
    private["metadata"] |= {"name": private_service_name(app.name), "ownerReferences": [owner]}
    resolvers = [pod["status"]["podIP"] for pod in await trial.environment.resolver_pods()]
    meta = {
        "name": resolver_slice_name(app.name),
        "namespace": app.namespace,
        "labels": {"kubernetes.io/service-name": app.name},
    }
    pointing: JsonObject = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": meta,
        "addressType": "IPv4",
        "ports": [{"name": "http", "port": RESOLVER_SHARED_PORT, "protocol": "TCP"}],
        "endpoints": [{"addresses": [address]} for address in resolvers],
    }
    assert private["spec"]["ports"][0]["port"] == PORT
    await trial.environment.apply(private, pointing)
