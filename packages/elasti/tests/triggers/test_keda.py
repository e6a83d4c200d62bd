"""Triggers that ask KEDA: what a ScaledObject shows, and what keeps a target awake instead."""

from __future__ import annotations

from typing import Any

import pytest

from elasti.api.names import PAUSED, PAUSED_REPLICAS
from elasti.api.triggers.cluster import KedaMetadata
from elasti.api.triggers.registry import read_metadata
from elasti.triggers.keda import KedaReader, reading_of
from elasti.triggers.reader import ReadContext
from kubeloop.client.errors import KubeError
from kubeloop.testing.fake_errors import api_error

ASKED = KedaMetadata(scaled_object="jobs")


def scaled_object(active: str = "", **annotations: str) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": "True"}]
    if active:
        conditions.append({"type": "Active", "status": active})
    metadata = {"name": "jobs", "annotations": annotations}
    return {"metadata": metadata, "status": {"conditions": conditions}}


@pytest.mark.parametrize(("active", "value"), [("True", 1.0), ("False", 0.0)])
def test_the_condition_active_is_the_value(active: str, value: float):
    assert reading_of(scaled_object(active), "jobs", asleep=False).value == value


@pytest.mark.parametrize(
    "found", [scaled_object("Unknown"), scaled_object(), {"metadata": {"name": "jobs"}}]
)
def test_what_keda_does_not_know_is_an_error(found: dict[str, Any]):
    reading = reading_of(found, "jobs", asleep=False)
    assert not reading.usable
    assert "ScaledObject jobs" in reading.error
    assert "kubectl describe scaledobject jobs" in reading.error


@pytest.mark.parametrize("annotations", [{PAUSED: "true"}, {PAUSED_REPLICAS: "0"}])
def test_a_paused_object_says_nothing(annotations: dict[str, str]):
    """KEDA does not keep its condition up to date meanwhile: `Active` is what it was before."""
    found = scaled_object("True", **annotations)
    error = reading_of(found, "jobs", asleep=False).error
    assert PAUSED in error
    assert PAUSED_REPLICAS in error
    assert reading_of(found, "jobs", asleep=True).value == 0.0


class FailingClient:
    """A server that refuses every read."""

    def __init__(self, error: KubeError) -> None:
        self._error = error

    def resource(self, _name: str) -> FailingClient:
        return self

    async def get(self, _name: str, **_options: Any) -> Any:
        raise self._error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (api_error(404, "NotFound", name="jobs"), "ScaledObject jobs in namespace shop"),
        (api_error(404, "NotFound"), "install KEDA"),
        (api_error(403, "Forbidden"), "get on scaledobjects"),
        (api_error(500, "InternalError", "hush"), "(InternalError)"),
    ],
)
async def test_each_failure_names_its_cure(error: KubeError, words: str):
    client: Any = FailingClient(error)
    context = ReadContext(key="k", cooldown=60.0, namespace="shop")
    reading = await KedaReader(client).read(ASKED, context)
    assert words in reading.error
    assert "hush" not in reading.error


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "scaledObject"),
        ({"scaledObject": "../secrets"}, "scaledObject"),
        ({"scaledobject": "jobs"}, "did you mean 'scaledObject'"),
    ],
)
def test_each_mistake_is_named(fields: dict[str, Any], words: str):
    with pytest.raises(ValueError, match=words):
        read_metadata("keda", fields)
