"""Delete options as documents."""

from __future__ import annotations

import json

import pytest

from kubeloop.client.request import DeleteOptions, Preconditions, delete


def test_nothing_given_leaves_everything_to_the_server():
    assert DeleteOptions().to_json() == {"apiVersion": "v1", "kind": "DeleteOptions"}


def test_every_option_has_its_field():
    options = DeleteOptions(
        preconditions=Preconditions(uid="u", resource_version="7"),
        propagation="Foreground",
        grace_period=0,
        dry_run=True,
    )
    assert options.to_json() == {
        "apiVersion": "v1",
        "kind": "DeleteOptions",
        "preconditions": {"uid": "u", "resourceVersion": "7"},
        "propagationPolicy": "Foreground",
        "gracePeriodSeconds": 0,
        "dryRun": ["All"],
    }


def test_empty_preconditions_are_left_out():
    assert "preconditions" not in DeleteOptions(preconditions=Preconditions()).to_json()


def test_the_options_are_the_body_and_selectors_the_query():
    request = delete("/api/v1/pods", DeleteOptions(grace_period=5), {"labelSelector": "a=b"})
    assert (request.method, request.target) == ("DELETE", "/api/v1/pods?labelSelector=a%3Db")
    assert json.loads(request.body or b"")["gracePeriodSeconds"] == 5


def test_wrong_options_are_refused_with_their_value():
    with pytest.raises(ValueError, match=r"propagation 'foreground'.*Orphan"):
        DeleteOptions(propagation="foreground")  # type: ignore[arg-type]  # the mistake under test
    with pytest.raises(ValueError, match="grace_period -1 is negative"):
        DeleteOptions(grace_period=-1)
