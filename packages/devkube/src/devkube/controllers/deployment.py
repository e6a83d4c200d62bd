"""The Deployment controller: observes, plans a step, writes it."""

from __future__ import annotations

import contextlib

from devkube.controllers import deployment_status
from devkube.controllers.context import BY_CONTROLLER, ControllerSpec, SharedInformers
from devkube.controllers.deployment_plan import (
    REVISION,
    DeploymentPlan,
    ObservedDeployment,
    ReplicaSetChange,
    plan_deployment,
    tell_apart,
)
from devkube.controllers.objects import (
    DEPLOYMENT,
    DEPLOYMENTS,
    REPLICA_SETS,
    Deployment,
    ReplicaSet,
    SlimPod,
)
from devkube.controllers.pod_control import (
    claim_owned,
    delete_same,
    is_namespace_ending,
    note_write,
    orphans_of,
    owners_of,
    patch_owned,
    report_status,
)
from kubeloop.client.errors import ApiError, NotFound
from kubeloop.controller.predicates import by_kind
from kubeloop.controller.reconcile import Request, Result
from kubeloop.controller.sources import map_func
from kubeloop.controller.writes import ConsistencyGuard
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.owners import controller_of

NAME = "deployment"
_COMPONENT = "deployment-controller"


class DeploymentReconciler:
    """Takes one Deployment one step further."""

    def __init__(self, shared: SharedInformers) -> None:
        self._shared = shared
        self._deployments = shared.resource(DEPLOYMENTS)
        self._sets = shared.resource(REPLICA_SETS)
        self._events = shared.recorder(_COMPONENT)
        self.guard = ConsistencyGuard()
        self.guard.follow(DEPLOYMENTS, shared.deployments.store)
        self.guard.follow(REPLICA_SETS, shared.replica_sets.store)

    async def __call__(self, request: Request) -> Result | None:
        """Observe, plan, write."""
        deployment = self._shared.deployments.lister.find(*request)
        if deployment is None:
            self.guard.clear(request)
            return None
        sets = await self._claim(deployment)
        now = self._shared.clock.now()
        running = self._old_pods_running(deployment, sets)
        step = plan_deployment(
            ObservedDeployment(deployment=deployment, sets=sets, old_pods_running=running, now=now)
        )
        await self._carry_out(deployment, step)
        wait = deployment_status.next_check(deployment, step.status, now)
        return Result(requeue_after=wait) if wait else None

    # Observing

    async def _claim(self, deployment: Deployment) -> list[ReplicaSet]:
        meta, store = deployment.metadata, self._shared.replica_sets.store
        candidates = [
            *store.by_index(BY_CONTROLLER, meta.uid),
            *store.by_index(BY_CONTROLLER, orphans_of(meta.namespace)),
        ]
        return await claim_owned(self._sets, self._deployments, deployment, DEPLOYMENT, candidates)

    def _old_pods_running(self, deployment: Deployment, sets: list[ReplicaSet]) -> bool:
        old = tell_apart(deployment, sets).old
        pods = self._shared.pods.store
        return any(
            not pod.is_terminal
            for item in old
            for pod in pods.by_index(BY_CONTROLLER, item.metadata.uid)
        )

    # Writing

    async def _carry_out(self, deployment: Deployment, step: DeploymentPlan) -> None:
        if step.create is not None and not await self._create(deployment, step.create):
            return
        for change in step.changes:
            await self._change(deployment, change)
        for item in step.remove:
            await delete_same(self._sets, item.metadata, "Background")
        await self._write(deployment, step)

    async def _create(self, deployment: Deployment, body: JsonObject) -> bool:
        """Create the new ReplicaSet; False if the namespace is going and nothing more is due."""
        name, replicas = body["metadata"]["name"], body["spec"]["replicas"]
        try:
            made = await self._sets.create(body)
        except ApiError as error:
            if is_namespace_ending(error):
                return False
            message = f'Failed to create new replica set "{name}": {error}'
            self._events.warning(deployment, "ReplicaSetCreateError", message, gvk=DEPLOYMENT)
            raise
        note_write(self.guard, deployment, REPLICA_SETS, made)
        if replicas:
            self._report(deployment, f"Scaled up replica set {name} from 0 to {replicas}")
        return True

    async def _change(self, deployment: Deployment, change: ReplicaSetChange) -> None:
        meta = change.target.metadata
        spec: JsonObject = {}
        if change.replicas is not None:
            spec["replicas"] = change.replicas
        if change.min_ready_seconds is not None:
            spec["minReadySeconds"] = change.min_ready_seconds
        # On the version that was judged: a size is right only together with what it was based on.
        document: JsonObject = {"metadata": {"resourceVersion": meta.resource_version}}
        if change.annotations:
            document["metadata"]["annotations"] = change.annotations
        if spec:
            document["spec"] = spec
        await patch_owned(self.guard, deployment, self._sets, meta, document)
        if change.replicas is not None:
            before = change.target.spec.replicas
            way = "up" if change.replicas > before else "down"
            self._report(
                deployment,
                f"Scaled {way} replica set {meta.name} from {before} to {change.replicas}",
            )

    async def _write(self, deployment: Deployment, step: DeploymentPlan) -> None:
        meta, revision = deployment.metadata, step.revision
        if revision is not None and (meta.annotations or {}).get(REVISION) != revision:
            document = {"metadata": {"uid": meta.uid, "annotations": {REVISION: revision}}}
            with contextlib.suppress(NotFound):
                await patch_owned(self.guard, deployment, self._deployments, meta, document)
        await report_status(self.guard, self._deployments, deployment, step.status)

    def _report(self, deployment: Deployment, message: str) -> None:
        self._events.normal(deployment, "ScalingReplicaSet", message, gvk=DEPLOYMENT)


def make(shared: SharedInformers) -> ControllerSpec:
    """Return the controller."""
    reconciler = DeploymentReconciler(shared)
    part = ControllerSpec.of(NAME, reconciler, workers=4, guard=reconciler.guard)
    part.controller.watch(shared.deployments)
    part.controller.watch(shared.replica_sets, mapping=map_func(lambda item: _owners(shared, item)))
    # Recreate waits for the last old pod to be gone.
    gone = by_kind(added=lambda _note: False, updated=lambda _note: False)
    part.controller.watch(
        shared.pods, mapping=map_func(lambda pod: _grandparents(shared, pod)), predicates=[gone]
    )
    return part


def _owners(shared: SharedInformers, item: ReplicaSet) -> list[Request]:
    return owners_of(item, DEPLOYMENT, shared.deployments)


def _grandparents(shared: SharedInformers, pod: SlimPod) -> list[Request]:
    owner = controller_of(pod.metadata.owner_references or ())
    if owner is None or owner.kind != "ReplicaSet":
        return []
    parent = shared.replica_sets.lister.find(pod.metadata.namespace, owner.name)
    return _owners(shared, parent) if parent is not None else []
