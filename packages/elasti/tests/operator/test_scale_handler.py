"""Scales, against a server that has other writers."""

from __future__ import annotations

import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any

import msgspec
import pytest
from tests.log_lines import capture_logs

from elasti.operator.model.targets import ScaleTarget, ScaleView
from elasti.operator.scale_handler import (
    ManagedObject,
    NotScalable,
    ScaleDown,
    ScaleHandler,
    ScaleUp,
    TargetScale,
)
from kubeloop.client.discovery import ResourceInfo
from kubeloop.client.errors import Conflict, KubeError, Status
from kubeloop.objects.core import Pod, PodStatus
from kubeloop.objects.gvk import GroupVersionResource
from kubeloop.objects.meta import SlimMeta
from kubeloop.objects.patches import ApplyPatch
from kubeloop.testing.fake_errors import api_error

WEB = ScaleTarget.of("shop", "apps/v1", "Deployment", "web")


@dataclasses.dataclass
class FakeServer:
    """One scale. `meddle` runs before each write, as another writer would."""

    replicas: int = 0
    uid: str = "u1"
    version: int = 1
    subresources: frozenset[str] = frozenset({"scale"})
    learned: frozenset[str] = frozenset()
    meddle: Callable[[FakeServer], None] = lambda _server: None
    writes: int = 0
    reads: int = 0
    phases: list[str] = dataclasses.field(default_factory=list)
    may_list: bool = True
    owner: str = ""
    refuses: int = 0  #: the code that answers an apply

    # What a client has
    @property
    def mapper(self) -> FakeServer:
        return self

    async def by_kind(self, api_version: str, kind: str) -> ResourceInfo:
        return ResourceInfo(
            gvr=GroupVersionResource("apps", "v1", "deployments"),
            kind=kind,
            namespaced=True,
            subresources=self.subresources,
        )

    async def refresh(self) -> None:
        self.subresources |= self.learned

    def resource(self, _gvr: object, kind: object = None) -> FakeServer | FakeObjects:
        return FakeObjects(self) if kind is ManagedObject else self

    async def items(self, *, selector: str, namespace: str) -> AsyncIterator[Pod]:
        assert (selector, namespace) == ("app=web", WEB.namespace)
        if not self.may_list:
            raise api_error(403, "Forbidden", "no")
        for phase in self.phases:
            yield Pod(status=PodStatus(phase=phase))

    def subresource(self, _name: str, _kind: object) -> FakeServer:
        return self

    # What a subresource has
    async def get(self, name: str, *, namespace: str) -> TargetScale:
        self.reads += 1
        return self._shown(name, namespace)

    def _shown(self, name: str, namespace: str) -> TargetScale:
        scale = TargetScale(SlimMeta(name, namespace, self.uid, str(self.version)))
        scale.spec.replicas = self.replicas
        # The pods of a former life are still there: they must not be counted.
        scale.status.replicas = 1
        scale.status.selector = "app=web"
        return scale

    async def replace(self, scale: TargetScale, **_options: Any) -> TargetScale:
        self._write(scale.metadata.resource_version, scale.spec.replicas)
        self.owner = ""
        return self._shown(scale.metadata.name, scale.metadata.namespace)

    async def patch(
        self, name: str, patch: ApplyPatch, *, namespace: str, field_manager: str, force: bool
    ) -> TargetScale:
        if self.refuses:
            raise api_error(self.refuses, "Refused", "not applied here")
        assert force, "it takes the field from its former owner"
        # Absent means zero in a Scale: the field is in every apply, and the version that was read.
        self._write(patch.content["metadata"]["resourceVersion"], patch.content["spec"]["replicas"])
        self.owner = field_manager
        return self._shown(name, namespace)

    def _write(self, version: str, replicas: int) -> None:
        self.meddle(self)
        if version != str(self.version):
            raise Conflict(Status(status="Failure", reason="Conflict", code=409))
        self.replicas = replicas
        self.bump()

    def bump(self) -> None:
        self.version += 1
        self.writes += 1

    def handler(self) -> ScaleHandler:
        return ScaleHandler(self)  # type: ignore[arg-type]  # all that a handler uses of a client


