from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from pathlib import Path

from tests.e2e import picture, report
from tests.e2e.observer import Event
from tests.e2e.prober.plan import Fault, Record
from tests.e2e.report import Result


def result(**more: object) -> Result:
    fields: dict[str, object] = {
        "environment": "dev cluster",
        "scenario": "wake",
        "title": "It wakes",
        "length": "short",
    }
    fields |= {"verdict": "passed", "sent": 100, "held": 7, "hold_max": 1.25}
    return Result(**{**fields, **more})  # type: ignore[arg-type]  # a result to be


def test_the_page_says_what_was_lost_where_and_how():
    lost = result(
        scenario="cycles", verdict="failed", lost={"reset": 2}, examples=["reset: GET r-1"]
    )
    text = report.page([result(), lost], picture=False)
    assert "**200 requests sent, 2 lost**" in text
    assert "## Dev cluster" in text
    assert "**2 reset**" in text
    assert "- dev cluster, `cycles`: reset: GET r-1" in text


def test_the_control_run_does_not_count_as_loss():
    control = result(scenario="control", loses=True, lost={"refused": 50})
    text = report.page([result(), control], picture=False)
    assert "**100 requests sent, 0 lost**" in text
    assert "and must lose" in text


def test_what_was_not_played_says_why():
    text = report.page([result(sent=0, verdict="not here: there is no etcd")], picture=False)
    assert "not here: there is no etcd" in text


def test_results_of_one_suite_make_one_report(tmp_path: Path):
    report.keep(tmp_path, result())
    report.keep(tmp_path, result(environment="control plane, kube-proxy"))
    report.keep(tmp_path, result(sent=50))
    kept = json.loads((tmp_path / report.DATA).read_text())
    assert sorted((r["environment"], r["sent"]) for r in kept) == [
        ("control plane, kube-proxy", 100),
        ("dev cluster", 50),
    ]


def test_workers_of_one_run_write_one_report_and_the_next_run_its_own(tmp_path: Path):
    report.begin(tmp_path, "one")
    report.keep(tmp_path, result())
    report.begin(tmp_path, "one")
    report.keep(tmp_path, result(environment="control plane, kube-proxy"))
    assert len(json.loads((tmp_path / report.DATA).read_text())) == 2
    report.begin(tmp_path, "two")
    assert not (tmp_path / report.PAGE).exists()
    report.keep(tmp_path, result())
    assert len(json.loads((tmp_path / report.DATA).read_text())) == 1


def test_the_picture_has_every_request_and_what_the_cluster_did():
    def record(sent: float, **more: object) -> Record:
        fields: dict[str, object] = {
            "method": "GET",
            "target": 0,
            "reused": False,
            "due": sent,
            "answered": sent + 1,
        }
        return Record(id=f"r-{sent}", sent=sent, **{**fields, **more})  # type: ignore[arg-type]  # a record to be

    records = [record(10.0, held=0.9), record(11.0), record(12.0, fault=Fault.RESET)]
    events = [
        Event(9.0, "state", "web", "Proxy"),
        Event(9.0, "slice", "web", "published"),
        Event(10.1, "state", "web", "Waking"),
        Event(10.2, "pod", "web-abcde", "ready"),
        Event(12.5, "state", "web", "Serve"),
    ]
    drawn = picture.draw(records, events)
    root = ET.fromstring(drawn)
    words = [element.text for element in root.iter("{http://www.w3.org/2000/svg}text")]
    assert {"held: 1", "lost: 1", "straight to the pod: 1", "state", "pod …abcde"} <= set(words)
    circles = root.findall("{http://www.w3.org/2000/svg}circle")
    assert len(circles) == len(records) + 4, "three requests and the legend"
