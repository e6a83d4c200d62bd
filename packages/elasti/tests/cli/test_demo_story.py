"""What the demo shows of what it saw."""

from __future__ import annotations

import asyncio
import io
import socket

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.environment import Terminal
from tests.resolver.support import free_port

from elasti.cli.demo import load
from elasti.cli.demo.load import LoadGenerator, RequestResult
from elasti.cli.demo.manifests import choices, samples
from elasti.cli.demo.story import AppState, Story, WakeMoment, board, drawn, timeline
from elasti.cli.rendering import LiveOutput

HELD = RequestResult("GET /1", ok=True, words="200", took=1.5, held=1.4)
LOST = RequestResult("GET /2", ok=False, words="ClientOSError()", took=0.1)


def shown(*apps: AppState, sent: int = 0, answered: int = 0) -> str:
    return click.unstyle("\n".join(board(apps, sent=sent, answered=answered)))


@pytest.mark.parametrize(
    ("via", "pods", "route"),
    [
        (False, ["ready"], "pods"),
        (True, ["ready", "pending"], "pods and resolver"),
        (True, ["running"], "resolver"),
        (True, [], "resolver"),
        (False, [], "no pod yet"),
    ],
)
def test_the_board_says_where_traffic_goes(via: bool, pods: list[str], route: str):
    text = shown(AppState("web", "awake", pods, via_resolver=via))
    line = next(line for line in text.splitlines() if "web" in line)
    assert line.endswith(f"  {route}")
    assert (", ".join(pods) or "none") in line


def test_the_board_counts_who_is_held():
    assert "requests: none yet" in shown()
    assert "requests: 5 sent, 2 answered, 3 held" in shown(sent=5, answered=2)
    assert shown(sent=5, answered=5).endswith("requests: 5 sent, 5 answered")


def test_a_timeline_leaves_out_what_was_before_the_first_request():
    moments = {"pod pending": 9.0, "pod running": 10.5, "pod ready": 12.0}
    steps = timeline(moments, [HELD, LOST], began=10.0)
    assert [round(step.at, 3) for step in steps] == [0.0, 0.5, 1.5, 1.5, 2.0]
    assert "process" in steps[1].what


@given(st.lists(st.floats(0, 1000), min_size=1).map(sorted))
def test_bars_never_overlap_and_always_fit(times: list[float]):
    before = 0
    for line in drawn([WakeMoment(at, "what") for at in times]):
        bar = line.split(" s  ", 1)[1].removesuffix("  what")
        assert len(bar) == 40
        drawn_part = bar.rstrip()
        if drawn_part:
            start = len(drawn_part) - len(drawn_part.lstrip())
            assert start >= before
            before = len(drawn_part)


async def test_the_sums_name_what_was_lost_and_who_was_first():
    output = io.StringIO()
    story = Story(LiveOutput(output))
    steps = timeline({"pod ready": 12.0}, [HELD, LOST], began=10.0)
    assert story.sums([HELD, LOST], steps) == 1
    text = output.getvalue()
    assert "2 requests, 1 lost" in text
    assert "1 held: median 1.40 s, longest 1.40 s" in text
    assert "found the app answering 0.50 s before Kubernetes did" in text


async def test_a_lost_request_is_explained(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(load, "_PATIENCE", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        quiet = silent.getsockname()[1]
        for number, words in ((free_port(), "Connect call failed"), (quiet, "no answer in 0 s")):
            (page,) = await LoadGenerator().http(f"http://127.0.0.1:{number}", 1)
            line = await LoadGenerator().tcp("127.0.0.1", number)
            assert words in page.words
            assert words in line.words


async def test_a_board_is_only_for_terminals(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("TERM", "xterm")
    plain, moving = io.StringIO(), Terminal()
    for output in (plain, moving):
        story = Story(LiveOutput(output))
        async with story.showing(lambda: ["BOARD"]):
            await asyncio.sleep(0)
            story.report("you", "hello [there]")
    assert "BOARD" not in plain.getvalue()
    assert moving.getvalue().count("BOARD") == 2
    assert moving.getvalue().endswith("\x1b[1F\x1b[J"), "the board goes in the end"
    assert plain.getvalue().endswith(" s  you     hello [there]\n")


def test_the_demo_is_an_ordinary_installation_with_authentication():
    assert choices().authentication
    assert not choices().namespaced
    kinds = [obj["kind"] for obj in samples()]
    assert kinds == ["Deployment", "Service", "ElastiService"] * 2
    # They sleep by the installation's default.
    assert not any("triggers" in obj["spec"] for obj in samples())
    assert choices().usable_default_triggers == ("network",)
