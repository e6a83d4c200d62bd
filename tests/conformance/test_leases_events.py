"""Leases and Events: the small objects that controllers lean on."""

from __future__ import annotations

from kubeloop.objects.patches import MergePatch
from tests.conformance.behaviours import behaviour
from tests.conformance.kube import Kube, fields_of, names, refused
from tests.conformance.manifests import config_map, lease

LEASES = "coordination.k8s.io/v1/leases"


def event(name: str, namespace: str, **fields: object):
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name},
        "involvedObject": {"kind": "ConfigMap", "namespace": namespace, "name": "a"},
        "reason": "Tested",
        "message": "hello",
        "type": "Normal",
        "source": {"component": "suite"},
        "firstTimestamp": "2030-01-01T00:00:00Z",
        "lastTimestamp": "2030-01-01T00:00:00Z",
        "count": 1,
        **fields,
    }


@behaviour("lease.microtime", "A Lease's times have microseconds, and keep them")
async def test_lease_times(kube: Kube) -> None:
    stamp = "2030-01-01T00:00:00.123456Z"
    made = await kube.of(LEASES).create(
        lease("a", holderIdentity="me", leaseDurationSeconds=15, renewTime=stamp, acquireTime=stamp)
    )
    assert made["spec"] == {
        "holderIdentity": "me",
        "leaseDurationSeconds": 15,
        "renewTime": stamp,
        "acquireTime": stamp,
    }


@behaviour("lease.time-precision", "A time without microseconds is refused")
async def test_lease_times_are_precise(kube: Kube) -> None:
    creation = kube.of(LEASES).create(lease("a", renewTime="2030-01-01T00:00:00Z"))
    error = await refused(creation, 400, "BadRequest")
    assert 'parsing time "2030-01-01T00:00:00Z"' in str(error)


@behaviour("lease.race", "Of two who take a Lease at the same version one wins, the other is 409")
async def test_a_lease_is_taken_once(kube: Kube) -> None:
    made = await kube.of(LEASES).create(lease("a", holderIdentity=""))
    one, two = dict(made), dict(made)
    one["spec"] = {"holderIdentity": "one"}
    two["spec"] = {"holderIdentity": "two"}
    await kube.of(LEASES).replace(one)
    await refused(kube.of(LEASES).replace(two), 409, "Conflict")
    assert (await kube.of(LEASES).get("a"))["spec"]["holderIdentity"] == "one"


@behaviour("lease.validation", "A Lease's duration is positive")
async def test_lease_durations(kube: Kube) -> None:
    error = await refused(kube.of(LEASES).create(lease("a", leaseDurationSeconds=0)), 422)
    assert fields_of(error) == {"spec.leaseDurationSeconds"}
    assert "must be greater than 0" in str(error)


@behaviour("lease.transitions", "A Lease keeps the transitions that a client writes")
async def test_lease_transitions(kube: Kube) -> None:
    await kube.of(LEASES).create(lease("a", leaseTransitions=1))
    patched = await kube.of(LEASES).patch("a", MergePatch({"spec": {"leaseTransitions": 2}}))
    assert patched["spec"]["leaseTransitions"] == 2


@behaviour("event.create", "An Event is about an object of its own namespace")
async def test_events_are_created(kube: Kube) -> None:
    made = await kube.of("v1/events").create(event("e", kube.namespace))
    assert made["reason"] == "Tested"
    wrong = event("f", "elsewhere")
    error = await refused(kube.of("v1/events").create(wrong), 422, "Invalid")
    assert fields_of(error) == {"involvedObject.namespace"}


@behaviour("event.two-groups", "An Event of core/v1 is one of events.k8s.io/v1, in other words")
async def test_events_have_two_forms(kube: Kube) -> None:
    await kube.of("v1/events").create(event("e", kube.namespace))
    found = await kube.of("events.k8s.io/v1/events").get("e")
    assert (found["apiVersion"], found["note"]) == ("events.k8s.io/v1", "hello")
    assert found["regarding"]["name"] == "a"
    assert found["deprecatedCount"] == 1
    assert found["deprecatedSource"] == {"component": "suite"}


@behaviour("event.fields", "Events can be selected by what they are about, their reason and type")
async def test_events_can_be_selected(kube: Kube) -> None:
    await kube.maps.create(config_map("a"))
    await kube.of("v1/events").create(event("e", kube.namespace))
    await kube.of("v1/events").create(event("f", kube.namespace, type="Warning", reason="Bad"))
    expected = {
        "involvedObject.name=a": ["e", "f"],
        "involvedObject.kind=ConfigMap,type=Warning": ["f"],
        "reason=Tested": ["e"],
        "source=suite,reason=Bad": ["f"],
        "involvedObject.name=b": [],
    }
    found = {s: await names(kube.of("v1/events"), field_selector=s) for s in expected}
    assert found == expected


@behaviour("event.series", "events.k8s.io/v1 asks for a time, a reporter and an action")
async def test_new_events_are_validated(kube: Kube) -> None:
    body = {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        "metadata": {"name": "e"},
        "eventTime": "2030-01-01T00:00:00.000000Z",
        "reportingController": "example.com/suite",
        "reportingInstance": "suite-1",
        "action": "Test",
        "reason": "Tested",
        "type": "Normal",
        "note": "hello",
        "regarding": {"kind": "ConfigMap", "namespace": kube.namespace, "name": "a"},
    }
    events = kube.of("events.k8s.io/v1/events")
    await events.create(body)
    for field in ("reportingController", "reportingInstance", "action", "reason"):
        partial = {**body, "metadata": {"name": "f"}, field: ""}
        error = await refused(events.create(partial), 422, "Invalid")
        assert field in str(error)
