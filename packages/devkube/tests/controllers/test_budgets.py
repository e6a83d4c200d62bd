from __future__ import annotations

import pytest
from tests.controllers.support import Cluster, deployment, eventually

from kubeloop.client import Client, RetryPolicy, TooManyRequests
from kubeloop.objects.meta import JsonObject


@pytest.mark.parametrize(
    ("spec", "counts"),
    [
        ({"minAvailable": 2}, (3, 2, 3, 1)),
        ({"minAvailable": "50%"}, (3, 2, 3, 1)),
        ({"maxUnavailable": 1}, (3, 2, 3, 1)),
        ({"maxUnavailable": "100%"}, (3, 0, 3, 3)),
        ({"maxUnavailable": 0}, (3, 3, 3, 0)),
    ],
)
async def test_a_budget_tells_how_many_pods_may_go(
    cluster: Cluster, spec: JsonObject, counts: tuple[int, ...]
) -> None:
    await cluster.deployments.create(deployment(replicas=3))
    await cluster.budgets.create(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "web"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, **spec},
        }
    )
    names = ("currentHealthy", "desiredHealthy", "expectedPods", "disruptionsAllowed")

    async def counted() -> JsonObject | None:
        found = await cluster.get("budgets", "web")
        status = (found or {}).get("status") or {}
        return status if tuple(status.get(name) for name in names) == counts else None

    status = await eventually(counted)
    (condition,) = status["conditions"]
    allowed = ("True", "SufficientPods") if counts[3] else ("False", "InsufficientPods")
    assert (condition["status"], condition["reason"]) == allowed


async def test_an_eviction_beyond_the_budget_is_refused(cluster: Cluster) -> None:
    await cluster.deployments.create(deployment(replicas=1))
    await cluster.budgets.create(
        {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": {"name": "web"},
            "spec": {"selector": {"matchLabels": {"app": "web"}}, "minAvailable": 1},
        }
    )

    async def counted() -> bool:
        found = await cluster.get("budgets", "web")
        return ((found or {}).get("status") or {}).get("currentHealthy") == 1

    await eventually(counted)
    (pod,) = await cluster.list("pods")
    name = pod["metadata"]["name"]
    eviction = {
        "apiVersion": "policy/v1",
        "kind": "Eviction",
        "metadata": {"name": name, "namespace": cluster.namespace},
    }
    # A client that does not ask again by itself.
    async with Client(cluster.client.config, retry=RetryPolicy.never()) as client:
        evictions = client.resource("v1/pods", namespace=cluster.namespace).subresource("eviction")
        with pytest.raises(TooManyRequests, match="disruption budget"):
            await evictions.create(name, eviction)
