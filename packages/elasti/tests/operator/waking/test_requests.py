"""What a reply to a wake request says of the set that wakes."""

from __future__ import annotations

from typing import Any

import msgspec
from tests.operator.values import elastiservice

from elasti.api.types import DependencyRef
from elasti.api.wire import IncomingReply, WakeOutcome, WakePart
from elasti.operator.waking.requests import WakeRequests
from elasti.operator.watch.directory import Directory
from kubeloop.controller.reconcile import Request


def parts(edges: dict[str, list[str]], name: str, **observed: Any) -> tuple[WakePart, ...]:
    directory = Directory()
    unused: Any = None
    for one, named in edges.items():
        spec = observed.get(one, {})
        depends_on = tuple(map(DependencyRef, named))
        directory.put(elastiservice(one, service=one[:63], depends_on=depends_on, **spec))
    requests = WakeRequests(
        waker=unused,
        directory=directory,
        autoscalers=unused,
        metrics=unused,
        is_synced=bool,
        serves=lambda _namespace, _service, _stopping: False,
    )
    found = directory.get(Request("shop", name))
    assert found is not None
    return requests._parts(found)


def test_each_part_comes_after_what_it_needs_and_itself_last():
    edges = {"web": ["api", "db"], "api": ["db", "cache"], "db": [], "cache": []}
    assert parts(edges, "web") == (
        WakePart("db", "db"),
        WakePart("cache", "cache"),
        WakePart("api", "api", (0, 1)),
        WakePart("web", "web", (2, 0)),
    )
    assert parts(edges, "db") == ()


def test_what_is_suspended_or_observed_is_not_a_part():
    edges = {"web": ["db", "cache"], "db": [], "cache": []}
    watched = {"db": {"suspend": True}, "cache": {"suspend": True, "policy": "Observe"}}
    assert parts(edges, "web", **watched) == ()


def test_the_largest_set_fits_into_what_a_resolver_reads():
    layers = [
        [f"{level}-{number:02}".ljust(253, "x") for number in range(32)] for level in range(7)
    ]
    edges = {name: layers[level + 1] for level in range(6) for name in layers[level]}
    edges |= {name: [] for name in layers[-1]} | {"web": layers[0]}
    found = parts(edges, "web")
    assert 64 <= len(found) <= 72
    assert found[-1].name == "web"
    message = f"web waits for {', '.join(layers[0])}"
    reply = IncomingReply(WakeOutcome.WAITS, message, parts=found)
    assert len(msgspec.json.encode(reply)) < 64 * 1024
