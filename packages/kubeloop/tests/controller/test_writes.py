from __future__ import annotations

import asyncio

import pytest

from kubeloop.controller.reconcile import Request
from kubeloop.controller.writes import ConsistencyGuard
from kubeloop.objects.gvk import GroupVersionResource

pytestmark = pytest.mark.virtual_time

PODS = GroupVersionResource.parse("v1/pods")
JOBS = GroupVersionResource.parse("batch/v1/jobs")
WEB = Request("default", "web")
API = Request("default", "api")


class FakeStore:
    def __init__(self, version: str = "") -> None:
        self.version = version


@pytest.fixture
def pods() -> FakeStore:
    return FakeStore("10")


@pytest.fixture
def guard(pods) -> ConsistencyGuard:
    made = ConsistencyGuard(timeout=30)
    made.follow(PODS, pods)
    return made


@pytest.mark.spec("C9")
async def test_an_owner_that_wrote_nothing_is_never_held_back(guard):
    assert guard.lagging(WEB) == ()


@pytest.mark.spec("C9")
async def test_write_holds_owner_back_until_cache_has_come_so_far(guard, pods):
    guard.wrote(WEB, "uid", PODS, "12")
    assert guard.lagging(WEB) == (PODS,)
    assert guard.lagging(API) == (), "others go on"
    pods.version = "11"
    assert guard.lagging(WEB) == (PODS,)
    pods.version = "12"
    assert guard.lagging(WEB) == ()
    pods.version = "5"
    assert guard.lagging(WEB) == (), "what was caught up with is forgotten"
    assert len(guard) == 0


@pytest.mark.spec("C9")
async def test_versions_are_compared_as_numbers(guard, pods):
    pods.version = "9"
    guard.wrote(WEB, "uid", PODS, "10")
    assert guard.lagging(WEB) == (PODS,)


@pytest.mark.spec("C9")
async def test_the_newest_of_several_writes_counts_whatever_their_order(guard, pods):
    guard.wrote(WEB, "uid", PODS, "20")
    guard.wrote(WEB, "uid", PODS, "15")
    pods.version = "19"
    assert guard.lagging(WEB) == (PODS,)


@pytest.mark.spec("C9")
async def test_every_resource_has_to_catch_up(guard, pods):
    jobs = FakeStore("10")
    guard.follow(JOBS, jobs)
    guard.wrote(WEB, "uid", PODS, "12")
    guard.wrote(WEB, "uid", JOBS, "13")
    pods.version = "12"
    assert guard.lagging(WEB) == (JOBS,)
    jobs.version = "13"
    assert guard.lagging(WEB) == ()


@pytest.mark.spec("C9")
async def test_a_new_uid_replaces_the_record(guard, pods):
    guard.wrote(WEB, "old", PODS, "100")
    guard.wrote(WEB, "new", PODS, "12")
    pods.version = "12"
    assert guard.lagging(WEB) == ()


@pytest.mark.spec("C9")
async def test_a_new_uid_drops_what_the_old_one_wrote_elsewhere(guard, pods):
    guard.follow(JOBS, FakeStore("10"))
    guard.wrote(WEB, "old", JOBS, "100")
    guard.wrote(WEB, "new", PODS, "12")
    pods.version = "12"
    assert guard.lagging(WEB) == ()


@pytest.mark.spec("C9")
async def test_a_record_is_cleared_for_its_own_uid_only(guard):
    guard.wrote(WEB, "uid", PODS, "12")
    guard.clear(WEB, "other")
    assert guard.lagging(WEB) == (PODS,)
    guard.clear(WEB, "uid")
    assert guard.lagging(WEB) == ()
    guard.wrote(WEB, "uid", PODS, "12")
    guard.clear(WEB)
    assert guard.lagging(WEB) == ()


@pytest.mark.spec("C9")
async def test_a_cache_without_a_version_is_behind(guard, pods):
    pods.version = ""
    guard.wrote(WEB, "uid", PODS, "1")
    assert guard.lagging(WEB) == (PODS,)


@pytest.mark.spec("C9", "X11")
async def test_cache_whose_versions_went_back_blocks_only_until_timeout(guard, pods, caplog):
    pods.version = "5000"
    guard.wrote(WEB, "uid", PODS, "5001")
    pods.version = "3000"
    await asyncio.sleep(29)
    assert guard.lagging(WEB) == (PODS,)
    await asyncio.sleep(1)
    assert guard.lagging(WEB) == ()
    assert "v1/pods did not show our writes in 30 s" in caplog.text
    assert len(guard) == 0


@pytest.mark.spec("C9")
async def test_a_cache_that_caught_up_long_ago_gives_no_warning(guard, pods, caplog):
    guard.wrote(WEB, "uid", PODS, "12")
    pods.version = "12"
    await asyncio.sleep(1000)
    assert guard.lagging(WEB) == ()
    assert caplog.text == ""


@pytest.mark.spec("C9")
@pytest.mark.parametrize("version", ["", "0", "x", "01"])
async def test_a_malformed_version_of_a_write_is_refused(guard, version):
    with pytest.raises(ValueError, match="resourceVersion"):
        guard.wrote(WEB, "uid", PODS, version)
    assert len(guard) == 0


@pytest.mark.spec("C9")
async def test_store_whose_version_cannot_be_compared_is_error_until_timeout(guard, pods):
    guard.wrote(WEB, "uid", PODS, "12")
    pods.version = "abc"
    with pytest.raises(ValueError, match="'abc'"):
        guard.lagging(WEB)
    await asyncio.sleep(30)
    assert guard.lagging(WEB) == ()


@pytest.mark.spec("C9")
async def test_write_to_resource_that_is_not_followed_is_refused(guard):
    with pytest.raises(KeyError, match="batch/v1/jobs is not followed"):
        guard.wrote(WEB, "uid", JOBS, "12")
