"""A person's edit of one entry of a generated list, on servers that merge lists by their keys."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator

import pytest
from tests.controllers.support import deployment
from tests.operator.rig import Rig
from tests.operator.servers import CONTROLPLANE, define, everywhere

from elasti.api.crd import template_definition
from elasti.api.names import API_VERSION, SLEEP_LABEL, TEMPLATES
from kubeloop.client import ClientConfig
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch
from tests.waiting import eventually

pytestmark = pytest.mark.timeout(120)

NIGHT = {
    "name": "night",
    "keep": "Asleep",
    "during": "Mon-Sun 22:00-06:00",
    "timezone": "UTC",
    "warmBy": False,
}
OFFICE = {
    "name": "office",
    "keep": "Awake",
    "during": "Mon-Fri 08:00-19:00",
    "timezone": "UTC",
    "warmBy": False,
}
SUNDAY = {
    "name": "sunday",
    "keep": "Asleep",
    "during": "Sun 00:00-23:00",
    "timezone": "UTC",
    "warmBy": False,
}


async def template(rig: Rig, cooldown: int, *schedules: JsonObject) -> None:
    spec = {"cooldownPeriod": cooldown, "schedules": list(schedules)}
    kind = {"apiVersion": API_VERSION, "kind": "ElastiTemplate"}
    content = {**kind, "metadata": {"name": "default"}, "spec": spec}
    await rig.client.resource(TEMPLATES).apply(content, field_manager="admin", force=True)


async def found(rig: Rig, cooldown: int) -> dict[str, JsonObject]:
    """Wait until a template was rolled out, and return the schedules by name."""
    spec: JsonObject = {}

    async def applied() -> bool:
        with contextlib.suppress(LookupError):
            listed = [one async for one in rig.elastiservices.items()]
            spec.clear()
            spec.update(listed[0]["spec"])
        return spec.get("cooldownPeriod") == cooldown

    await eventually(applied, timeout=30)
    return {one["name"]: {"warmBy": False} | one for one in spec["schedules"]}


@contextlib.asynccontextmanager
async def edited(rig: Rig, office: JsonObject) -> AsyncIterator[None]:
    """Run an operator, with a Service that is enrolled and whose schedule `office` a person edited."""
    await define(rig.client, template_definition())
    # The policy of the session's control plane is that of an installation without enrolment.
    rig.config = ClientConfig.from_kubeconfig(rig.cluster.kubeconfig)
    await template(rig, 60, OFFICE, NIGHT)
    await rig.cluster.deployments.create(deployment("web", 1))
    await rig.service()
    async with rig.operator(enrolment=True):
        label = MergePatch({"metadata": {"labels": {SLEEP_LABEL: "observe"}}})
        await rig.cluster.services.patch("web", label)
        assert set(await found(rig, 60)) == {"office", "night"}
        lists = MergePatch({"spec": {"schedules": [office, NIGHT]}})
        await rig.elastiservices.patch("web", lists, field_manager="kubectl-edit")
        yield


@everywhere
async def test_an_edited_schedule_stays_and_the_others_follow_the_template(rig: Rig):
    async with edited(rig, OFFICE | {"keep": "Free"}):
        later = NIGHT | {"during": "Mon-Sun 23:00-06:00"}
        await template(rig, 61, OFFICE | {"during": "Mon-Fri 07:00-19:00"}, later, SUNDAY)
        assert await found(rig, 61) == {
            "office": OFFICE | {"keep": "Free", "during": "Mon-Fri 07:00-19:00"},
            "night": later,
            "sunday": SUNDAY,
        }


@everywhere
async def test_a_schedule_that_the_template_loses_goes_as_a_whole(rig: Rig):
    async with edited(rig, OFFICE | {"keep": "Free"}):
        await template(rig, 61, NIGHT)
        assert await found(rig, 61) == {"night": NIGHT}


@pytest.mark.controlplane
@pytest.mark.parametrize("rig", [CONTROLPLANE], indirect=True)
async def test_a_schedule_that_the_template_would_contradict_stays_and_all_others_too(rig: Rig):
    dates = {name: value for name, value in OFFICE.items() if name != "during"}
    dates["dates"] = "2030-12-24/2031-01-01"
    async with edited(rig, dates):
        await template(rig, 61, OFFICE, SUNDAY)
        assert await found(rig, 61) == {"office": dates, "night": NIGHT}
