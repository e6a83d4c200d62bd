from __future__ import annotations

import asyncio
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from kubeloop.controller import Controller, PriorityQueue
from kubeloop.controller.prometheus import PrometheusMetrics
from kubeloop.controller.reconcile import Request
from kubeloop.informer import SharedInformer
from kubeloop.testing.fake_source import FakeSource

pytestmark = pytest.mark.virtual_time


async def test_a_controller_shows_what_it_did_in_one_scrape():
    registry = CollectorRegistry()
    metrics = PrometheusMetrics(registry)
    source = FakeSource[Any]()
    source.create("good")
    source.create("bad")
    pods = SharedInformer(source, name="pods", metrics=metrics.informer("pods"))

    async def reconcile(request: Request) -> None:
        if request.name == "bad":
            raise RuntimeError("as told")

    queue = PriorityQueue[Request](metrics=metrics.queue("web"))
    controller = Controller("web", reconcile, queue=queue, metrics=metrics.controller("web"))
    controller.watch(pods)
    async with pods.running():
        task = asyncio.create_task(controller.run())
        await asyncio.sleep(0.001)
        task.cancel()
        await asyncio.wait([task])

    def value(name: str, **labels: str) -> float | None:
        return registry.get_sample_value(name, labels)

    assert value("kubeloop_informer_objects", informer="pods") == 2
    assert value("kubeloop_informer_watches_total", informer="pods") == 1
    assert value("kubeloop_queue_adds_total", queue="web") == 2
    reconciles = "kubeloop_controller_reconciles_total"
    assert value(reconciles, controller="web", outcome="success") == 1
    assert value(reconciles, controller="web", outcome="error") == 1
    assert b"kubeloop_queue_work_seconds_bucket" in generate_latest(registry)


async def test_an_opaque_version_is_left_out_and_harms_nothing():
    registry = CollectorRegistry()
    informer = PrometheusMetrics(registry).informer("pods")
    informer.stored(objects=3, version="not-a-number")
    assert registry.get_sample_value("kubeloop_informer_objects", {"informer": "pods"}) == 3