@dataclasses.dataclass
class FakeObjects:
    """The object that the scale is of."""

    server: FakeServer

    async def get(self, name: str, *, namespace: str) -> ManagedObject:
        entry = {"manager": self.server.owner, "operation": "Apply", "subresource": "scale"}
        metadata = {"name": name, "namespace": namespace, "managedFields": [entry]}
        return msgspec.convert({"metadata": metadata}, ManagedObject)


def times(count: int) -> Callable[[FakeServer], None]:
    left = [count]

    def meddle(server: FakeServer) -> None:
        if left[0]:
            left[0] -= 1
            server.version += 1

    return meddle


async def test_a_wake_up_asks_for_the_minimum():
    server = FakeServer(replicas=0)
    outcome, view = await server.handler().scale_up(WEB, 2)
    assert (outcome, view.replicas, server.replicas) == (ScaleUp.SCALED, 2, 2)


async def test_old_pods_are_not_taken_for_being_up():
    server = FakeServer(replicas=0)  # status.replicas is 1 all the time
    assert (await server.handler().scale_up(WEB, 1))[0] is ScaleUp.SCALED


async def test_a_target_that_is_up_is_left_unchanged():
    server = FakeServer(replicas=5)
    outcome, view = await server.handler().scale_up(WEB, 2)
    assert (outcome, view.replicas, server.writes) == (ScaleUp.ALREADY_UP, 5, 0)


async def test_what_a_cache_shows_saves_the_reading():
    server = FakeServer(replicas=0, version=7)
    outcome, view = await server.handler().scale_up(WEB, 2, seen=ScaleView("u1", 0, "7"))
    assert (outcome, view.replicas, server.replicas) == (ScaleUp.SCALED, 2, 2)
    assert (server.reads, server.writes) == (0, 1)


@pytest.mark.parametrize("replicas", [0, 5])
async def test_an_old_cache_decides_nothing(replicas: int):
    server = FakeServer(replicas=replicas, version=8)
    outcome, view = await server.handler().scale_up(WEB, 2, seen=ScaleView("u1", 0, "7"))
    expected = (ScaleUp.ALREADY_UP, 5) if replicas else (ScaleUp.SCALED, 2)
    assert (outcome, view.replicas) == expected
    assert server.reads == 1


async def test_being_up_is_never_reported_from_a_cache():
    server = FakeServer(replicas=0, version=8)
    outcome, _ = await server.handler().scale_up(WEB, 1, seen=ScaleView("u1", 1, "7"))
    assert (outcome, server.replicas, server.reads) == (ScaleUp.SCALED, 1, 1)


async def test_a_wake_up_survives_conflicts():
    server = FakeServer(replicas=0, meddle=times(5))
    assert (await server.handler().scale_up(WEB, 1))[0] is ScaleUp.SCALED
    assert server.replicas == 1


async def test_a_wake_up_that_never_gets_through_says_so():
    server = FakeServer(replicas=0, meddle=times(1000))
    with pytest.raises(Conflict):
        await server.handler().scale_up(WEB, 1)


ASLEEP = ScaleView("u1", 0, "1")


@pytest.mark.parametrize("seen", [ASLEEP, None])
async def test_what_recreates_stays_at_zero_while_it_has_pods(seen: ScaleView | None):
    server = FakeServer(phases=["Succeeded", "Running"])
    outcome, view = await server.handler().scale_up(WEB, 1, seen=seen, recreates=True)
    assert (outcome, view.replicas, server.writes) == (ScaleUp.WAITS, 0, 0)
    # Its containers have ended: what keeps the object is a finalizer.
    server.phases = ["Succeeded", "Failed"]
    outcome, view = await server.handler().scale_up(WEB, 1, seen=seen, recreates=True)
    assert (outcome, view.replicas) == (ScaleUp.SCALED, 1)


async def test_what_recreates_and_is_not_at_zero_waits_for_nothing():
    server = FakeServer(replicas=1, phases=["Running"])
    outcome, view = await server.handler().scale_up(WEB, 2, recreates=True)
    assert (outcome, view.replicas) == (ScaleUp.SCALED, 2)


