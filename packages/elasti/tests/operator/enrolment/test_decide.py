"""Which ElastiService a Service should have, as a table."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
from tests.operator.enrolment.subjects import (
    DB,
    NOW,
    SINCE,
    WEB,
    body,
    decided,
    existing,
    namespace,
    service,
    workload,
    written,
)

from elasti.api.names import (
    DRAIN_KEY,
    ENROLLED_FROM_ANNOTATION,
    ENROLLED_LABEL,
    PRIVATE_LABEL,
)
from elasti.operator.enrolment.decide import Action, template_spec
from kubeloop.objects.core import Service


def test_the_generated_object():
    found = decided(service(sleep="observe"))
    assert found.action is Action.ENROL
    meta, spec = body(found)["metadata"], body(found)["spec"]
    assert (meta["name"], meta["namespace"]) == ("web", "shop")
    assert meta["labels"] == {ENROLLED_LABEL: "true"}
    (owner,) = meta["ownerReferences"]
    assert owner == {"apiVersion": "v1", "kind": "Service", "name": "web", "uid": "uid-web"}
    assert meta["annotations"][ENROLLED_FROM_ANNOTATION].startswith("default/")
    assert spec == {
        "service": "web",
        "scaleTargetRef": {"apiVersion": "apps/v1", "kind": "Deployment", "name": "web"},
        "cooldownPeriod": 60,
        "policy": "Observe",
        "suspend": True,
    }


@pytest.mark.parametrize(
    ("own", "inherited", "action", "policy"),
    [
        ("", "", Action.IGNORE, ""),
        ("observe", "", Action.ENROL, "Observe"),
        ("", "observe", Action.ENROL, "Observe"),
        ("enforce", "", Action.ENROL, "Enforce"),
        ("enforce", "observe", Action.ENROL, "Enforce"),
        ("observe", "enforce", Action.ENROL, "Observe"),
        ("", "enforce", Action.ENROL, "Observe"),  # for a day
        ("never", "enforce", Action.LEAVE, ""),
        ("enforce", "never", Action.LEAVE, ""),
        ("yes", "", Action.LEAVE, ""),
        ("", "true", Action.LEAVE, ""),
        ("on", "enforce", Action.LEAVE, ""),
    ],
)
def test_labels(own: str, inherited: str, action: Action, policy: str):
    found = decided(service(sleep=own), namespace=namespace(inherited))
    assert found.action is action
    assert ((found.body or {}).get("spec") or {}).get("policy", "") == policy


LEFT = {
    "HeadlessService": service(sleep="observe", clusterIP="None"),
    "ExternalNameService": service(sleep="observe", type="ExternalName", clusterIP="", selector={}),
    "NoSelector": service(sleep="observe", selector={}),
    "NoTCPPort": service(sleep="observe", ports=[{"port": 53, "protocol": "UDP"}]),
    "NoWorkload": service(sleep="observe", app="other"),
    "UnknownLabel": service(sleep="On"),
    "TemplateMissing": service(sleep="observe", template="nightly"),
    "TemplateName": service(sleep="observe", template="default,slow"),
}


@pytest.mark.parametrize("reason", LEFT)
def test_a_service_that_cannot_be_enrolled_has_a_reason(reason: str):
    found = decided(LEFT[reason])
    assert (found.action, found.reason) == (Action.LEAVE, reason)
    assert found.message
    assert found.body is None


NOWHERE = {
    "name": "nights",
    "keep": "Asleep",
    "during": "Mon-Fri 20:00-08:00",
    "timezone": "Berlin",
}
"""A zone that the definition lets pass."""


@pytest.mark.parametrize(
    ("reason", "changes"),
    [
        ("SeveralWorkloads", {"workloads": {WEB: workload(), DB: workload()}}),
        ("AtZero", {"workloads": {WEB: workload(replicas=0)}}),
        ("HandWritten", {"elastiservices": [written("by-hand", "web")]}),
        ("NameTaken", {"elastiservices": [written("web", "other", DB)]}),
        ("WorkloadTaken", {"elastiservices": [written("other", "other")]}),
        ("TemplateMissing", {"templates": {}}),
        ("TemplateInvalid", {"templates": {"default": {"spec": {"cooldownPeriod": -1}}}}),
        (
            "TemplateInvalid",
            {"templates": {"default": {"spec": {"triggers": [{"type": "guess"}]}}}},
        ),
        ("TemplateInvalid", {"templates": {"default": {"spec": {"schedules": [NOWHERE]}}}}),
        ("SystemNamespace", {"own_namespace": "shop"}),
    ],
)
def test_surroundings_that_forbid_it(reason: str, changes: dict[str, Any]):
    found = decided(service(sleep="observe"), **changes)
    assert (found.action, found.reason) == (Action.LEAVE, reason)


def test_services_of_the_cluster_are_left_out():
    own = service(sleep="observe")
    assert own.metadata.labels is not None
    own.metadata.labels["kubernetes.io/cluster-service"] = "true"
    assert decided(own).reason == "ClusterService"


def test_private_and_ending_services_are_ignored():
    private = service(sleep="observe")
    assert private.metadata.labels is not None
    private.metadata.labels[PRIVATE_LABEL] = "true"
    assert decided(private).action is Action.IGNORE
    ending = namespace("observe", deletionTimestamp=SINCE)
    assert decided(service(), namespace=ending).action is Action.IGNORE


@pytest.mark.parametrize(
    ("own", "beside", "reason"),
    [
        ("", service("also"), "SeveralServices"),
        ("observe", service("also"), "Enrolled"),
        ("observe", service("also", "observe"), "SeveralServices"),
        ("observe", service("also", "never"), "NeverBeside"),
        ("", service("also", "never"), "NeverBeside"),
        ("", service("headless", clusterIP="None"), "Enrolled"),
        ("", service("other", app="other"), "Enrolled"),
    ],
)
def test_two_services_of_one_workload(own: str, beside: Service, reason: str):
    found = decided(service(sleep=own), beside, namespace=namespace("observe"))
    assert found.reason == reason


def test_a_draining_service_still_has_its_workload():
    drained = service(sleep="observe", selector={"app": "web", DRAIN_KEY: "true"})
    assert decided(drained).workload == WEB


def test_the_services_template_comes_before_the_namespaces():
    both = decided(service(sleep="observe", template="slow"), namespace=namespace("", "default"))
    assert both.template == "slow"
    assert decided(service(sleep="observe"), namespace=namespace("", "slow")).template == "slow"


def test_a_template_sets_its_own_fields_only():
    given = {"cooldownPeriod": 5, "targets": [{}], "wake": {"page": {}, "maxHeld": 1}}
    assert template_spec({"spec": given}) == {"cooldownPeriod": 5, "wake": {"page": {}}}


def test_what_was_applied_is_not_applied_again():
    one = service(sleep="observe")
    made = existing(one)
    assert decided(one, elastiservices=[made]).action is Action.KEEP
    edited = msgspec.structs.replace(
        made, spec=msgspec.structs.replace(made.spec, cooldown_period=7)
    )
    assert decided(one, elastiservices=[edited]).action is Action.KEEP
    changed = {"default": {"spec": {"cooldownPeriod": 90}}}
    found = decided(one, elastiservices=[made], templates=changed)
    assert (found.action, body(found)["spec"]["cooldownPeriod"]) == (Action.ENROL, 90)


@pytest.mark.parametrize(
    ("label", "reason"), [("", "LabelRemoved"), ("never", "Never"), ("no", "UnknownLabel")]
)
def test_labels_remove_it(label: str, reason: str):
    made = existing(service(sleep="enforce"))
    found = decided(service(sleep=label), elastiservices=[made])
    assert (found.action, found.reason, found.existing) == (Action.REMOVE, reason, made)


def test_one_written_by_hand_replaces_it():
    one = service(sleep="enforce")
    found = decided(one, elastiservices=[existing(one), written("by-hand", "web")])
    assert (found.action, found.reason) == (Action.REMOVE, "HandWritten")


@pytest.mark.parametrize(
    "changes",
    [
        {"workloads": {}},
        {"workloads": {WEB: workload(), DB: workload()}},
        {"templates": {}},
        {"templates": {"default": {"spec": {"cooldownPeriod": 60, "schedules": [NOWHERE]}}}},
    ],
)
def test_other_trouble_changes_nothing(changes: dict[str, Any]):
    one = service(sleep="enforce")
    found = decided(one, elastiservices=[existing(one)], **changes)
    assert found.action is Action.LEAVE
    assert found.existing is not None


def test_a_sleeping_target_of_ours_stays_enrolled():
    one = service(sleep="enforce")
    asleep = {WEB: workload(replicas=0)}
    assert decided(one, elastiservices=[existing(one)], workloads=asleep).action is Action.KEEP


def test_another_workload_means_a_new_object():
    made = existing(service(sleep="enforce"))
    moved = decided(service(sleep="enforce", app="db"), elastiservices=[made])
    assert (moved.action, moved.reason) == (Action.REMOVE, "WorkloadChanged")


def test_a_lookalike_without_the_owner_is_not_ours():
    fake = written("fake", "elsewhere", DB, labels={ENROLLED_LABEL: "true"})
    assert decided(service(), elastiservices=[fake]).action is Action.IGNORE


def test_the_namespaces_enforce_waits_for_a_day_of_observation():
    one, enforced = service(), namespace("enforce")
    first = decided(one, namespace=enforced)
    assert first.recheck == 86400
    made = existing(one, SINCE, namespace=enforced)
    early = decided(one, namespace=enforced, elastiservices=[made], now=NOW + 3600)
    assert (early.action, early.recheck) == (Action.KEEP, 82800)
    late = decided(one, namespace=enforced, elastiservices=[made], now=NOW + 86400)
    assert (late.action, body(late)["spec"]["policy"]) == (Action.ENROL, "Enforce")
    at_once = decided(one, namespace=enforced, observe_for=0.0)
    assert body(at_once)["spec"]["policy"] == "Enforce"


def test_the_namespaces_enforce_stays_when_observations_are_gone():
    one, enforced = service(), namespace("enforce")
    made = existing(one, namespace=enforced, observe_for=0.0)
    assert made.spec.policy == "Enforce"
    assert decided(one, namespace=enforced, elastiservices=[made]).action is Action.KEEP
