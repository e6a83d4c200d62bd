from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.controller.fake_informer import added, deleted, obj, updated

from kubeloop.controller.predicates import (
    Predicate,
    all_of,
    always,
    annotations_changed,
    any_of,
    by_kind,
    generation_changed,
    labels_changed,
    labels_match,
    negate,
    version_changed,
)
from kubeloop.objects.meta import LabeledMeta

OLD = obj("web", version="1", generation=1, labels={"a": "1"}, annotations={"x": "1"})


def change(**meta: object):
    return updated(OLD, {"metadata": {**OLD["metadata"], **meta}})


RESYNC = change()
STATUS = change(resourceVersion="2")
SPEC = change(resourceVersion="2", generation=2)
LABELS = change(resourceVersion="2", labels={"a": "2"})
ANNOTATIONS = change(resourceVersion="2", annotations={})
FINALIZERS = change(resourceVersion="2", finalizers=["x"])
DELETING = change(resourceVersion="2", generation=2, deletionTimestamp="2030-01-01T00:00:00Z")
UPDATES = [RESYNC, STATUS, SPEC, LABELS, ANNOTATIONS, FINALIZERS, DELETING]


@pytest.mark.spec("C7")
@pytest.mark.parametrize(
    ("predicate", "passing"),
    [
        (version_changed(), [STATUS, SPEC, LABELS, ANNOTATIONS, FINALIZERS, DELETING]),
        (generation_changed(), [SPEC, DELETING]),
        (labels_changed(), [LABELS]),
        (annotations_changed(), [ANNOTATIONS]),
        (any_of(generation_changed(), labels_changed()), [SPEC, LABELS, DELETING]),
        (
            all_of(version_changed(), negate(generation_changed())),
            [STATUS, LABELS, ANNOTATIONS, FINALIZERS],
        ),
        (always, UPDATES),
        (all_of(), UPDATES),
        (any_of(), []),
    ],
)
def test_an_update_predicate_lets_exactly_these_updates_pass(predicate, passing):
    assert [event for event in UPDATES if predicate(event)] == passing


@pytest.mark.spec("C7")
@pytest.mark.parametrize(
    "predicate", [version_changed(), generation_changed(), labels_changed(), annotations_changed()]
)
def test_update_predicates_let_adds_and_deletes_pass(predicate):
    assert predicate(added(OLD))
    assert predicate(added(OLD, initial=True))
    assert predicate(deleted(OLD))
    assert predicate(deleted(OLD, stale=True))


@pytest.mark.spec("C7")
def test_by_kind_filters_each_notification_kind_alone():
    predicate: Predicate[dict[str, Any]] = by_kind(
        updated=lambda event: event.new["metadata"]["generation"] > 1,
        deleted=lambda event: event.stale,
    )
    assert predicate(added(OLD))
    assert not predicate(RESYNC)
    assert predicate(SPEC)
    assert not predicate(deleted(OLD))
    assert predicate(deleted(OLD, stale=True))
    assert not by_kind(added=lambda _event: False)(added(OLD))


@pytest.mark.spec("C7")
def test_labels_match_judges_the_new_object_of_an_update():
    predicate = labels_match("a=2")
    assert predicate(LABELS)
    assert not predicate(RESYNC)
    assert not predicate(added(OLD))
    assert labels_match("a=1")(deleted(OLD))


@pytest.mark.spec("C7")
def test_predicates_read_structs_as_well():
    class Slim(msgspec.Struct):
        metadata: LabeledMeta

    old, new = Slim(LabeledMeta(generation=1)), Slim(LabeledMeta(generation=2))
    assert generation_changed()(updated_struct(old, new))
    assert not generation_changed()(updated_struct(old, old))


def updated_struct(old: object, new: object):
    event = updated(OLD, OLD)
    return type(event)(event.key, old, new)
