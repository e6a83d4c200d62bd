from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkube.controllers.garbage_collector import collectable
from devkube.controllers.garbage_graph import (
    FOREGROUND,
    ORPHAN,
    Collect,
    Disown,
    GraphNode,
    Keep,
    OwnershipGraph,
    OwnerState,
    decide,
)
from kubeloop.client.discovery import ResourceInfo
from kubeloop.objects.gvk import GroupVersionKind, GroupVersionResource
from kubeloop.objects.meta import OwnerReference

THINGS = GroupVersionResource("", "v1", "things")
THING = GroupVersionKind("", "v1", "Thing")


def ref(uid: str, *, block: bool = False) -> OwnerReference:
    return OwnerReference("v1", "Thing", uid, uid, block_owner_deletion=block or None)


def item(
    uid: str, *owners: OwnerReference, namespace: str = "default", **options: object
) -> GraphNode:
    made = GraphNode(
        resource=THINGS,
        kind=THING,
        namespace=namespace,
        name=uid,
        uid=uid,
        version="1",
        owners=owners,
    )
    return dataclasses.replace(made, **options)  # type: ignore[arg-type]


def test_an_object_of_an_unknown_owner_is_reconciled() -> None:
    graph = OwnershipGraph()
    assert graph.put(item("child", ref("owner"))) == {"child"}
    graph.put(item("owner"))
    assert graph.put(item("child", ref("owner"))) == set()


def test_the_dependents_of_a_deleted_object_are_reconciled() -> None:
    graph = OwnershipGraph()
    graph.put(item("owner"))
    graph.put(item("one", ref("owner")))
    graph.put(item("two", ref("owner")))
    assert graph.remove("owner") == {"one", "two"}
    assert graph.remove("owner") == set()


def test_a_reference_means_the_name_and_the_namespace_too() -> None:
    graph = OwnershipGraph()
    graph.put(item("owner", namespace="elsewhere"))
    assert graph.owner(ref("owner"), "default") is None
    assert graph.owner(ref("owner"), "elsewhere") is not None
    graph.put(item("wide", namespace=""))
    assert graph.owner(ref("wide"), "default") is not None
    misnamed = OwnerReference("v1", "Thing", "another", "wide")
    assert graph.owner(misnamed, "default") is None


def test_foreground_deletion_reconciles_the_dependents() -> None:
    graph = OwnershipGraph()
    graph.put(item("owner"))
    graph.put(item("child", ref("owner", block=True)))
    waiting = item("owner", is_deleting=True, finalizers=(FOREGROUND,))
    assert graph.put(waiting) == {"owner", "child"}
    assert graph.put(waiting) == set()
    assert [found.uid for found in graph.blocking("owner")] == ["child"]
    assert graph.remove("child") == {"owner"}


def test_a_waiting_owner_is_reconciled_when_nothing_blocks_it() -> None:
    graph = OwnershipGraph()
    graph.put(item("owner", is_deleting=True, finalizers=(FOREGROUND,)))
    graph.put(item("child", ref("owner", block=True)))
    assert "owner" in graph.put(item("child", ref("owner")))
    assert graph.blocking("owner") == []
    assert "owner" in graph.put(item("child"))
    assert graph.dependents("owner") == []


def test_an_owner_that_orphans_its_dependents_is_reconciled() -> None:
    graph = OwnershipGraph()
    graph.put(item("owner"))
    orphaning = item("owner", is_deleting=True, finalizers=(ORPHAN,))
    assert graph.put(orphaning) == {"owner"}
    assert orphaning.orphans_dependents
    assert not item("owner", finalizers=(ORPHAN,)).orphans_dependents


S, A, W = OwnerState.SOLID, OwnerState.ABSENT, OwnerState.WAITING


@pytest.mark.parametrize(
    ("states", "dependents", "verdict"),
    [
        ([], False, Keep()),
        ([S], False, Keep()),
        ([S, S], True, Keep()),
        ([S, A], False, Disown(keep=(ref("0"),))),
        ([W, S], False, Disown(keep=(ref("1"),))),
        ([A], False, Collect("Background")),
        ([A, A], True, Collect("Background")),
        ([W], False, Collect("Background")),
        ([W], True, Collect("Foreground")),
        ([W, A], True, Collect("Foreground")),
    ],
)
def test_what_becomes_of_an_object(
    states: list[OwnerState], dependents: bool, verdict: object
) -> None:
    child = item("child", *(ref(str(number)) for number in range(len(states))))
    known = {str(number): state for number, state in enumerate(states)}
    found = decide(child, known, has_dependents=dependents, dependent_waits=False)
    assert found == verdict


def test_a_circle_of_foreground_deletions_is_broken() -> None:
    child = item("child", ref("0", block=True))
    found = decide(child, {"0": W}, has_dependents=True, dependent_waits=True)
    assert found == Collect("Foreground", unblock=True)


def test_the_objects_own_finalizers_decide_about_its_dependents() -> None:
    for finalizer, propagation in ((ORPHAN, "Orphan"), (FOREGROUND, "Foreground")):
        child = item("child", ref("0"), finalizers=(finalizer,))
        found = decide(child, {"0": A}, has_dependents=True, dependent_waits=False)
        assert found == Collect(propagation)  # type: ignore[arg-type]


edges = st.lists(st.tuples(st.integers(0, 6), st.integers(0, 6)), max_size=12)


@given(edges=edges, removed=st.lists(st.integers(0, 6), max_size=6))
def test_the_graph_knows_exactly_the_references_that_are_there(
    edges: list[tuple[int, int]], removed: list[int]
) -> None:
    graph = OwnershipGraph()
    owners: dict[int, set[int]] = {}
    for child, owner in edges:
        owners.setdefault(child, set()).add(owner)
        graph.put(item(str(child), *(ref(str(o)) for o in sorted(owners[child]))))
    for gone in removed:
        dependents = {str(child) for child, known in owners.items() if gone in known} - {str(gone)}
        looked = graph.remove(str(gone))
        if gone in owners:
            assert looked >= dependents - {str(gone)}
        owners.pop(gone, None)
    for number in range(7):
        wanted = {str(child) for child, known in owners.items() if number in known}
        assert {found.uid for found in graph.dependents(str(number))} == wanted


def info(name: str, version: str = "v1", group: str = "", **verbs: bool) -> ResourceInfo:
    gvr = GroupVersionResource(group, version, name)
    return ResourceInfo(
        gvr=gvr, kind="K", namespaced=True, verbs=frozenset({"list", "watch", "delete"})
    )


def test_each_kind_is_watched_in_one_version_and_events_not_at_all() -> None:
    found = collectable(
        [info("a", "v1", "g"), info("a", "v1beta1", "g"), info("events"), info("b")]
    )
    assert [str(gvr) for gvr in found] == ["g/v1/a", "v1/b"]
