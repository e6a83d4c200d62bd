"""FakeClient is held to the suite that holds devkube and a real control plane, as far as it goes.

The behaviours below are those that hold, and `docs/conformance.md` has them in a column; the others need
validation, defaults, managedFields, other controllers or the wire itself, and are tested on devkube.
"""

from __future__ import annotations

import importlib
import inspect
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kubeloop.testing.fake_client import FakeClient
from tests.conformance.kube import Kube

AREAS = "create update patch delete apply list watch subresources custom leases_events library"
# By area: what a controller can see of a server.
HELD = {
    "create": "own-metadata-ignored generation generate-name exists",
    "get": "not-found",
    "update": "uid version-changes no-op conflict unconditional missing generation status-untouched dry-run",
    "patch": "json json-test json-missing json-escape json-list merge rename uid missing resource-version no-op status dry-run",
    "delete": "precondition-uid precondition-version wait missing finalizer finalizer-again finalizer-added-late terminating-update terminating-create dry-run pod-unscheduled pod-finished generation collection collection-field recreate event-version",
    "apply": "force-elsewhere kind-required no-op conflict conflict-update removal removal-kept hand-over resource-version create-with-version labels dry-run",
    "list": "order all-namespaces exact too-large limit-continue remaining limit-large limit-zero-version fields-name fields-services",
    "watch": "events from-list old-version too-large enter-leave field-enter-leave single all-namespaces namespace-only recreated kind initial-events-empty initial-events-fresh no-bookmarks many",
    "scale": "put conflict patch missing",
    "lease": "microtime race transitions",
    "kubeloop": "informer-watch-list informer-list informer-check pager watch-resume election events event-series controller finalizers create-or-update typed",
}
IDS = [f"{area}.{name}" for area, names in HELD.items() for name in names.split()]
pytestmark = pytest.mark.virtual_time


def suite() -> dict[str, Callable[[Kube], Awaitable[None]]]:
    """Return the tests of the conformance suite by the behaviour that each proves."""
    found = {}
    for area in AREAS.split():
        for test in vars(importlib.import_module(f"tests.conformance.test_{area}")).values():
            for mark in getattr(test, "pytestmark", ()):
                if mark.name == "behaviour" and inspect.iscoroutinefunction(test):
                    found[mark.args[0].id] = test
    return found


@pytest.mark.parametrize("behaviour", IDS)
async def test_fake_client_behaves_as_a_server(behaviour: str) -> None:
    server = cast("Any", SimpleNamespace(name="fake"))
    kube = Kube(server, FakeClient(namespace="test"), cast("Any", None), "test")
    await suite()[behaviour](kube)
