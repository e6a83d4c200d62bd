from __future__ import annotations

import copy
from typing import Any

import pytest

from kubeloop.client.errors import AlreadyExists, Conflict, NotFound, Status
from kubeloop.controller.writes import WriteOutcome, create_or_update

Json = dict[str, Any]


class Api:
    """One object, and what was asked for it."""

    def __init__(self, stored: Json | None = None) -> None:
        self.stored = stored
        self.log: list[str] = []

    async def get(self, name: str, *, namespace: str | None = None) -> Json:
        self.log.append(f"get {namespace}/{name}")
        if self.stored is None:
            raise NotFound(Status(code=404))
        return self.stored

    async def create(self, obj: Json) -> Json:
        self.log.append("create")
        if self.stored is not None:
            raise AlreadyExists(Status(code=409))
        self.stored = copy.deepcopy(obj)
        return self.stored

    async def replace(self, obj: Json) -> Json:
        self.log.append("replace")
        if obj["metadata"].get("resourceVersion") == "stale":
            raise Conflict(Status(code=409))
        self.stored = copy.deepcopy(obj)
        return self.stored


def config_map(**data: str) -> Json:
    return {"metadata": {"name": "cm", "namespace": "ns"}, "data": dict(data)}


def setting(value: str) -> Any:
    def mutate(obj: Json) -> None:
        obj["data"]["key"] = value

    return mutate


@pytest.mark.spec("C20")
async def test_a_missing_object_is_mutated_and_created() -> None:
    api, wanted = Api(), config_map()
    written, outcome = await create_or_update(api, wanted, setting("new"))
    assert outcome is WriteOutcome.CREATED
    assert written["data"] == {"key": "new"}
    assert api.log == ["get ns/cm", "create"]
    assert wanted == config_map()


@pytest.mark.spec("C20")
async def test_different_object_is_updated_and_keeps_what_is_not_ours() -> None:
    api = Api(config_map(key="old", theirs="kept"))
    written, outcome = await create_or_update(api, config_map(), setting("new"))
    assert outcome is WriteOutcome.UPDATED
    assert written["data"] == {"key": "new", "theirs": "kept"}


@pytest.mark.spec("C20")
async def test_object_that_is_as_it_should_be_is_not_written() -> None:
    stored = config_map(key="new")
    api = Api(stored)
    written, outcome = await create_or_update(api, config_map(), setting("new"))
    assert outcome is WriteOutcome.UNCHANGED
    assert written is stored
    assert api.log == ["get ns/cm"]


@pytest.mark.spec("C20")
@pytest.mark.parametrize("field", ["name", "namespace"])
@pytest.mark.parametrize("stored", [None, config_map()])
async def test_a_mutation_that_renames_is_refused_and_nothing_is_written(
    field: str, stored: Json | None
) -> None:
    async def rename(obj: Json) -> None:
        obj["metadata"][field] = "other"

    api = Api(copy.deepcopy(stored))
    with pytest.raises(ValueError, match="mutate renamed ns/cm"):
        await create_or_update(api, config_map(), rename)
    assert api.stored == stored
    assert len(api.log) == 1


async def test_a_mutation_that_fails_leaves_the_stored_object_alone() -> None:
    def fails(obj: Json) -> None:
        obj["data"]["key"] = "half"
        raise RuntimeError("no")

    stored = config_map(key="old")
    with pytest.raises(RuntimeError, match="no"):
        await create_or_update(Api(stored), config_map(), fails)
    assert stored == config_map(key="old")


async def test_a_concurrent_write_is_a_conflict_for_the_caller() -> None:
    stored = config_map(key="old")
    stored["metadata"]["resourceVersion"] = "stale"
    with pytest.raises(Conflict):
        await create_or_update(Api(stored), config_map(), setting("new"))
