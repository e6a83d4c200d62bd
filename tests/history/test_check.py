from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from tests.history.check import RULES, check
from tests.history.events import (
    Answer,
    Call,
    Event,
    Excused,
    Executed,
    Pod,
    Rotation,
    Scaled,
    read,
    write,
)


def good() -> list[Event]:
    """One request to a Service that sleeps: held, woken, answered."""
    return [
        Rotation(at=0.0, service="web", endpoints=1),
        Scaled(at=0.1, service="web", replicas=0),
        Call(at=1.0, id="r-1", service="web"),
        Scaled(at=1.1, service="web", replicas=1, by="elasti"),
        Pod(at=1.2, name="web-1", phase="there"),
        Rotation(at=2.0, service="web", endpoints=2),
        Executed(at=2.4, id="r-1", pod="web-1"),
        Answer(at=2.5, id="r-1", status=200, pod="web-1", held=1.4),
        Rotation(at=3.0, service="web", endpoints=1),
    ]


BROKEN: dict[str, list[Event]] = {
    "answered": [Call(at=4.0, id="r-2", service="web")],
    "at_most_once": [Executed(at=2.6, id="r-1", pod="web-1")],
    "answered_by_its_executor": [
        Call(at=4.0, id="r-2", service="web"),
        Answer(at=4.1, id="r-2", status=200, pod="web-1"),
    ],
    "never_parked_while_held": [Scaled(at=1.7, service="web", replicas=0)],
    "rotation_never_empty": [Rotation(at=0.5, service="web", endpoints=0)],
}


def test_a_good_history_breaks_no_rule():
    assert check(good()) == []


def test_every_rule_has_a_history_that_breaks_it():
    assert BROKEN.keys() == RULES.keys()


@pytest.mark.parametrize("rule", RULES)
def test_a_broken_rule_is_named(rule: str):
    assert {one.rule for one in check([*good(), *BROKEN[rule]])} == {rule}


def test_an_answer_by_a_pod_that_was_gone_before_the_call_is_wrong():
    events = [
        *good(),
        Pod(at=5.0, name="web-1", phase="gone"),
        Call(at=7.0, id="r-2", service="web"),
        Executed(at=7.1, id="r-2", pod="web-1"),
        Answer(at=7.2, id="r-2", status=200, pod="web-1"),
    ]
    assert [one.rule for one in check(events)] == ["answered_by_its_executor"]


def test_a_failure_while_something_is_broken_on_purpose_is_excused():
    failed: list[Event] = [
        Call(at=4.0, id="r-2", service="web"),
        Answer(at=4.2, id="r-2", fault="reset"),
    ]
    assert [one.rule for one in check([*good(), *failed])] == ["answered"]
    excuse = Excused(at=4.1, until=4.5, why="the pod was killed")
    assert check([*good(), *failed, excuse]) == []


def test_a_history_is_written_and_read_again(tmp_path: Path):
    path = tmp_path / "a" / "history.jsonl"
    write(path, good()[::-1])
    assert read(path) == sorted(good(), key=lambda event: event.at)


def checked(path: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.history", str(path)]
    root = Path(__file__).parents[2]
    return subprocess.run(command, cwd=root, capture_output=True, text=True, check=False)


def test_the_program_counts_and_names_violations(tmp_path: Path):
    path = tmp_path / "history.jsonl"
    write(path, [*good(), *BROKEN["at_most_once"]])
    done = checked(path)
    assert done.returncode == 1
    assert "1 calls, 5 rules, 1 violations" in done.stdout
    assert "at_most_once: r-1 was executed by web-1, web-1" in done.stdout


def test_the_program_names_the_line_that_is_not_an_event(tmp_path: Path):
    path = tmp_path / "history.jsonl"
    path.write_text('{"event": "call", "at": "soon"}\n')
    done = checked(path)
    assert done.returncode == 2
    assert f"{path}:1:" in done.stderr


def test_a_pod_may_come_back_under_its_name():
    history = [
        *good(),
        Pod(at=5.0, name="web-1", phase="gone"),
        Pod(at=6.0, name="web-1", phase="there"),
        Call(at=7.0, id="r-2", service="web"),
        Executed(at=7.1, id="r-2", pod="web-1"),
        Answer(at=7.2, id="r-2", status=200, pod="web-1"),
    ]
    assert check(history) == []


def test_a_request_whose_pod_ended_without_an_answer_may_be_repeated():
    events: list[Event] = [
        *good(),
        Call(at=4.0, id="r-2", service="web"),
        Executed(at=4.1, id="r-2", pod="web-1"),
        Pod(at=4.2, name="web-1", phase="gone"),
        Pod(at=4.3, name="web-2", phase="there"),
        Executed(at=4.6, id="r-2", pod="web-2"),
        Answer(at=4.7, id="r-2", status=200, pod="web-2"),
    ]
    assert check(events) == []
