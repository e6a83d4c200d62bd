"""The definition that the operator needs, and its rights."""

from __future__ import annotations

import msgspec

from elasti.api.crd import custom_resource_definition, missing_fields, schema_hash
from elasti.api.names import API_VERSION
from elasti.operator.rbac import CLUSTER_RULES, LEASE_RULES, NAMESPACED_RULES


def test_our_own_definition_lacks_nothing_and_kubeelastis_does():
    ours = custom_resource_definition()
    assert missing_fields(ours) == []
    theirs = msgspec.json.decode(msgspec.json.encode(ours))
    properties = theirs["spec"]["versions"][0]["schema"]["openAPIV3Schema"]["properties"]
    del properties["spec"]["properties"]["wake"]
    del properties["spec"]["properties"]["enabledPeriod"]["properties"]["timezone"]
    del properties["spec"]["properties"]["probeResponse"]["items"]["properties"]["method"]
    del properties["status"]["properties"]["resolverPorts"]
    assert missing_fields(theirs) == [
        "spec.enabledPeriod.timezone",
        "spec.probeResponse[].method",
        "spec.wake",
        "status.resolverPorts",
    ]
    assert schema_hash(theirs) != schema_hash(ours)
    assert API_VERSION


def test_no_right_is_for_everything():
    for rule in (*NAMESPACED_RULES, *CLUSTER_RULES, *LEASE_RULES):
        assert "*" not in (rule.group, *rule.resources, *rule.verbs)
        assert rule.why
