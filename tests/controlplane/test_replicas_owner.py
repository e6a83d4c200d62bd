"""Who owns `spec.replicas` while a target sleeps and after it wakes, and what each former owner gets: the real server's answers.

The table is in `docs/explanation/replicas.md`, and each of its rows is played here.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from elasti.api.names import FIELD_MANAGER
from elasti.operator.model.targets import ScaleTarget, ScaleView
from elasti.operator.scale_handler import ScaleDown, ScaleHandler
from kubeloop.client.client import Client
from kubeloop.client.errors import Conflict
from tests.controlplane.replicas import BEFORE, OTHER, Cluster
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import AsyncIterator

    from tests.controlplane.rig import ControlPlane

pytestmark = pytest.mark.controlplane

PAGE = Path(__file__).parents[2] / "docs" / "explanation" / "replicas.md"


@pytest.fixture
async def cluster(controlplane: ControlPlane) -> AsyncIterator[Cluster]:
    namespace = controlplane.create_namespace("replicas")
    async with Client.from_kubeconfig(controlplane.kubeconfig) as client:
        deployments = client.resource("apps/v1/deployments", namespace=namespace)
        yield Cluster(deployments, ScaleHandler(client), namespace)


OURS = (FIELD_MANAGER, "Apply", "scale")


def rows() -> list[tuple[str, str, str, str]]:
    """The page's table: the former owner, and what it gets asleep, and awake with the same and another value."""
    lines = PAGE.read_text().partition("| owner before the sleep |")[2].splitlines()[2:]
    found = []
    for line in lines:
        if not line.startswith("| "):
            break
        former, asleep, same, other = (cell.strip() for cell in line.strip("|").split("|"))
        found.append((former, asleep, same, other))
    return found


@pytest.mark.parametrize("row", rows(), ids=lambda row: row[0])
async def test_each_former_owner_gets_what_the_page_says(
    cluster: Cluster, row: tuple[str, str, str, str]
) -> None:
    former, asleep, same, other = row
    await cluster.begin(former)
    await cluster.park()
    assert await cluster.owners() == [OURS]
    assert await cluster.writes(former, BEFORE) == asleep
    assert await cluster.replicas() == (BEFORE if asleep == "200" else 0)
    for value, expected in ((BEFORE, same), (OTHER, other)):
        await cluster.park()
        assert await cluster.owners() == [OURS], "whoever wrote since, a sleep takes the field"
        await cluster.wake()
        assert OURS not in await cluster.owners()
        assert await cluster.writes(former, value) == expected
        assert await cluster.replicas() == (value if expected == "200" else BEFORE)


async def test_an_apply_of_the_live_value_is_never_refused_while_awake(cluster: Cluster) -> None:
    await cluster.begin("an HPA")
    await cluster.park()
    await cluster.wake()
    for manager in ("flux", "argocd-controller", "helm", "kubectl"):
        await cluster.applies(BEFORE, manager)
    await cluster.applies(None, "flux")
    assert await cluster.replicas() == BEFORE, "leaving the field out gives it up, and it stays"


async def test_an_old_version_decides_nothing(cluster: Cluster) -> None:
    await cluster.begin("an HPA")
    old = await cluster.scales.read(cluster.target)
    await cluster.scales_to(0, "kubectl")
    with pytest.raises(Conflict):
        await cluster.scales.take(cluster.target, ScaleView(old.uid, 0, old.version))
    await cluster.scales_to(OTHER, "kubectl")
    assert (await cluster.scales.park(cluster.target, old))[0] is ScaleDown.CHANGED
    assert await cluster.replicas() == OTHER


async def test_a_hand_that_wakes_it_is_recorded(cluster: Cluster) -> None:
    """A park by update left no owner, and then the server records no later use of /scale."""
    await cluster.begin("an HPA")
    await cluster.park()
    await cluster.scales_to(1, "kubectl")
    assert await cluster.owners() == [("kubectl", "Update", "scale")]


async def test_taking_what_is_ours_already_writes_nothing(cluster: Cluster) -> None:
    await cluster.begin("none: parked by 0.2")
    await cluster.park()

    async def taken_again() -> bool:
        seen = await cluster.scales.read(cluster.target)
        try:
            return await cluster.scales.take(cluster.target, seen) == seen
        except Conflict:
            return False  # the deployment controller reported in between

    await eventually(taken_again, timeout=30)


async def test_the_scale_of_a_custom_resource_cannot_be_applied_and_is_updated(
    controlplane: ControlPlane,
) -> None:
    """A release of Kubernetes that can is news for `docs/explanation/replicas.md`."""
    namespace = controlplane.create_namespace("custom")
    target = ScaleTarget(namespace, "argoproj.io/v1alpha1", "Rollout", "web")
    async with Client.from_kubeconfig(controlplane.kubeconfig) as client:
        rollouts = client.resource("argoproj.io/v1alpha1/rollouts", namespace=namespace)
        rollout = {
            "apiVersion": target.api_version,
            "kind": target.kind,
            "metadata": {"name": "web"},
            "spec": {"replicas": BEFORE},
        }
        await rollouts.apply(rollout, field_manager="flux")
        scales = ScaleHandler(client)
        outcome, view = await scales.park(target, await scales.read(target))
        assert (outcome, view.replicas) == (ScaleDown.PARKED, 0)
        assert await scales.take(target, view) is None
        found = await rollouts.get("web")
    entries = found["metadata"].get("managedFields", ())
    assert [one for one in entries if "f:replicas" in one["fieldsV1"].get("f:spec", {})] == []
    assert "request to convert CR to an invalid group/version" in PAGE.read_text()
