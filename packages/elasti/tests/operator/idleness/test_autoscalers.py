"""Autoscalers: whose pause it is, and what an HPA says."""

from __future__ import annotations

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasti.api.names import PAUSED, PAUSED_BY_US_ANNOTATION, PAUSED_REPLICAS
from elasti.api.types import AutoscalerSpec, ElastiServiceSpec, ScaleTargetRef
from elasti.operator.autoscalers.base import Autoscalers
from elasti.operator.autoscalers.hpa import Hpa
from elasti.operator.autoscalers.keda import Keda, pause_patch, resume_patch
from kubeloop.client import NotFound
from kubeloop.client.errors import Status

# KEDA reads it with Go's ParseBool, and takes what that refuses for true.
PAUSES = ("true", "True", "1", "3", "yes", "")
ANNOTATIONS = st.dictionaries(
    st.sampled_from([PAUSED, PAUSED_REPLICAS, PAUSED_BY_US_ANNOTATION, "note"]),
    st.sampled_from([*PAUSES, "false", "False", "0"]),
)


def applied(annotations: dict[str, str], patch: dict[str, str] | dict[str, None] | None):
    merged = {**annotations, **(patch or {})}
    return {name: value for name, value in merged.items() if value is not None}


@given(ANNOTATIONS)
def test_a_pause_writes_two_annotations_and_never_the_replicas(annotations):
    patch = pause_patch(annotations)
    if annotations.get(PAUSED) in PAUSES or annotations.get(PAUSED_REPLICAS, "0") != "0":
        assert patch is None
    else:
        assert patch == {PAUSED: "true", PAUSED_BY_US_ANNOTATION: "true"}


@given(ANNOTATIONS)
def test_a_resume_takes_away_only_what_is_ours_and_a_pause_at_zero(annotations):
    left = applied(annotations, resume_patch(annotations))
    replicas = annotations.get(PAUSED_REPLICAS)
    assert left.get(PAUSED_REPLICAS) == (None if replicas == "0" else replicas)
    assert PAUSED_BY_US_ANNOTATION not in left
    assert left.get("note") == annotations.get("note")
    kubeelastis = annotations.get(PAUSED) == "true" and annotations.get(PAUSED_REPLICAS) == "0"
    if PAUSED_BY_US_ANNOTATION not in annotations and not kubeelastis:
        assert left.get(PAUSED) == annotations.get(PAUSED)


@given(ANNOTATIONS)
def test_a_resume_after_a_pause_changes_only_a_pause_at_zero(annotations):
    annotations.pop(PAUSED_BY_US_ANNOTATION, None)
    if annotations.get(PAUSED) in PAUSES or annotations.get(PAUSED_REPLICAS, "0") != "0":
        return
    back = applied(applied(annotations, pause_patch(annotations)), {})
    back = applied(back, resume_patch(back))
    annotations.pop(PAUSED_REPLICAS, None)
    annotations.pop(PAUSED, None)  # "false": KEDA works, as without it
    assert back == annotations


@given(ANNOTATIONS)
def test_a_second_resume_has_nothing_to_do(annotations):
    assert resume_patch(applied(annotations, resume_patch(annotations))) is None


class Server:
    """Autoscalers by name, with the field that has the fewest replicas."""

    def __init__(self, field: str = "minReplicas", **minimums: int | None) -> None:
        self.field = field
        self.minimums = minimums
        self.reads = 0

    def resource(self, _name: str) -> Server:
        return self

    async def get(self, name: str, *, namespace: str):
        self.reads += 1
        if name not in self.minimums:
            raise NotFound(Status(code=404))
        minimum = self.minimums[name]
        return {"spec": {} if minimum is None else {self.field: minimum}}


def hpas(server: Server) -> Hpa:
    return Hpa(server)  # type: ignore[arg-type]


@pytest.mark.virtual_time
async def test_an_hpa_is_read_now_and_then_and_its_changes_are_noticed():
    server = Server(web=0, api=None)
    known = hpas(server)
    for _ in range(10):
        assert await known.minimum("shop", "web") == 0
    assert server.reads == 1
    server.minimums["web"] = 2
    await asyncio.sleep(300)
    assert await known.minimum("shop", "web") == 2
    assert await known.minimum("shop", "api") == 1
    assert await known.minimum("shop", "none") is None


@pytest.mark.parametrize(
    ("field", "number", "least"),
    [
        ("minReplicaCount", 3, 3),
        ("minReplicaCount", None, 0),
        ("minReplicaCount", 0, 0),
        ("idleReplicaCount", 0, 0),
    ],
)
@pytest.mark.virtual_time
async def test_a_scaledobject_that_scales_to_zero_is_warned_of(
    field: str, number: int | None, least: int
):
    server = Server(field, web=number)
    known = Autoscalers(server, [Keda])  # type: ignore[arg-type]
    spec = ElastiServiceSpec(
        scale_target_ref=ScaleTargetRef("apps/v1", "Deployment", "web"),
        service="web",
        autoscaler=AutoscalerSpec("keda", "web"),
    )
    for _ in range(10):
        assert await known.minimum("shop", spec) == least
        found = [(one.reason, one.refuses) for one in await known.warnings("shop", spec)]
        assert found == ([] if least else [("KEDAScalesToZero", False)])
    assert server.reads == 1
    del server.minimums["web"]
    assert await known.warnings("elsewhere", spec) == ()


def test_idle_replicas_are_the_fewest_beside_a_minimum():
    assert Keda.least({"minReplicaCount": 3, "idleReplicaCount": 0}) == 0


@pytest.mark.virtual_time
async def test_what_is_remembered_of_hpas_is_bounded():
    known = hpas(Server())
    for number in range(10_500):
        await known.minimum("shop", str(number))
    assert len(known._known) <= 10_000
