"""Triggers that ask KEDA: what a ScaledObject shows, and what keeps a target awake instead."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

import msgspec
import pytest

from elasti.api.names import PAUSED, PAUSED_REPLICAS
from elasti.api.triggers.cluster import KedaMetadata
from elasti.api.triggers.registry import read_metadata
from elasti.triggers.keda import KedaReader, ScaledObject, reading_of
from elasti.triggers.reader import ReadContext, TriggerReading
from kubeloop.client.errors import KubeError
from kubeloop.informer import Added, Deleted, Updated
from kubeloop.objects.meta import Key
from kubeloop.testing.fake_errors import api_error

if TYPE_CHECKING:
    from elasti.triggers.reader import FindObject

ASKED = KedaMetadata(scaled_object="jobs")


def scaled_object(active: str = "", **annotations: str) -> ScaledObject:
    conditions = [{"type": "Ready", "status": "True"}]
    if active:
        conditions.append({"type": "Active", "status": active})
    metadata = {"name": "jobs", "annotations": annotations}
    return of({"metadata": metadata, "status": {"conditions": conditions}})


def of(found: dict[str, Any]) -> ScaledObject:
    return msgspec.convert(found, ScaledObject)


@pytest.mark.parametrize(("active", "value"), [("True", 1.0), ("False", 0.0)])
def test_the_condition_active_is_the_value(active: str, value: float):
    assert reading_of(scaled_object(active), "jobs", asleep=False).value == value


@pytest.mark.parametrize(
    "found", [scaled_object("Unknown"), scaled_object(), of({"metadata": {"name": "jobs"}})]
)
def test_what_keda_does_not_know_is_an_error(found: ScaledObject):
    reading = reading_of(found, "jobs", asleep=False)
    assert not reading.usable
    assert "ScaledObject jobs" in reading.error
    assert "kubectl describe scaledobject jobs" in reading.error


@pytest.mark.parametrize(
    "annotations", [{PAUSED: "true"}, {PAUSED: "1"}, {PAUSED: "yes"}, {PAUSED_REPLICAS: "0"}]
)
def test_a_paused_object_says_nothing(annotations: dict[str, str]):
    """KEDA does not keep its condition up to date meanwhile: `Active` is what it was before."""
    found = scaled_object("True", **annotations)
    error = reading_of(found, "jobs", asleep=False).error
    assert PAUSED in error
    assert PAUSED_REPLICAS in error
    assert reading_of(found, "jobs", asleep=True).value == 0.0


@pytest.mark.parametrize("value", ["false", "False", "0"])
def test_an_object_is_not_paused_by_the_word_false(value: str):
    assert reading_of(scaled_object("True", **{PAUSED: value}), "jobs", asleep=False).value == 1.0


async def read(find: FindObject, **context: Any) -> TriggerReading:
    where = ReadContext(key="k", cooldown=60.0, namespace="shop", **context)
    return await KedaReader(find, lambda _key: None).read(ASKED, where)


async def test_the_trigger_is_read_again_when_the_object_says_something_else():
    heard: list[Any] = []
    changes: list[None] = []

    async def find(*asked: Any) -> ScaledObject:
        assert asked[:4] == ("k", "keda.sh/v1alpha1/scaledobjects", ScaledObject, ("shop", "jobs"))
        heard.append(asked[4])
        return idle

    idle, busy, at = scaled_object("False"), scaled_object("True"), Key("shop/jobs")
    reading = await read(find, changed=lambda: changes.append(None))
    assert reading.value == 0.0
    (tell,) = heard
    for event, expected in (
        (Added(at, idle), 1),
        # KEDA writes its status again and again, and the watch repeats what is known.
        (Updated(at, idle, scaled_object("False", note="new")), 1),
        (Updated(at, idle, busy), 2),
        (Updated(at, busy, scaled_object("True", **{PAUSED: "true"})), 3),
        (Deleted(at, busy), 4),
    ):
        tell(event)
        assert len(changes) == expected


async def test_a_list_that_does_not_come_is_an_error(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr("elasti.triggers.keda._TIMEOUT", 0.01)

    async def find(*_asked: Any) -> None:
        await asyncio.sleep(60)

    assert "cannot be read (TimeoutError)" in (await read(find)).error


async def test_an_object_that_is_not_there_is_named():
    async def find(*_asked: Any) -> None:
        return None

    assert "there is no ScaledObject jobs in namespace shop" in (await read(find)).error


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (api_error(404, "NotFound"), "install KEDA"),
        (api_error(403, "Forbidden"), "list and watch"),
        (api_error(500, "InternalError", "hush"), "(InternalError)"),
    ],
)
async def test_each_failure_names_its_cure(error: KubeError, words: str):
    async def find(*_asked: Any) -> None:
        raise error

    reading = await read(find)
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
