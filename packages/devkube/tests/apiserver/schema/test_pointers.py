"""A pointer that is set counts, whatever package its Go type is of."""

from __future__ import annotations


async def test_who_sets_an_empty_selector_owns_it(kube):
    """An empty selector is for all pods, and an absent one for none, so it is not a default."""
    path = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
    budget = {"metadata": {"name": "a"}, "spec": {"selector": {}}}
    made = await kube.send("POST", path, budget)
    assert made.code == 201, made
    (entry,) = made["metadata"]["managedFields"]
    assert entry["fieldsV1"]["f:spec"] == {"f:selector": {}}
