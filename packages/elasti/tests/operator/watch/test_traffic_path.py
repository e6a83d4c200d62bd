"""What reads slices beside nodes: the condition TrafficPath and the engage settle, case by case."""

from __future__ import annotations

import msgspec
import pytest
from tests.operator.values import WEB

from elasti.api.defaults import CLOUD_ENGAGE_SETTLE
from elasti.operator.model.facts import TrafficPath
from elasti.operator.settings import OperatorSettings
from elasti.operator.watch.neighbours import NEG_STATUS, Bound, Surroundings, traffic_path
from kubeloop.objects.core import Service, ServicePort


def service(*targets: int | str, neg: bool = False) -> Service:
    ports = tuple(ServicePort(80, target_port=target) for target in targets)
    annotations = {NEG_STATUS: "{}"} if neg else None
    meta = msgspec.structs.replace(WEB.metadata, annotations=annotations)
    return msgspec.structs.replace(
        WEB, metadata=meta, spec=msgspec.structs.replace(WEB.spec, ports=ports)
    )


PLAIN, NAMED = service(8080), service("http")
NEG, NAMED_NEG = service(8080, neg=True), service("http", neg=True)
NODES, PODS, OWN = ((way, "tgb") for way in Bound)


def found(
    public: Service = PLAIN,
    binding: tuple[Bound, str] | None = None,
    *,
    unreadable: str = "",
    settle: int | str = "Auto",
    names_pods: bool = True,
    ambient: bool = False,
) -> TrafficPath:
    target_ref = "Pod" if names_pods else "None"
    settings = OperatorSettings(target_ref=target_ref, port_range=(30000, 30009))
    return traffic_path(public, settle, Surroundings(ambient, binding, unreadable), settings)


@pytest.mark.parametrize(
    ("path", "reason"),
    [
        (found(), "Clear"),
        (found(names_pods=False), "Clear"),
        (found(ambient=True), "MeshPort"),
        (found(ambient=True, names_pods=False), "Clear"),
        (found(PLAIN, OWN), "CloudFirewall"),
        (found(NAMED, OWN), "CloudFirewall"),
        (found(PLAIN, PODS), "Clear"),
        (found(PLAIN, NODES), "Clear"),
        (found(PLAIN, NODES, names_pods=False), "Clear"),
        (found(PLAIN, PODS, names_pods=False), "NoTargetRef"),
        (found(PLAIN, OWN, names_pods=False, ambient=True), "NoTargetRef"),
        (found(NEG), "CloudFirewall"),
        (found(service("http", 9090, neg=True)), "CloudFirewall"),
        (found(NAMED_NEG), "Clear"),
        (found(NAMED_NEG, names_pods=False), "NoTargetRef"),
        (found(unreadable="may not"), "Unreadable"),
        (found(PLAIN, OWN, unreadable="may not"), "CloudFirewall"),
    ],
)
def test_what_is_in_the_way(path: TrafficPath, reason: str):
    assert path.reason == reason
    assert path.holds is {"Clear": True, "Unreadable": None}.get(reason, False)
    assert bool(path.message) is (reason != "Clear")
    assert ("30000-30009" in path.message) is (reason == "CloudFirewall")


@pytest.mark.parametrize(
    ("path", "settle"),
    [
        (found(), 0.0),
        (found(ambient=True, names_pods=False), 0.0),
        (found(PLAIN, NODES), CLOUD_ENGAGE_SETTLE),
        (found(NEG), CLOUD_ENGAGE_SETTLE),
        (found(PLAIN, OWN, settle=20), 20.0),
        (found(settle="5m"), CLOUD_ENGAGE_SETTLE),  # longer, until it can be read
    ],
)
def test_the_settle_that_a_service_needs(path: TrafficPath, settle: float):
    assert path.least_settle == settle


def test_a_load_balancer_takes_ninety_seconds():
    assert CLOUD_ENGAGE_SETTLE == 90.0
