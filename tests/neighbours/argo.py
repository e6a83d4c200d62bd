"""Argo Rollouts' controller beside the real control plane, and its Rollouts as the apps of scenarios.

    with Controller(cluster):                        # a RealCluster
        app = rollout_of(trial.new_app(), strategy={"blueGreen": {"activeService": "web"}})
        hand = Hand(trial, app)
        await hand.updates()
        await hand.promotes()

`Hand` writes what `kubectl argo rollouts` writes.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any, Self

from kubeloop.objects.patches import MergePatch
from tests.controlplane.component import Component
from tests.e2e.workload import App
from tests.neighbours.programs import program

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from kubeloop.objects.meta import JsonObject
    from tests.e2e.real.cluster import RealCluster
    from tests.e2e.trial import Trial

API_VERSION = "argoproj.io/v1alpha1"
ROLLOUTS = f"{API_VERSION}/rollouts"
HASH = "rollouts-pod-template-hash"
_START_SECONDS = 60.0
# Ports of every address inside; apps listen on 8080 of their own.
_HEALTH_PORT, _METRICS_PORT = 18080, 18090


class Controller:
    """The controller as a process; runs between `__enter__` and `__exit__`."""

    def __init__(self, cluster: RealCluster) -> None:
        rig, binary = cluster.rig, program("argo-rollouts")
        self._definitions = sorted(binary.parent.glob("crd/*-crd.yaml"))
        self._kubectl = rig.kubectl
        kubeconfig = rig.kubeconfig_for("argo-rollouts", ["system:masters"], inside=True)
        argv = [str(binary), f"--kubeconfig={kubeconfig}", "--leader-elect=false"]
        argv += [f"--healthzPort={_HEALTH_PORT}", f"--metricsPort={_METRICS_PORT}"]
        log = rig.logs / "argo-rollouts.log"
        self.process = Component(
            "argo-rollouts", argv, sandbox=rig.sandbox, log=log, ready=self._is_ready
        )

    def __enter__(self) -> Self:
        self._kubectl("create", *(f"--filename={path}" for path in self._definitions))
        self._kubectl("wait", "--for=condition=Established", "--all", "customresourcedefinition")
        self.process.launch()
        self.process.wait_ready(_START_SECONDS)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.process.stop()

    def _is_ready(self) -> bool:
        return "Started rollout workers" in self.process.log.read_text()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RolloutApp(App):
    """An app whose workload is a Rollout."""

    strategy: JsonObject

    def workload(self) -> JsonObject:
        workload = App.workload(self)
        workload["apiVersion"] = API_VERSION
        workload["spec"]["strategy"] = self.strategy
        return workload

    def elasti_service(self) -> JsonObject:
        elasti_service = App.elasti_service(self)
        elasti_service["spec"]["scaleTargetRef"]["apiVersion"] = API_VERSION
        elasti_service["spec"]["wake"]["replicas"] = "Previous"
        return elasti_service

    def beside(self, name: str) -> list[JsonObject]:
        """Return another Service of its pods, as Argo shall lead it, and the ElastiService of that."""
        service, elasti_service = self.service(), self.elasti_service()
        for obj in (service, elasti_service):
            obj["metadata"]["name"] = name
        elasti_service["spec"]["service"] = name
        return [service, elasti_service]


def rollout_of(app: App, *, strategy: JsonObject, **more: Any) -> RolloutApp:
    """Return an app as a Rollout with this strategy."""
    chosen = {field.name: getattr(app, field.name) for field in dataclasses.fields(app)}
    return RolloutApp(**{**chosen, "kind": "Rollout", **more}, strategy=strategy)


class Hand:
    """What people do to one Rollout, and what they see of it."""

    def __init__(self, trial: Trial, app: App) -> None:
        self._trial, self._name = trial, app.name
        client, namespace = trial.environment.client, trial.namespace
        self._rollouts = client.resource(ROLLOUTS, namespace=namespace)
        self._services = client.resource("v1/services", namespace=namespace)
        self._revision = 1

    async def updates(self) -> None:
        """Change the pod template."""
        self._revision += 1
        metadata = {"annotations": {"revision": str(self._revision)}}
        patch = {"spec": {"template": {"metadata": metadata}}}
        await self._rollouts.patch(self._name, MergePatch(patch))

    async def promotes(self) -> None:
        """Let a paused update go on, as `kubectl argo rollouts promote`."""
        await self._writes_status({"pauseConditions": None})

    async def aborts(self) -> None:
        """End an update, as `kubectl argo rollouts abort`."""
        await self._writes_status({"abort": True})

    async def sees(self) -> JsonObject:
        """Return the Rollout."""
        return await self._rollouts.get(self._name)

    async def owners(self) -> list[str]:
        """Return the field managers that own the replicas."""
        entries = (await self.sees())["metadata"]["managedFields"]
        spec = [(one["manager"], one["fieldsV1"].get("f:spec", {})) for one in entries]
        return [manager for manager, fields in spec if "f:replicas" in fields]

    async def until(self, condition: Callable[[JsonObject], bool], what: str) -> JsonObject:
        """Wait until a condition on the Rollout's status holds, once the controller knows the newest spec."""

        async def holds() -> JsonObject | None:
            found = await self.sees()
            status = found.get("status", {})
            current = status.get("observedGeneration") == str(found["metadata"]["generation"])
            return status if current and condition(status) else None

        return await self._trial.environment.until(holds, f"rollout {self._name} {what}")

    async def until_paused(self) -> JsonObject:
        """Wait until an update waits for a promotion."""
        return await self.until(lambda status: bool(status.get("pauseConditions")), "is paused")

    async def until_promoted(self) -> str:
        """Wait until the newest revision is the stable one; return its hash."""
        status = await self.until(
            lambda status: status.get("stableRS", "") == status.get("currentPodHash"), "is promoted"
        )
        return str(status["stableRS"])

    async def hash_of(self, service: str) -> str:
        """Return the revision that a Service selects; empty if it selects all."""
        return str((await self._services.get(service))["spec"]["selector"].get(HASH, ""))

    async def _writes_status(self, status: JsonObject) -> None:
        statuses = self._rollouts.subresource("status", dict)
        await statuses.patch(self._name, MergePatch({"status": status}))
