"""What the programs say, and what they never say."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.operator.fakes import loopback

from elasti.cli import logs
from elasti.logger import bind, bound, get_logger

TOKEN = "eyJhbGciOiJSUzI1NiIsImtpZCI6IngifQ.eyJpc3MiOiJodHRwczovL2t1YmVybmV0ZXMifQ.c2lnbmF0dXJl"


@pytest.fixture
def lines(capsys: pytest.CaptureFixture[str]) -> Iterator[Callable[[], list[str]]]:
    """Gives the lines that were said since it was asked last; logging is as it was afterwards."""
    root = logging.getLogger()
    before, level = root.handlers[:], root.level
    try:
        yield lambda: capsys.readouterr().err.splitlines()
    finally:
        root.handlers[:] = before
        root.setLevel(level)


def test_every_line_is_an_object_ours_and_the_librarys(lines):
    logs.configure()
    get_logger("elasti.operator").info("a target sleeps", namespace="shop", replicas=0)
    logging.getLogger("kubeloop.informer").warning("%s: watch %s", "v1/pods", "broken")
    logging.getLogger("kubeloop").debug("not said")
    first, second = map(json.loads, lines())
    assert first["event"] == "a target sleeps"
    assert (first["namespace"], first["replicas"]) == ("shop", 0)
    assert (first["level"], first["logger"]) == ("info", "elasti.operator")
    assert second["event"] == "v1/pods: watch broken"
    assert (second["level"], second["logger"]) == ("warning", "kubeloop.informer")
    assert first["timestamp"].endswith("Z")


def test_an_exception_is_part_of_its_line(lines):
    logs.configure()
    try:
        raise RuntimeError(f"refused: Bearer {TOKEN}")
    except RuntimeError:
        logging.getLogger("kubeloop").exception("it failed")
        get_logger("elasti").exception("it failed too")
    said = lines()
    assert len(said) == 2
    for line in map(json.loads, said):
        assert "RuntimeError: refused: Bearer (redacted)" in line["exception"]
    assert TOKEN not in "".join(said)


@pytest.mark.parametrize("pretty", [True, False])
def test_no_credential_is_logged_in_any_place(lines, pretty: bool):
    logs.configure(level="debug", pretty=pretty)
    secrets = [TOKEN, "c2VjcmV0LXNlY3JldA==", "hunter2hunter2", "sesame"]
    log = get_logger("elasti")
    log.info("Authorization: Bearer %s", TOKEN)
    log.info("asked", authorization=f"Basic {secrets[1]}", token=TOKEN, headers={"Cookie": TOKEN})
    log.info("read", url=f"https://bob:{secrets[2]}@prometheus/api", note=f"token={secrets[3]}")
    log.info("nested", answer=[{"body": f"basic {secrets[1]}"}, (TOKEN,)])
    logging.getLogger("aiohttp").info("GET /x?access_token=%s", secrets[3])
    logging.getLogger("lib").info("headers: %s", {"Authorization": f"Bearer {secrets[2]}"})
    said = "\n".join(lines())
    for secret in secrets:
        assert secret not in said, secret
    assert said.count("(redacted)") >= 8


@pytest.mark.parametrize(
    "text",
    [
        "the token is not valid for audience elasti-operator",
        "ELASTI_TOKEN_KEYS_FILE: /keys.json: No such file",
        "basic rules apply",
        "https://prometheus.monitoring:9090/api",
        "10.0.0.1:8013",
    ],
)
def test_what_is_not_a_credential_is_left_alone(text: str):
    assert logs.without_secrets(text) == text


def test_names_that_only_say_where_a_secret_is_are_left_alone(lines):
    logs.configure()
    get_logger("elasti").info("read", token_file="/var/token", token_issuers=["x"])
    (line,) = map(json.loads, lines())
    assert (line["token_file"], line["token_issuers"]) == ("/var/token", ["x"])


@given(st.text(max_size=40), st.text(max_size=40))
def test_a_bearer_is_found_in_any_surroundings(before: str, after: str):
    said = logs.without_secrets(f"{before} Bearer {TOKEN} {after}")
    assert TOKEN not in said


def test_what_is_bound_is_in_every_line_of_its_block(lines):
    logs.configure()
    log = get_logger("elasti")

    async def task() -> None:
        bind(service="shop/web")
        with bound(wake_id="1"):
            log.info("asked")
            logging.getLogger("kubeloop").warning("sent again")
        log.info("answered", service="other")

    asyncio.run(task())
    log.info("done")
    found = [(line.get("service"), line.get("wake_id")) for line in map(json.loads, lines())]
    assert found == [("shop/web", "1"), ("shop/web", "1"), ("other", None), (None, None)]


def test_a_value_that_json_cannot_hold_is_logged_all_the_same(lines):
    logs.configure()
    get_logger("elasti").info("read", path="a\udcff", size=float("inf"), at=object, odd={b"x": 1})
    (line,) = map(json.loads, lines())
    assert (line["path"], line["size"], line["odd"]) == ("a\\udcff", None, {"b'x'": 1})


def test_at_a_terminal_it_is_text(lines, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True, raising=False)
    logs.configure()
    get_logger("elasti").info("a target sleeps", namespace="shop")
    (line,) = lines()
    assert not line.startswith("{")
    assert "a target sleeps" in line


@pytest.mark.parametrize("program", ["operator", "resolver"])
def test_both_programs_log_json_without_a_terminal(program: str, tmp_path):
    """They cannot reach a server here, and say so in the way in which they say everything."""
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        json.dumps(
            {
                "current-context": "x",
                "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
                "clusters": [{"name": "x", "cluster": {"server": "http://127.0.0.1:9"}}],
                "users": [{"name": "x", "user": {}}],
            }
        )
    )
    environment = {
        **os.environ,
        "KUBECONFIG": str(kubeconfig),
        "PYTHONPATH": os.pathsep.join(sys.path),
        "ELASTI_OPERATOR_HOST": "127.0.0.1",
        "ELASTI_RESOLVER_HOST": loopback(),
        "PROMETHEUS_TRIGGER_AUTHORIZATION_HEADER": "Bearer hunter2hunter2",
        "SENTRY_DSN": "https://hunter2@sentry.example",
    }
    ports = {
        "operator": ["--port", "0", "--health-probe-port", "0", "--no-leader-elect"],
        "resolver": [],
    }
    process = subprocess.Popen(
        [sys.executable, "-m", "elasti", program, *ports[program]],
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    )
    assert process.stderr is not None
    try:
        first = process.stderr.readline() + process.stderr.readline()
    finally:
        process.kill()
        rest = process.stderr.read()
        process.stderr.close()
        process.wait(timeout=30)
    lines = [json.loads(line) for line in (first + rest).splitlines() if line.startswith(b"{")]
    assert lines[0]["names"] == ["SENTRY_DSN"], "what has an effect in KubeElasti only is named"
    assert lines[1]["event"]
    assert b"hunter2" not in first + rest


# In this order, and in one process: the second sees what the first leaves behind.


def test_a_program_in_this_process_configures_its_logging():
    logs.configure()
    assert type(logging.getLogger().handlers[0]) is logging.StreamHandler


def test_no_later_test_has_the_logging_of_that_program():
    assert all(type(one) is not logging.StreamHandler for one in logging.getLogger().handlers)
