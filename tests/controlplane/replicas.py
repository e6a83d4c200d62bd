"""A Deployment on the real API server, and the writers that may own its replicas."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from elasti.api.names import FIELD_MANAGER
from elasti.operator.model.targets import ScaleTarget
from elasti.operator.scale_handler import ScaleDown, ScaleHandler, ScaleUp
from kubeloop.client.errors import ApplyConflict, Conflict
from kubeloop.objects.patches import ApplyPatch, MergePatch
from tests.waiting import eventually

if TYPE_CHECKING:
    from kubeloop.client.resource import Resource
    from kubeloop.objects.meta import JsonObject

BEFORE, OTHER = 2, 3


def deployment(replicas: int | None) -> JsonObject:
    labels = {"app": "web"}
    pod = {"containers": [{"name": "web", "image": "web"}]}
    spec: JsonObject = {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    if replicas is not None:
        spec["replicas"] = replicas
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web"},
        "spec": spec,
    }


@dataclasses.dataclass
class Cluster:
    """One Deployment `web`, and the writers that may own its replicas."""

    deployments: Resource[JsonObject]
    scales: ScaleHandler
    namespace: str

    @property
    def target(self) -> ScaleTarget:
        return ScaleTarget.of(self.namespace, "apps/v1", "Deployment", "web")

    async def applies(self, replicas: int | None, manager: str = "flux") -> None:
        """Apply without force."""
        await self.deployments.patch("web", ApplyPatch(deployment(replicas)), field_manager=manager)

    async def scales_to(self, replicas: int, manager: str) -> None:
        """Update /scale, as an HPA and `kubectl scale` do."""
        patch = MergePatch({"spec": {"replicas": replicas}})
        await self.deployments.subresource("scale").patch("web", patch, field_manager=manager)

    async def patches(self, replicas: int) -> None:
        """Patch the object, as `kubectl apply` without --server-side does."""
        patch = MergePatch({"spec": {"replicas": replicas}})
        await self.deployments.patch("web", patch, field_manager="kubectl-client-side-apply")

    async def writes(self, former: str, replicas: int) -> str:
        """The former owner writes again; returns what it gets."""
        try:
            match former:
                case "an apply":
                    await self.applies(replicas)
                case "a client-side apply":
                    await self.patches(replicas)
                case "an HPA":
                    await self.scales_to(replicas, "kube-controller-manager")
                case "`kubectl scale`":
                    await self.scales_to(replicas, "kubectl")
                case _:
                    await self.applies(replicas, "helm")
        except ApplyConflict as conflict:
            (manager,) = conflict.fields
            return f"409, names `{manager}`"
        return "200"

    async def begin(self, former: str) -> None:
        await self.deployments.create(deployment(1), field_manager="kubectl-create")
        if former == "none: parked by 0.2":
            scales = self.deployments.subresource("scale")
            found = await scales.get("web")
            found["spec"]["replicas"] = 0
            del found["metadata"]["resourceVersion"]  # whatever the deployment controller writes
            await scales.replace(found, field_manager=FIELD_MANAGER)
            assert await self.owners() == []
            return
        if former == "an apply":
            await self.deployments.delete("web")
        assert await self.writes(former, BEFORE) == "200"

    async def park(self) -> None:
        """Park it, or own it if it is at zero; the deployment controller's status writes may come in between."""

        async def parked() -> bool:
            seen = await self.scales.read(self.target)
            if seen.replicas:
                return (await self.scales.park(self.target, seen))[0] is ScaleDown.PARKED
            try:
                return await self.scales.take(self.target, seen) is not None
            except Conflict:
                return False

        await eventually(parked, timeout=30)

    async def wake(self) -> None:
        assert (await self.scales.scale_up(self.target, BEFORE))[0] is ScaleUp.SCALED

    async def owners(self) -> list[tuple[str, str, str]]:
        found = await self.deployments.get("web")
        return [
            (entry["manager"], entry["operation"], entry.get("subresource", ""))
            for entry in found["metadata"]["managedFields"]
            if "f:replicas" in entry["fieldsV1"].get("f:spec", {})
        ]

    async def replicas(self) -> int:
        return int((await self.deployments.get("web"))["spec"]["replicas"])
