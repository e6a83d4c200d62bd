"""What people see of an ElastiService, from its status alone."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

import elasti
from elasti.api.conditions import MAY_SLEEP, READY, Obstacle, Reason
from elasti.api.types import (
    ElastiService,
    ElastiServiceSpec,
    ElastiServiceStatus,
    ScaleTargetRef,
    StatusCondition,
)
from elasti.api.view import row_of

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
            [entry(READY, "True", "InOrder", "01"), entry(MAY_SLEEP, "False", "InUse", "07")],
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
