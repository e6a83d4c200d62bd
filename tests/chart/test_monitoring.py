"""Alerts and dashboard name what both programs report."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from hack import reference
from tests.chart.rendering import CHART, found, render
from tests.controlplane.binaries import Settings
from tests.controlplane.plugin import give_up

_ROW = re.compile(r"^\| `(\w+)` \| (\w+) \| ([^|]*) \|", re.MULTILINE)
_SERIES = re.compile(
    r"\b((?:elasti|workqueue|controller_runtime|reflector|informer)_\w+)(?:\{([^}]*)\})?"
)
_GROUPED = re.compile(r"\bby \(([^)]*)\)")
# A scrape adds these to every series; a histogram's buckets have the last.
_ADDED = {"pod", "instance", "le"}


def reported() -> dict[str, set[str]]:
    """The labels of all series of both programs, by name, with those that a histogram consists of."""
    found: dict[str, set[str]] = {}
    for name, kind, labels in _ROW.findall(reference.metrics()):
        for part in ("_bucket", "_sum", "_count") if kind == "histogram" else ("",):
            found[name + part] = {*re.findall(r"\w+", labels)}
    return found


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
def test_every_series_and_label_is_one_that_the_programs_report(document):
    known = reported()
    asked = expressions(document())
    assert len(asked) > 5
    for expression in asked:
        series = _SERIES.findall(_GROUPED.sub("", expression))
        assert series or expression == "prometheus", expression
        labels: set[str] = set(_ADDED)
        for name, selector in series:
            assert name in known, expression
            assert {*re.findall(r"(\w+)(?:!?=|!?~|=~)", selector)} <= known[name], expression
            labels |= known[name]
        for names in _GROUPED.findall(expression):
            assert {*re.findall(r"\w+", names)} <= labels, expression


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
