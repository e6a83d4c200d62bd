from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from kubeloop.controller import Controller
from kubeloop.controller.queue.priority_queue import PriorityQueue
from kubeloop.controller.reconcile import Request
from kubeloop.informer import SharedInformer
from kubeloop.metrics.library import LibraryMetrics
from kubeloop.metrics.text import exposition
from kubeloop.testing.fake_source import FakeSource

pytestmark = pytest.mark.virtual_time


def scraped(metrics: LibraryMetrics) -> dict[tuple[str, ...], float]:
    """Every sample by its name and the values of its labels, as another parser reads them."""
    return {
        (sample.name, *sample.labels.values()): sample.value
        for family in text_string_to_metric_families(exposition(metrics.families()).decode())
        for sample in family.samples
    }


async def test_a_controller_shows_what_it_did_in_one_scrape():
    metrics = LibraryMetrics()
    source = FakeSource[Any]()
    source.create("good")
    source.create("bad")
    pods = SharedInformer(source, name="pods", metrics=metrics.informer("pods"))

    async def reconcile(request: Request) -> None:
        if request.name == "bad":
            raise RuntimeError("expected")

    queue = PriorityQueue[Request](metrics=metrics.queue("web"))
    controller = Controller("web", reconcile, queue=queue, metrics=metrics.controller("web"))
    controller.watch(pods)
    async with pods.running():
        task = asyncio.create_task(controller.run())
        await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])

    found = scraped(metrics)
    assert found["informer_objects", "pods"] == 2
    assert found["reflector_watches_total", "pods"] == 1
    assert found["reflector_list_duration_seconds_count", "pods"] == 1
    assert found["workqueue_adds_total", "web"] == 2
    assert found["workqueue_depth", "web"] == 0
    assert found["workqueue_work_duration_seconds_count", "web"] == 2
    assert found["controller_runtime_reconcile_total", "web", "success"] == 1
    assert found["controller_runtime_reconcile_total", "web", "error"] == 1
    assert found["controller_runtime_reconcile_time_seconds_bucket", "web", "+Inf"] == 2
    assert found["controller_runtime_active_workers", "web"] == 0


async def test_a_failing_handler_is_counted_by_its_name():
    metrics = LibraryMetrics()
    source = FakeSource[Any]()
    source.create("one")
    pods = SharedInformer(source, name="pods", metrics=metrics.informer("pods"))

    def fail(_note: Any) -> None:
        raise RuntimeError("expected")

    pods.add_handler(on_event=fail, name="failing")
    async with pods.running():
        await asyncio.sleep(0.001)
    found = scraped(metrics)
    assert found["informer_handler_errors_total", "pods", "failing"] == 1
    assert found["informer_handler_notifications_total", "pods", "failing"] == 1


def test_an_informer_that_is_rebuilt_goes_on_counting():
    metrics = LibraryMetrics()
    metrics.informer("pods").watch_ended(reason="expired")
    metrics.informer("pods").watch_ended(reason="expired")
    assert scraped(metrics)["reflector_watches_ended_total", "pods", "expired"] == 2


def test_an_opaque_version_is_left_out_and_harms_nothing():
    metrics = LibraryMetrics()
    metrics.informer("pods").stored(objects=3, version="not-a-number")
    assert scraped(metrics)["informer_objects", "pods"] == 3
