"""What people see of an ElastiService, from its status alone."""

from __future__ import annotations

import ast
from itertools import pairwise
from pathlib import Path

import pytest

import elasti
from elasti.api.conditions import MAY_SLEEP, READY, Obstacle, Reason
from elasti.api.types import (
    DependencyRef,
    ElastiService,
    ElastiServiceSpec,
    ElastiServiceStatus,
    ScaleTargetRef,
    StatusCondition,
)
from elasti.api.view import dependency_tree, row_of
from kubeloop.objects.meta import ObjectMeta

SOURCE = Path(elasti.__file__).parent


def reported(*conditions: StatusCondition) -> ElastiService:
    return ElastiService(
        spec=ElastiServiceSpec(
            scale_target_ref=ScaleTargetRef("apps/v1", "Deployment", "web"), service="web"
        ),
        status=ElastiServiceStatus(conditions=conditions, mode="serve", state="Serve", replicas=2),
    )


def entry(kind: str, status: str, reason: str, since: str) -> StatusCondition:
    return StatusCondition(kind, status, reason, "words", f"2030-01-01T00:00:{since}Z")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("conditions", "why", "since"),
    [
        ([entry(MAY_SLEEP, "False", "InUse", "07")], Obstacle("InUse", "words"), "07"),
        (
            [entry(READY, "True", "Valid", "01"), entry(MAY_SLEEP, "False", "InUse", "07")],
            Obstacle("InUse", "words"),
            "07",
        ),
        (
            [entry(READY, "False", "NoSelector", "03"), entry(MAY_SLEEP, "True", "Idle", "07")],
            Obstacle("NoSelector", "words"),
            "03",
        ),
        ([entry(MAY_SLEEP, "True", "Asleep", "09")], Obstacle(), "09"),
    ],
)
def test_why_and_since_are_of_the_same_condition(
    conditions: list[StatusCondition], why: Obstacle, since: str
):
    shown = row_of(reported(*conditions), None)
    assert shown.why == why
    assert shown.to_json()["since"] == f"2030-01-01T00:00:{since}Z"


def test_nothing_reported_has_no_since():
    assert row_of(reported(), None).to_json()["since"] is None


def tree(edges: dict[str, str]) -> list[str]:
    target = ScaleTargetRef("apps/v1", "Deployment", "web")
    parts = {
        name: ElastiService(
            ElastiServiceSpec(target, name, depends_on=tuple(map(DependencyRef, named.split()))),
            ObjectMeta(name=name),
            ElastiServiceStatus(state="Serve"),
        )
        for name, named in edges.items()
    }
    return dependency_tree(parts["web"], parts)


def test_what_several_parts_need_is_shown_under_each_and_expanded_once():
    edges = {"web": "api mail gone", "api": "db", "mail": "db", "db": "disk", "disk": ""}
    assert tree(edges) == [
        "api: awake",
        "  db: awake",
        "    disk: awake",
        "mail: awake",
        "  db: awake",
        "gone: ignored",
    ]


def test_what_the_operator_ignores_is_shown_as_ignored():
    circle = {"web": "api lone", "api": "db", "db": "api", "lone": ""}
    assert tree(circle) == ["api: awake", "  db: ignored", "lone: awake"]
    chain = {f"c{n}": f"c{n + 1}" for n in range(10)} | {"web": "c1", "c10": ""}
    assert tree(chain)[0] == "c1: awake"
    assert tree(chain)[1] == "  c2: ignored"
    many = {f"d{n}": "" for n in range(34)}
    assert tree(many | {"web": " ".join(many)})[31:] == [
        "d31: awake",
        "d32: ignored",
        "d33: ignored",
    ]


def test_a_tree_is_as_long_as_its_edges_are_many():
    layers = [[f"l{level}-{index}" for index in range(8)] for level in range(7)]
    edges = {name: " ".join(below) for here, below in pairwise(layers) for name in here}
    shown = tree(edges | dict.fromkeys(layers[-1], "") | {"web": " ".join(layers[0])})
    assert len(shown) == 8 + 6 * 8 * 8


def test_every_reason_that_is_reported_is_listed():
    found = set()
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Call) and node.args:
                name = getattr(node.func, "id", getattr(node.func, "attr", ""))
                first = node.args[0]
                if name in {"Obstacle", "Finding"} and isinstance(first, ast.Constant):
                    found.add(first.value)
    assert found <= {str(reason) for reason in Reason}
