"""What containers request before and during a doze, and the patches in between."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from elasti.api.types import DozedContainer, DozeSpec
from elasti.operator.doze.requests import Originals, command, is_settled, noted, released, resize
from elasti.operator.model.doze import DozePod, DozeView
from kubeloop.objects.quantities import Quantity

ENTRY = DozedContainer("abc", "app", cpu="900m", dozed_cpu="1m")


def pod(cpu: str = "900m", *, name: str = "web-0", actual: str = "", **resources: Any) -> DozePod:
    requests = {"cpu": cpu, "memory": "512Mi"}
    status: dict[str, Any] = {"phase": "Running", "qosClass": "Burstable"}
    if actual:
        found = {"name": "app", "resources": {"requests": {"cpu": actual, "memory": "512Mi"}}}
        status["containerStatuses"] = [found]
    container = {"name": "app", "resources": {"requests": requests, **resources}}
    labels = {"pod-template-hash": "abc"}
    meta = {
        "name": name,
        "namespace": "shop",
        "uid": name,
        "resourceVersion": "7",
        "labels": labels,
    }
    whole = {"metadata": meta, "spec": {"containers": [container]}, "status": status}
    return msgspec.convert(whole, DozePod)


def test_a_patch_is_for_the_version_that_was_read_and_for_cpu_alone():
    assert resize(pod(), Originals([ENTRY]), dozed=True) == (
        {"op": "replace", "path": "/metadata/resourceVersion", "value": "7"},
        {"op": "replace", "path": "/spec/containers/0/resources/requests/cpu", "value": "1m"},
    )
    back = resize(pod("1m"), Originals([ENTRY]), dozed=False)
    assert back[1]["value"] == "900m"


@pytest.mark.parametrize("dozed", [False, True])
@pytest.mark.parametrize("cpu", ["2", "300m"])
def test_another_writers_value_is_left_alone(cpu: str, dozed: bool):
    assert resize(pod(cpu), Originals([ENTRY]), dozed=dozed) == ()


def test_quantities_are_compared_and_not_their_text():
    assert resize(pod("0.9"), Originals([ENTRY]), dozed=True)
    assert not resize(pod("0.9"), Originals([ENTRY]), dozed=False)


@pytest.mark.parametrize(
    ("view", "wanted"),
    [
        (DozeView(), "1m"),
        (DozeView(minimum={"cpu": Quantity.parse("50m")}), "50m"),
        (DozeView(ratio={"cpu": Quantity.parse("10")}), "200m"),
    ],
)
def test_limit_ranges_are_kept(view: DozeView, wanted: str):
    found = noted((), view._replace(pods=(pod(limits={"cpu": "2"}),)), DozeSpec())
    assert [entry.dozed_cpu for entry in found] == [wanted]


def test_memory_shrinks_to_the_largest_use_of_a_template():
    pods = (pod(), pod(name="web-1"))
    usage = {("web-0", "app"): 100 * 2**20, ("web-1", "app"): 200 * 2**20}
    (entry,) = noted((), DozeView(pods=pods, usage=usage), DozeSpec(memory="Usage"))
    assert (entry.memory, entry.dozed_memory) == ("512Mi", "220Mi")
    (kept,) = noted((), DozeView(pods=pods), DozeSpec(memory="Usage"))
    assert not kept.memory


def test_a_container_that_requests_no_more_than_it_would_is_not_noted():
    assert noted((), DozeView(pods=(pod("1m"),)), DozeSpec()) == ()


@pytest.mark.parametrize(
    ("actual", "settled"), [("", True), ("900m", True), ("899m", True), ("1m", False)]
)
def test_a_kubelet_confirms_what_its_cgroup_can_say(actual: str, settled: bool):
    assert is_settled(pod("900m", actual=actual), Originals([ENTRY])) is settled


def test_only_what_a_kubelet_confirmed_is_released():
    pods = [pod("1m", actual="1m"), pod("1m", actual="900m", name="web-1")]
    assert released(pods, Originals([ENTRY])) == (899, 0)


def test_a_person_gets_the_command_that_restores_a_pod():
    assert command(pod("1m"), Originals([ENTRY])) == (
        "kubectl patch pod web-0 -n shop --subresource resize -p"
        ' \'{"spec":{"containers":[{"name":"app","resources":{"requests":{"cpu":"900m"}}}]}}\''
    )
    assert command(pod(), Originals([ENTRY])) == ""
