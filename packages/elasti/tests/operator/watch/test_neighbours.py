from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Collection, Sequence
from types import SimpleNamespace
from typing import Any, cast

import msgspec
import pytest
from tests.operator.values import WEB, elastiservice

from elasti.operator.model.facts import TrafficPath
from elasti.operator.settings import OperatorSettings
from elasti.operator.watch.neighbours import Neighbours
from kubeloop.aio.tasks import finish
from kubeloop.client.client import Client
from kubeloop.client.errors import KubeError
from kubeloop.client.request import Request
from kubeloop.objects.core import ServicePort
from kubeloop.objects.meta import JsonObject, ObjectMeta, PartialObjectMetadata
from kubeloop.testing.fake_errors import api_error

BINDINGS, NAMESPACES = "targetgroupbindings", "namespaces"
AMBIENT = {"istio.io/dataplane-mode": "ambient"}
FORBIDDEN = api_error(403, "Forbidden", "cannot list")
NOT_FOUND = api_error(404, "NotFound", "no such resource")
BROKEN = api_error(500, "InternalError", "a webhook does not answer")

pytestmark = pytest.mark.virtual_time


class Listed:
    def __init__(self, items: AsyncIterator[Any]) -> None:
        self._items = items

    def __aiter__(self) -> AsyncIterator[Any]:
        return self._items

    async def to_list(self) -> list[Any]:
        return [one async for one in self._items]


class Server:
    """Namespaces and TargetGroupBindings; `errors` answer lists of a kind, `served` is asked for its group."""

    def __init__(self, *bindings: JsonObject, ambient: Collection[str] = ()) -> None:
        self.bindings, self.ambient = bindings, set(ambient)
        self.errors: dict[str, Exception] = {}
        self.served = True
        self.joins = asyncio.Event()
        self.asked: list[str] = []

    def resource(self, resource: str, _kind: Any = None, *, namespace: str = "") -> Any:
        plural = resource.rpartition("/")[2]

        def items(*, selector: str = "") -> Listed:
            return Listed(self._items(plural, namespace, selector))

        return SimpleNamespace(items=items, get=self._get, watch=self._watch)

    async def _items(self, plural: str, namespace: str, selector: str) -> AsyncIterator[Any]:
        self.asked.append(f"list {plural} {namespace or '*'} {selector}".strip())
        if plural in self.errors:
            raise self.errors[plural]
        if plural == NAMESPACES:
            for name in sorted(self.ambient):
                yield PartialObjectMetadata(metadata=ObjectMeta(name=name, labels=AMBIENT))
        for one in self.bindings if plural == BINDINGS else ():
            yield one

    async def _watch(self, *, selector: str, timeout_seconds: int) -> AsyncIterator[str]:
        self.asked.append(f"watch {selector}")
        if "watch" in self.errors:
            raise self.errors["watch"]
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(timeout_seconds):
                if not self.ambient:
                    await self.joins.wait()
                yield "ADDED"

    async def _get(self, name: str) -> PartialObjectMetadata:
        self.asked.append(f"get {name}")
        labels = AMBIENT if name in self.ambient else None
        return PartialObjectMetadata(metadata=ObjectMeta(name=name, labels=labels))

    async def send(self, request: Request) -> None:
        self.asked.append(request.path)
        if not self.served:
            raise NOT_FOUND


def binding(ports: Sequence[JsonObject] | None = None, kind: str | None = "ip") -> JsonObject:
    networking = {} if ports is None else {"networking": {"ingress": [{"ports": list(ports)}]}}
    spec = {"serviceRef": {"name": "web"}, **({"targetType": kind} if kind else {}), **networking}
    return {"metadata": {"name": "tgb", "namespace": "shop"}, "spec": spec}


def neighbours(server: Server, *namespaces: str) -> tuple[Neighbours, list[frozenset[str]]]:
    changes: list[frozenset[str]] = []
    settings = OperatorSettings(watch_namespaces=namespaces)
    return Neighbours(cast("Client", server), settings, changes.append), changes


def path(
    known: Neighbours, namespace: str = "shop", service: str = "web", **labels: str
) -> TrafficPath:
    es = elastiservice(service=service)
    meta = msgspec.structs.replace(es.metadata, namespace=namespace)
    public = msgspec.structs.replace(
        WEB, spec=msgspec.structs.replace(WEB.spec, ports=(ServicePort(80, target_port=8080),))
    )
    return known.path(msgspec.structs.replace(es, metadata=meta), public, labels)


def in_ambient(known: Neighbours, namespace: str = "shop", **labels: str) -> bool:
    return not path(known, namespace, "another", **labels).names_pods


async def test_a_change_is_reported_once_with_its_namespaces():
    server = Server(binding(), ambient=("mesh",))
    known, changes = neighbours(server)
    await known.look()
    await known.look()
    assert changes == [{"mesh", "shop"}]
    assert in_ambient(known, "mesh")
    assert not in_ambient(known)
    assert in_ambient(known, **AMBIENT), "its pods are in it"
    assert path(known).reason == "CloudFirewall"
    assert path(known).least_settle == 90
    assert path(known, service="api") == TrafficPath()
    server.ambient.clear()
    await known.look()
    assert changes[1:] == [{"mesh"}]


