"""Which ElastiService owns a Service, and which share a target."""

from __future__ import annotations

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.values import NOW, elastiservice

from elasti.api.types import (
    ElastiServiceStatus,
    EnabledPeriod,
    ScaleTargetRef,
)
from elasti.operator.watch.directory import Directory
from kubeloop.controller.reconcile import Request


def test_the_oldest_owns_a_service_whatever_the_order():
    first = elastiservice("b", created="2030-01-01T00:00:00Z")
    second = elastiservice("a", created="2030-01-02T00:00:00Z")
    for order in ([first, second], [second, first]):
        directory = Directory()
        for es in order:
            directory.put(es)
        owner = directory.owner("shop", "web")
        assert owner is not None
        assert owner.name == "b"
        assert directory.naming("shop", "web") == (Request("shop", "a"), Request("shop", "b"))
        directory.remove(Request("shop", "b"))
        heir = directory.owner("shop", "web")
        assert heir is not None
        assert heir.name == "a"


def test_what_is_wrong_with_a_spec_is_found_out_for_each_spec():
    directory, request = Directory(), Request("shop", "web")
    bad = elastiservice(enabled_period=EnabledPeriod(schedule="never"))
    directory.put(bad)
    details = directory.get(request)
    assert details is not None
    assert "spec.enabledPeriod.schedule" in str(details.problems[0])
    directory.put(bad)
    assert directory.get(request) is details
    status = ElastiServiceStatus(last_scaled_up_time="2030-01-01T00:00:01Z")
    directory.put(msgspec.structs.replace(bad, status=status))
    later = directory.get(request)
    assert later is not None
    assert (later.problems, later.last_scaled_up) == (details.problems, NOW.timestamp() + 1)
    directory.put(elastiservice())
    mended = directory.get(request)
    assert mended is not None
    assert mended.problems == ()


def test_those_who_share_a_target_are_found():
    directory = Directory()
    directory.put(elastiservice("a", service="one"))
    directory.put(elastiservice("b", service="two"))
    assert directory.sharing(Request("shop", "a")) == (Request("shop", "a"), Request("shop", "b"))
    moved = ScaleTargetRef("apps/v1", "Deployment", "other")
    directory.put(elastiservice("b", service="two", scale_target_ref=moved))
    assert directory.sharing(Request("shop", "a")) == (Request("shop", "a"),)
    assert directory.sharing(Request("shop", "nobody")) == ()


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from("xy"), st.booleans()), max_size=20)
)
def test_the_directory_keeps_no_trace_of_what_is_gone(steps):
    directory, present = Directory(), {}
    for name, service, there in steps:
        if there:
            directory.put(elastiservice(name, service=service))
            present[name] = service
        else:
            directory.remove(Request("shop", name))
            present.pop(name, None)
    for service in "xy":
        named = {request.name for request in directory.naming("shop", service)}
        assert named == {name for name, used in present.items() if used == service}
    assert len(directory) == len(present)