async def test_without_the_right_to_list_pods_targets_wake_as_before():
    server = FakeServer(phases=["Running"], may_list=False)
    assert (await server.handler().scale_up(WEB, 1, recreates=True))[0] is ScaleUp.SCALED


async def test_a_park_needs_the_same_target():
    server = FakeServer(replicas=2)
    handler = server.handler()
    assert (await handler.park(WEB, ScaleView("u1", 1, "")))[0] is ScaleDown.CHANGED
    assert (await handler.park(WEB, ScaleView("other", 2, "")))[0] is ScaleDown.CHANGED
    assert server.replicas == 2
    outcome, view = await handler.park(WEB, ScaleView("u1", 2, ""))
    assert (outcome, view.replicas, server.replicas) == (ScaleDown.PARKED, 0, 0)


async def test_a_park_tries_three_times():
    server = FakeServer(replicas=1, meddle=times(2))
    assert (await server.handler().park(WEB, ScaleView("u1", 1, "")))[0] is ScaleDown.PARKED
    server = FakeServer(replicas=1, meddle=times(3))
    assert (await server.handler().park(WEB, ScaleView("u1", 1, "")))[0] is ScaleDown.CHANGED
    assert server.replicas == 1


async def test_a_park_gives_way_to_another_writer():
    def scale_to_three(server: FakeServer) -> None:
        if server.replicas == 1:
            server.replicas = 3
            server.version += 1

    server = FakeServer(replicas=1, meddle=scale_to_three)
    assert (await server.handler().park(WEB, ScaleView("u1", 1, "")))[0] is ScaleDown.CHANGED
    assert server.replicas == 3


async def test_a_park_owns_the_replicas_and_a_wake_up_hands_them_back():
    server = FakeServer(replicas=2)
    handler = server.handler()
    await handler.park(WEB, ScaleView("u1", 2, ""))
    assert (server.replicas, server.owner) == (0, "elasti-operator")
    await handler.scale_up(WEB, 1)
    assert (server.replicas, server.owner) == (1, "")


async def test_what_another_version_parked_is_taken_at_the_version_that_was_seen():
    server = FakeServer(replicas=0, version=7)
    view = await server.handler().take(WEB, ScaleView("u1", 0, "7"))
    assert (server.owner, view) == ("elasti-operator", ScaleView("u1", 0, "8"))
    assert await server.handler().take(WEB, ScaleView("u1", 0, "8")) == view
    assert server.writes == 1, "they are ours already"
    server = FakeServer(replicas=3, version=8)
    with pytest.raises(Conflict):
        await server.handler().take(WEB, ScaleView("u1", 0, "7"))
    assert (server.replicas, server.owner) == (3, "")


@pytest.mark.parametrize("code", [403, 405, 415, 422])
async def test_a_scale_that_cannot_be_applied_is_updated_and_that_is_logged_once(code: int):
    server = FakeServer(replicas=2, refuses=code)
    handler = server.handler()
    with capture_logs() as logs:
        for _ in range(2):
            server.replicas = 2
            outcome, view = await handler.park(WEB, ScaleView("u1", 2, ""))
            assert (outcome, view.replicas, server.replicas) == (ScaleDown.PARKED, 0, 0)
        assert await handler.take(WEB, ScaleView("u1", 0, "")) is None
    assert [entry["kind"] for entry in logs] == ["Deployment"]
    assert server.owner == ""


async def test_an_update_does_not_follow_a_refusal_that_would_meet_it_too():
    server = FakeServer(replicas=2, refuses=429)
    with pytest.raises(KubeError):
        await server.handler().park(WEB, ScaleView("u1", 2, ""))
    assert server.replicas == 2


async def test_a_kind_without_scale_is_refused():
    server = FakeServer(subresources=frozenset({"status"}))
    with pytest.raises(NotScalable, match=r"subresources\.scale"):
        await server.handler().read(WEB)


async def test_a_kind_that_got_its_scale_since_is_looked_up_again():
    server = FakeServer(
        subresources=frozenset({"status"}), learned=frozenset({"scale"}), replicas=2
    )
    assert (await server.handler().read(WEB)).replicas == 2


def test_kubeelastis_plurals_are_kinds():
    assert ScaleTarget.of("shop", "apps/v1", "deployments", "web") == WEB
