"""Alerts and dashboard name what both programs report."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from elasti.operator.metrics import OperatorMetrics
from elasti.resolver.metrics import WorkerView
from kubeloop.metrics.library import LibraryMetrics
from tests.chart.rendering import CHART, found, render
from tests.controlplane.binaries import Settings
from tests.controlplane.plugin import give_up

_TYPE = re.compile(r"^# TYPE (\S+) (\S+)$", re.MULTILINE)
_NAME = re.compile(r"\b(?:elasti|workqueue|controller_runtime|reflector|informer)_\w+")
# Of PromQL: names of labels in `by (...)` and in selectors are none of ours.
_LABELS = re.compile(r"\{[^}]*\}|\bby \([^)]*\)")


class NoServices(dict[Any, Any]):
    """A registry without any Service."""


async def scraped() -> set[str]:
    """The names that a scrape of both programs has, with what a histogram makes of its own."""
    view = WorkerView(
        registry=NoServices(),  # type: ignore[arg-type]
        shared=SimpleNamespace(found=0, unknown=0),  # type: ignore[arg-type]
        operator=SimpleNamespace(answered=0, failed=0),  # type: ignore[arg-type]
        unready=str,
        library=LibraryMetrics(),
    )
    text = OperatorMetrics().render().decode() + (await view.metrics()).decode()
    names: set[str] = set()
    for name, kind in _TYPE.findall(text):
        parts = ("_bucket", "_sum", "_count") if kind == "histogram" else ("",)
        names |= {name + part for part in parts}
    return names


def expressions(document: Any) -> list[str]:
    if isinstance(document, dict):
        own = [v for k, v in document.items() if k in ("expr", "query") and isinstance(v, str)]
        return own + [e for value in document.values() for e in expressions(value)]
    return [e for item in document for e in expressions(item)] if isinstance(document, list) else []


def alerts() -> Any:
    return yaml.safe_load((CHART / "files/alerts.yaml").read_text())


def dashboard() -> Any:
    return json.loads((CHART / "files/dashboard.json").read_text())


@pytest.mark.parametrize("document", [alerts, dashboard])
async def test_every_series_is_in_a_scrape_of_both_programs(document):
    known = await scraped()
    asked = expressions(document())
    assert len(asked) > 5
    for expression in asked:
        names = {*_NAME.findall(_LABELS.sub("", expression))}
        assert names or expression == "prometheus", expression
        assert names <= known, expression


def test_alerts_fire_when_they_should_and_only_then(controlplane_settings: Settings):
    if shutil.which("promtool") is None:
        give_up(controlplane_settings, "no promtool: install Prometheus")
    rules = Path(__file__).with_name("alerts.yaml")
    done = subprocess.run(
        ["promtool", "test", "rules", rules], check=False, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stdout + done.stderr
    tried = rules.read_text()
    assert [r["alert"] for r in alerts()["groups"][0]["rules"] if r["alert"] not in tried] == []


def test_the_chart_installs_these_very_files():
    values = {"prometheusRule": {"enabled": True}, "dashboard": {"enabled": True}}
    objects = render({"metrics": values})
    assert found(objects, "PrometheusRule")["spec"] == alerts()
    (shown,) = found(objects, "ConfigMap")["data"].values()
    assert json.loads(shown) == dashboard()


def test_monitors_find_the_programs_ports():
    objects = render(
        {"metrics": {"serviceMonitor": {"enabled": True}, "podMonitor": {"enabled": True}}}
    )
    ports = {
        port["name"] for obj in objects if obj["kind"] == "Service" for port in obj["spec"]["ports"]
    }
    for obj in objects:
        if obj["kind"] == "ServiceMonitor":
            (endpoint,) = obj["spec"]["endpoints"]
            assert endpoint["port"] in ports
            name = obj["metadata"]["name"].removeprefix("elasti-")
            labels = next(
                o["metadata"]["labels"]
                for o in objects
                if o["kind"] == "Service" and o["metadata"]["labels"]["app"] == f"elasti-{name}"
            )
            assert obj["spec"]["selector"]["matchLabels"].items() <= labels.items()
    pods = found(objects, "PodMonitor")["spec"]
    assert {end["port"] for end in pods["podMetricsEndpoints"]} == {"http", "admin"}
