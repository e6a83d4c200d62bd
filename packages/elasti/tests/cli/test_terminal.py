"""No control character of a cluster's data reaches the terminal, whichever command prints it."""

from __future__ import annotations

import http.server
import io
import json
import threading
import unicodedata
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from tests.cli.environment import CommandEnvironment

from elasti.cli.demo.load import RequestResult
from elasti.cli.demo.story import AppState, Story, board
from elasti.cli.main import main
from elasti.cli.rendering import LiveOutput, Progress, one_line, printable, table

# A title, a cleared screen, the same by one C1 character, a line that looks like ours, a reversal.
HOSTILE = "x\x1b]0;PWNED\x07\x1b[2J\x9b2J\r\n✓ all is well\u202e"
SHOWN = "x\\u001b]0;PWNED\\u0007\\u001b[2J\\u009b2J\\u000d\\n✓ all is well\\u202e"


def assert_clean(text: str) -> None:
    raw = {char for char in text if unicodedata.category(char) == "Cc" and char != "\n"}
    assert not raw
    assert "\u202e" not in text
    assert "\n✓ all is well" not in text


@given(st.text())
def test_what_is_printable_has_no_control_character_and_nothing_else_changed(text: str):
    assert_clean(one_line(text).replace("✓", ""))
    assert "\n" not in one_line(text)
    if text.isprintable():
        assert printable(text) == text


@given(st.text())
def test_json_means_the_same_when_it_is_printable(text: str):
    assert json.loads(printable(json.dumps(text, ensure_ascii=False))) == text


def test_a_table_is_aligned_by_what_is_shown():
    head, row = table(("NAME", "NEXT"), [(HOSTILE, "b")]).splitlines()
    assert row == f"{SHOWN}   b"
    assert head.index("NEXT") == row.index("b", len(SHOWN))


# Objects of a cluster


@pytest.fixture
def hostile(environment: CommandEnvironment) -> CommandEnvironment:
    async def made() -> None:
        if "hostile" not in [
            es["metadata"]["name"] async for es in environment.rig.elastiservices.items()
        ]:
            await environment.rig.service("hostile")
            await environment.rig.elastiservice("hostile", enabledPeriod={"schedule": HOSTILE})
            await environment.rig.tells("Ready", "InvalidSpec", "hostile")

    environment.call(made())
    return environment


@pytest.mark.parametrize(
    "call",
    [
        ["get"],
        ["get", "-o", "wide"],
        ["get", "-A", "-o", "json"],
        ["get", "-o", "yaml"],
        ["describe", "hostile"],
        ["describe", "hostile", "-o", "json"],
        ["doctor"],
        ["doctor", "-o", "yaml"],
        ["wake", "hostile", "--wait", "--timeout", "20"],
    ],
    ids=" ".join,
)
def test_hostile_words_of_a_spec_are_spelled(hostile: CommandEnvironment, call: list[str]):
    result = hostile.run(*call)
    assert "PWNED" in result.output
    assert_clean(result.output)


# Answers of a server


class _HostileServer(http.server.BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        status = {"kind": "Status", "apiVersion": "v1", "reason": "Forbidden", "code": 403}
        body = json.dumps({**status, "status": "Failure", "message": f"no: {HOSTILE}"}).encode()
        self.send_response(403)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        # A C1 character in UTF-8; http.server writes Latin-1.
        self.send_header("Warning", '299 - "old \xc2\x9b2J"')
        self.end_headers()
        self.wfile.write(body)

    do_POST = do_PATCH = do_GET  # noqa: N815 - the names are http.server's

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture(scope="module")
def kubeconfig(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    path = tmp_path_factory.mktemp("hostile") / "kubeconfig"
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), _HostileServer) as server:
        document = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "a",
            "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
            "clusters": [
                {"name": "a", "cluster": {"server": f"http://127.0.0.1:{server.server_port}"}}
            ],
            "users": [{"name": "a", "user": {}}],
        }
        path.write_text(yaml.safe_dump(document))
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield path
        server.shutdown()


@pytest.mark.parametrize(
    "call",
    [
        ["get"],
        ["describe", "web"],
        ["doctor"],
        ["install", "--no-wait"],
        ["install", "--dry-run"],
        ["uninstall", "--yes"],
        ["wake", "web"],
        ["informer", "v1/pods"],
    ],
    ids=" ".join,
)
def test_a_hostile_message_of_the_server_is_spelled(kubeconfig: Path, call: list[str]):
    result = CliRunner().invoke(main, [*call, "--kubeconfig", str(kubeconfig)])
    assert result.exit_code != 0
    assert "PWNED" in result.output, result.output
    assert_clean(result.output)


# Progress and the demo


def test_progress_of_install_and_uninstall_is_clean():
    output = io.StringIO()
    progress = Progress(LiveOutput(output))
    progress.say(HOSTILE)
    progress.done(f"Deployment {HOSTILE}", "[red]removed")
    with progress.waiting() as waiting:
        waiting.show(HOSTILE, f"pod p: {HOSTILE}")
    assert output.getvalue().count("PWNED") == 4
    assert "[red]" in output.getvalue()
    assert_clean(output.getvalue())


async def test_the_demo_is_clean():
    output = io.StringIO()
    story = Story(LiveOutput(output))
    answer = RequestResult(f"GET {HOSTILE}", ok=False, words=f"[bold]{HOSTILE}", took=0.1)
    story.heading(HOSTILE)
    story.report("pods", HOSTILE)
    story.line(HOSTILE)
    story.table([answer])
    for text in board(
        [AppState(HOSTILE, HOSTILE, ["ready"], via_resolver=False)], sent=0, answered=0
    ):
        story.line(click.unstyle(text))
    assert output.getvalue().count("PWNED") >= 5
    assert_clean(output.getvalue())