async def test_a_look_is_two_small_lists():
    server = Server()
    known, changes = neighbours(server)
    await known.look()
    assert server.asked == [
        "list namespaces * istio.io/dataplane-mode=ambient",
        "/apis/elbv2.k8s.aws/v1beta1",
        "list targetgroupbindings *",
    ]
    assert changes == []
    server.asked.clear()
    await known.look()
    assert len(server.asked) == 2


async def test_a_confined_operator_reads_its_namespaces_one_by_one():
    server = Server(ambient=("shop", "other"))
    known, _ = neighbours(server, "shop", "blog")
    await known.look()
    assert server.asked[:2] == ["get shop", "get blog"]
    assert in_ambient(known)
    assert not in_ambient(known, "other")


@pytest.mark.parametrize(
    ("found", "expected"),
    [
        (binding([{"port": 8080}]), "CloudFirewall"),
        (binding([{"port": 8080}, {"protocol": "TCP"}]), "Clear"),
        (binding([]), "Clear"),
        (binding(), "CloudFirewall"),  # rules of one's own, which are not known
        (binding(kind=None), "CloudFirewall"),
        (binding(kind="instance"), "Clear"),
    ],
)
async def test_what_a_binding_opens(found: JsonObject, expected: str):
    known, _ = neighbours(Server(found))
    await known.look()
    assert path(known).reason == expected
    assert path(known).least_settle == 90


async def test_a_binding_without_a_service_is_left_out():
    odd = binding()
    del odd["spec"]["serviceRef"]
    known, _ = neighbours(Server({"metadata": odd["metadata"]}, odd, binding()))
    await known.look()
    assert path(known).reason == "CloudFirewall"


async def test_a_kind_that_is_not_there_is_no_problem():
    server = Server()
    server.errors[BINDINGS] = NOT_FOUND
    server.served = False
    known, _ = neighbours(server)
    await known.look()
    assert path(known) == TrafficPath()
    assert "list targetgroupbindings *" not in server.asked


async def test_a_cluster_without_neighbours_is_asked_nothing_until_one_joins():
    server = Server()
    server.served = False
    known, changes = neighbours(server)
    await known.look()
    server.asked.clear()
    task = asyncio.create_task(known.run())
    await asyncio.sleep(500)
    assert server.asked == ["watch istio.io/dataplane-mode=ambient"]
    server.ambient.add("shop")
    server.joins.set()
    await asyncio.sleep(1)
    assert changes == [{"shop"}]
    server.ambient.clear()
    await asyncio.sleep(31)
    assert changes == [{"shop"}] * 2, "from then on it looks every half a minute"
    server.joins.clear()
    server.served, server.bindings = True, (binding(),)
    await asyncio.sleep(1300)
    assert path(known).least_settle == 90, "a kind that came later"
    await finish([task])


@pytest.mark.parametrize("kind", [NAMESPACES, BINDINGS, "watch"])
async def test_a_right_that_is_not_granted_is_asked_for_seldom(kind: str):
    server = Server()
    server.errors[kind] = FORBIDDEN
    server.served = kind == BINDINGS
    known, _ = neighbours(server)
    await known.look()
    task = asyncio.create_task(known.run())
    await asyncio.sleep(1500)
    asked = [one for one in server.asked if one.startswith(("watch", f"list {kind}"))]
    assert 1 <= len(asked) <= 3
    assert ("may not list" in path(known).message) is (kind != "watch")
    server.errors.clear()
    await asyncio.sleep(700)
    assert path(known) == TrafficPath()
    await finish([task])


@pytest.mark.parametrize("served", [True, False])
async def test_a_missing_right_is_reported_if_the_kind_is_there(served: bool):
    server = Server()
    server.errors[BINDINGS], server.served = FORBIDDEN, served
    known, _ = neighbours(server)
    await known.look()
    assert ("--traffic-path" in path(known).message) is served


async def test_namespaces_that_may_not_be_listed_are_reported():
    server = Server()
    server.errors[NAMESPACES] = FORBIDDEN
    known, _ = neighbours(server)
    await known.look()
    assert "may not list namespaces" in path(known).message


async def test_what_cannot_be_read_now_stays_as_it_was():
    server = Server(binding(), ambient=("shop",))
    known, changes = neighbours(server)
    await known.look()
    server.errors |= {BINDINGS: BROKEN}
    await known.look()
    server.errors |= {NAMESPACES: BROKEN}
    with pytest.raises(KubeError):
        await known.look()  # a leader does not begin without them: its slices would cut off a mesh
    assert in_ambient(known)
    assert path(known).least_settle == 90
    assert len(changes) == 1


async def test_bindings_that_cannot_be_read_keep_no_leader_from_its_work():
    server = Server()
    server.errors[BINDINGS] = BROKEN
    known, _ = neighbours(server)
    await known.look()


async def test_a_failure_ends_no_later_look():
    server = Server(ambient=("shop",))
    known, changes = neighbours(server)
    server.errors[NAMESPACES] = BROKEN
    task = asyncio.create_task(known.run())
    await asyncio.sleep(100)
    assert changes == []
    server.errors.clear()
    await asyncio.sleep(40)
    assert changes == [{"shop"}]
    await finish([task])
