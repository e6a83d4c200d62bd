from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.history.audit import of_audit
from tests.history.events import Rotation, Scaled


def line(second: float, verb: str, resource: str, name: str, obj: Any, **more: Any) -> str:
    """One line of an audit log."""
    return json.dumps({
        "verb": verb,
        "user": {"username": "system:serviceaccount:elasti:elasti-operator"},
        "objectRef": {"resource": resource, "namespace": "shop", "name": name} | more,
        "responseStatus": {"code": more.pop("code", 200)},
        "responseObject": obj,
        "stageTimestamp": f"2026-11-19T10:00:{second:09.6f}Z",
    })  # fmt: skip


def slice_of(*ready: bool) -> dict[str, Any]:
    """An EndpointSlice of web."""
    return {
        "metadata": {"name": "web-1", "labels": {"kubernetes.io/service-name": "web"}},
        "endpoints": [{"conditions": {"ready": one}} for one in ready],
    }


def seen(path: Path, *lines: str) -> list[Scaled | Rotation]:
    """What a log of these lines says, by seconds of its minute."""
    path.write_text("\n".join(lines) + "\n")
    first = 1_795_082_400.0
    return list(of_audit(path, "shop", clock=-first))


def test_scale_and_rotation_are_read_in_the_servers_order(tmp_path: Path):
    events = seen(
        tmp_path / "audit.log",
        line(2.0, "patch", "deployments", "web", {"spec": {"replicas": 0}}, subresource="scale"),
        line(1.0, "create", "endpointslices", "web-1", slice_of(True, False)),
        line(3.0, "delete", "endpointslices", "web-1", {"kind": "Status"}),
    )

    assert [type(one) for one in events] == [Rotation, Scaled, Rotation]
    assert [one.endpoints for one in events if isinstance(one, Rotation)] == [1, 0]
    (scaled,) = [one for one in events if isinstance(one, Scaled)]
    assert (scaled.service, scaled.replicas) == ("web", 0)
    assert scaled.by == "system:serviceaccount:elasti:elasti-operator"
    assert scaled.at - events[0].at == pytest.approx(1.0)


def test_a_write_that_changes_no_replicas_is_not_a_scale(tmp_path: Path):
    same = {"spec": {"replicas": 2}}
    events = seen(
        tmp_path / "audit.log",
        line(1.0, "create", "deployments", "web", same),
        line(2.0, "update", "deployments", "web", same),
    )

    assert [one.replicas for one in events if isinstance(one, Scaled)] == [2]


def test_what_the_server_refused_and_other_namespaces_say_nothing(tmp_path: Path):
    refused = line(1.0, "patch", "deployments", "web", {"spec": {"replicas": 0}}, code=409)
    elsewhere = line(1.0, "create", "endpointslices", "web-1", slice_of(True), namespace="other")

    assert seen(tmp_path / "audit.log", refused, elsewhere) == []


def test_half_a_last_line_is_left_for_later_and_another_is_named(tmp_path: Path):
    path = tmp_path / "audit.log"
    whole = line(1.0, "create", "deployments", "web", {"spec": {"replicas": 1}})
    path.write_text(whole + "\n" + whole[:40])
    assert len(list(of_audit(path, "shop", clock=0.0))) == 1

    path.write_text(whole[:40] + "\n" + whole + "\n")
    with pytest.raises(ValueError, match=r"audit\.log:1:"):
        list(of_audit(path, "shop", clock=0.0))
