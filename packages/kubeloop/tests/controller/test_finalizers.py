from __future__ import annotations

from typing import Any

import jsonpatch
import pytest

from kubeloop.controller.finalizers import Finalizers, remove_finalizers
from kubeloop.objects.meta import ObjectMeta, PartialObjectMetadata


def obj(*finalizers: str, deleting: bool = False) -> dict[str, Any]:
    meta: dict[str, Any] = {"name": "web", "resourceVersion": "7"}
    if finalizers:
        meta["finalizers"] = list(finalizers)
    if deleting:
        meta["deletionTimestamp"] = "2030-01-01T00:00:00Z"
    return {"metadata": meta}


def patched(body: dict[str, Any], result: Any) -> list[str]:
    changed: dict[str, Any] = jsonpatch.apply_patch(body, list(result.patch.operations))
    found: list[str] = changed["metadata"]["finalizers"]
    return found


def nothing(_obj: object) -> None:
    return


@pytest.mark.spec("C18")
async def test_a_live_object_gets_missing_finalizers_and_none_runs() -> None:
    ran: list[object] = []
    finalizers = Finalizers({"a/x": ran.append, "a/y": ran.append})
    body = obj("theirs", "a/y")
    result = await finalizers.finalize(body)
    assert result.updated
    assert result.finalizers == ("theirs", "a/y", "a/x")
    assert patched(body, result) == ["theirs", "a/y", "a/x"]
    assert ran == []
    assert body == obj("theirs", "a/y")


@pytest.mark.spec("C18")
async def test_a_living_object_with_all_of_them_needs_no_write() -> None:
    result = await Finalizers({"a/x": nothing}).finalize(obj("a/x"))
    assert not result.updated


@pytest.mark.spec("C18")
async def test_an_object_that_goes_without_our_finalizer_is_left_alone() -> None:
    ran: list[object] = []
    result = await Finalizers({"a/x": ran.append}).finalize(obj("theirs", deleting=True))
    assert not result.updated
    assert ran == []


@pytest.mark.spec("C18")
async def test_an_object_that_goes_is_finalized_and_then_freed() -> None:
    ran: list[object] = []

    async def finalize(found: dict[str, Any]) -> None:
        ran.append(found)

    body = obj("a/x", "theirs", deleting=True)
    result = await Finalizers({"a/x": finalize}).finalize(body)
    assert ran == [body]
    assert result.finalizers == ("theirs",)
    assert patched(body, result) == ["theirs"]
    result.check()


@pytest.mark.spec("C18")
async def test_finalizer_that_fails_stays_and_others_run_all_same() -> None:
    def fails(_obj: object) -> None:
        raise ValueError("not yet")

    finalizers = Finalizers({"a/1": fails, "a/2": nothing, "a/3": fails})
    body = obj("a/1", "a/2", "a/3", deleting=True)
    result = await finalizers.finalize(body)
    assert result.finalizers == ("a/1", "a/3")
    assert patched(body, result) == ["a/1", "a/3"]
    with pytest.raises(
        ExceptionGroup, match=r"finalizers failed: \[ValueError\('not yet'\), Val"
    ) as caught:
        result.check()
    assert len(caught.value.exceptions) == 2
    assert caught.value.exceptions[0].__notes__ == ["in finalizer a/1"]


@pytest.mark.spec("C18")
async def test_all_failing_means_nothing_to_write() -> None:
    async def fails(_obj: object) -> None:
        raise ValueError("not yet")

    result = await Finalizers({"a/1": fails}).finalize(obj("a/1", deleting=True))
    assert not result.updated
    assert len(result.errors) == 1


@pytest.mark.spec("C18")
def test_a_name_can_be_registered_once() -> None:
    with pytest.raises(ValueError, match="'a/x' is registered already"):
        Finalizers({"a/x": nothing}).register("a/x", nothing)


@pytest.mark.spec("C18")
def test_removal_tests_finalizer_at_index_so_that_concurrent_edit_fails() -> None:
    patch = remove_finalizers(["a", "b", "c"], ["a", "c"])
    assert patch is not None
    assert list(patch.operations) == [
        {"op": "test", "path": "/metadata/finalizers/2", "value": "c"},
        {"op": "remove", "path": "/metadata/finalizers/2"},
        {"op": "test", "path": "/metadata/finalizers/0", "value": "a"},
        {"op": "remove", "path": "/metadata/finalizers/0"},
    ]
    with pytest.raises(jsonpatch.JsonPatchTestFailed):
        jsonpatch.apply_patch(obj("new", "a", "b", "c"), list(patch.operations))


@pytest.mark.spec("C18")
async def test_addition_tests_the_version_so_that_a_concurrent_edit_fails() -> None:
    result = await Finalizers({"a/x": nothing}).finalize(obj())
    assert result.patch is not None
    newer = obj("theirs")
    newer["metadata"]["resourceVersion"] = "8"
    with pytest.raises(jsonpatch.JsonPatchTestFailed):
        jsonpatch.apply_patch(newer, list(result.patch.operations))


async def test_structs_are_finalized_too() -> None:
    meta = ObjectMeta(name="web", deletion_timestamp="2030-01-01T00:00:00Z", finalizers=["a/x"])
    result = await Finalizers({"a/x": nothing}).finalize(PartialObjectMetadata(metadata=meta))
    assert result.finalizers == ()
    assert result.updated
