"""Plugins as real processes: small shell and Python programs."""

from __future__ import annotations

import asyncio
import json
import os
import pty
import subprocess
import sys
import textwrap
import tracemalloc

import pytest

from kubeloop.aio.clock import SystemClock
from kubeloop.client.auth.exec_credential import ClusterInfo
from kubeloop.client.auth.exec_plugin import (
    ExecPlugin,
    ExecSpec,
    InteractiveMode,
    stdin_is_terminal,
)
from kubeloop.client.errors import CredentialError

V1 = "client.authentication.k8s.io/v1"
GOOD = json.dumps({"apiVersion": V1, "kind": "ExecCredential", "status": {"token": "sesame"}})


@pytest.fixture
def script(tmp_path):
    """Write an executable shell script and return its path."""

    def make(body, name="plugin"):
        path = tmp_path / name
        path.write_text(f"#!/bin/sh\n{textwrap.dedent(body)}\n")
        path.chmod(0o755)
        return path

    return make


def plugin(command, *, args=(), env=None, environ=None, has_terminal=False, cluster=None, **rest):
    limits = {name: rest.pop(name) for name in ("timeout", "interactive_timeout") if name in rest}
    spec = ExecSpec(
        command=str(command),
        args=tuple(args),
        env=env or {},
        origin="cfg: users[0].user.exec",
        **rest,
    )
    return ExecPlugin(
        spec,
        environ={"PATH": os.environ["PATH"]} if environ is None else environ,
        clock=SystemClock(),
        cluster=cluster,
        has_terminal=lambda: has_terminal,
        **limits,
    )


async def fails(the_plugin):
    with pytest.raises(CredentialError) as caught:
        await the_plugin.run()
    message = str(caught.value)
    assert message.startswith("cfg: users[0].user.exec (")
    assert "sesame" not in message
    return message


async def test_a_plugins_output_is_the_credential(script):
    assert (await plugin(script(f"echo '{GOOD}'")).run()).token == "sesame"


async def test_arguments_variables_and_the_question_reach_the_plugin(script, tmp_path):
    body = f"""
    printf '%s\\n' "$1" "$2" "$MINE" "$INHERITED" "$KUBERNETES_EXEC_INFO" > {tmp_path}/seen
    echo '{GOOD}'
    """
    cluster = ClusterInfo(
        server="https://h", server_name=None, insecure=False, authority=None, proxy=None
    )
    await plugin(
        script(body),
        args=("two words", "$HOME"),
        env={"MINE": "mine"},
        environ={"PATH": os.environ["PATH"], "INHERITED": "theirs", "MINE": "overridden"},
        cluster=lambda: cluster,
    ).run()
    *words, question = (tmp_path / "seen").read_text().splitlines()
    assert words == ["two words", "$HOME", "mine", "theirs"]
    assert json.loads(question) == {
        "apiVersion": V1,
        "kind": "ExecCredential",
        "spec": {"interactive": False, "cluster": {"server": "https://h", "config": None}},
    }


async def test_a_bare_name_is_looked_up_in_the_given_path(script, tmp_path):
    script(f"echo '{GOOD}'", name="my-login")
    found = plugin("my-login", environ={"PATH": str(tmp_path)})
    assert (await found.run()).token == "sesame"


async def test_a_missing_command_shows_the_install_hint_without_its_escapes():
    message = await fails(
        plugin("no-such-plugin", install_hint="brew install \x1b[1mno-such-plugin\x07\nthen log in")
    )
    assert "'no-such-plugin' is not in PATH" in message
    assert message.endswith("says: brew install [1mno-such-plugin\nthen log in")


async def test_a_missing_path_says_so(tmp_path):
    message = await fails(plugin(tmp_path / "gone"))
    assert f"there is no {tmp_path}/gone; install the plugin" in message


async def test_a_file_without_the_execute_bit_says_so(script):
    path = script("true")
    path.chmod(0o644)
    assert "chmod +x" in await fails(plugin(path))


async def test_a_file_that_is_not_a_program_says_so(tmp_path):
    path = tmp_path / "data"
    path.write_bytes(b"\x00\x01")
    path.chmod(0o755)
    assert "cannot be started: " in await fails(plugin(path))


async def test_a_null_byte_in_an_argument_is_a_credential_error(script):
    assert "cannot be started" in await fails(plugin(script("true"), args=("a\0b",)))


async def test_failing_plugin_shows_code_and_words_but_not_output(script):
    message = await fails(
        plugin(script("echo sesame; printf 'please \\033[31mlog in\\n' >&2; exit 3"))
    )
    assert "failed with exit code 3. Standard error: please [31mlog in" in message


async def test_a_plugin_killed_by_a_signal_names_it(script):
    assert "by signal SIGTERM" in await fails(plugin(script("kill -TERM $$")))


async def test_only_the_end_of_a_long_complaint_is_shown(script):
    message = await fails(plugin(script("seq 1 5000 >&2; echo last-words >&2; exit 1")))
    assert message.endswith("last-words")
    assert len(message) < 2500


async def test_large_output_on_both_streams_does_not_block(script):
    answer = json.loads(GOOD)
    answer["status"]["token"] = "x" * 300_000
    path = script(f"cat <<'END'\n{json.dumps(answer)}\nEND\nseq 1 100000 >&2")
    assert len((await plugin(path).run()).token) == 300_000


async def test_output_that_is_too_long_is_not_kept(script):
    command = script("head -c 60000000 /dev/zero")
    tracemalloc.start()
    try:
        assert "more than 1 MiB" in await fails(plugin(command))
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak < 10_000_000


async def test_output_that_is_not_a_credential_is_not_repeated(script):
    assert "not JSON" in await fails(plugin(script("echo token=sesame")))


class Lifeline:
    """A pipe that a plugin and all it starts hold open: its end is the end of the last of them."""

    def __init__(self, path, reader):
        self.path = path
        self._reader = reader

    async def begun(self):
        assert await self._reader.readline() == b"begun\n"

    async def ended(self):
        async with asyncio.timeout(20):
            assert await self._reader.read() == b""


@pytest.fixture
async def lifeline(tmp_path):
    path = tmp_path / "lifeline"
    os.mkfifo(path)
    reader = asyncio.StreamReader()
    # Opened without blocking: no thread is left behind where a test fails.
    pipe = os.fdopen(os.open(path, os.O_RDONLY | os.O_NONBLOCK), "rb")
    transport, _ = await asyncio.get_running_loop().connect_read_pipe(
        lambda: asyncio.StreamReaderProtocol(reader), pipe
    )
    yield Lifeline(path, reader)
    transport.close()


HANGS = """
exec 3> {lifeline.path}
sleep 1000 &
echo waiting for you >&2
echo begun >&3
wait
"""


async def test_a_hanging_plugin_is_ended_with_all_it_started(script, lifeline):
    hanging = plugin(script(HANGS.format(lifeline=lifeline)), timeout=1.5)
    message, _ = await asyncio.gather(fails(hanging), lifeline.begun())
    assert "did not end within 1.5 s. Standard error: waiting for you" in message
    await lifeline.ended()


async def test_a_cancelled_run_leaves_no_process(script, lifeline):
    run = asyncio.create_task(plugin(script(HANGS.format(lifeline=lifeline))).run())
    await lifeline.begun()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await lifeline.ended()


async def test_a_run_cancelled_while_it_starts_leaves_no_process(script, lifeline, monkeypatch):
    real = asyncio.create_subprocess_exec
    begun = asyncio.Event()

    async def slow_to_connect(*args, **options):
        process = await real(*args, **options)
        await lifeline.begun()
        begun.set()
        await asyncio.sleep(0.05)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", slow_to_connect)
    run = asyncio.create_task(plugin(script(HANGS.format(lifeline=lifeline))).run())
    await begun.wait()
    run.cancel()
    with pytest.raises(asyncio.CancelledError):
        await run
    await lifeline.ended()


async def test_plugin_that_leaves_child_with_output_open_times_out(script, lifeline):
    body = f"exec 3> {lifeline.path}; echo begun >&3; sleep 1000 & echo '{GOOD}'"
    leaving = plugin(script(body), timeout=1.5)
    message, _ = await asyncio.gather(fails(leaving), lifeline.begun())
    assert "did not end within 1.5 s" in message
    await lifeline.ended()


@pytest.mark.parametrize(
    ("mode", "terminal", "interactive"),
    [
        (InteractiveMode.NEVER, True, False),
        (InteractiveMode.NEVER, False, False),
        (InteractiveMode.IF_AVAILABLE, False, False),
        (InteractiveMode.IF_AVAILABLE, True, True),
        (InteractiveMode.ALWAYS, True, True),
    ],
)
async def test_the_terminal_is_given_by_mode(script, tmp_path, mode, terminal, interactive):
    body = f"""echo "$KUBERNETES_EXEC_INFO" > {tmp_path}/seen; echo '{GOOD}'"""
    the_plugin = plugin(script(body), interactive_mode=mode, has_terminal=terminal)
    await the_plugin.run()
    assert json.loads((tmp_path / "seen").read_text())["spec"]["interactive"] is interactive


async def test_plugin_that_needs_terminal_is_not_run_without_one(script, tmp_path):
    path = script(f"touch {tmp_path}/ran")
    message = await fails(plugin(path, interactive_mode=InteractiveMode.ALWAYS))
    assert "standard input is not a terminal" in message
    assert not (tmp_path / "ran").exists()


async def test_non_interactive_plugin_has_no_standard_input_and_own_session(script, tmp_path):
    # Were this process's input inherited, a read from it could block or steal what is typed.
    path = script(
        f"cat > {tmp_path}/read; cut -d' ' -f6 /proc/$$/stat > {tmp_path}/sid; echo '{GOOD}'"
    )
    await plugin(path).run()
    assert (tmp_path / "read").read_text() == ""
    assert int((tmp_path / "sid").read_text()) != os.getsid(0)


def test_plugin_in_terminal_can_ask_and_read_answer(script):
    path = script(f"""printf 'password: ' >&2; read word; [ "$word" = xyzzy ] && echo '{GOOD}'""")
    program = textwrap.dedent(f"""
        import asyncio
        from kubeloop.aio.clock import SystemClock
        from kubeloop.client.auth.exec_plugin import ExecPlugin, ExecSpec
        spec = ExecSpec(command={str(path)!r})
        plugin = ExecPlugin(spec, environ={{"PATH": "/bin:/usr/bin"}}, clock=SystemClock())
        print("GOT", len(asyncio.run(plugin.run()).token))
    """)
    ours, theirs = pty.openpty()
    seen = b""
    command = [sys.executable, "-c", program]
    with subprocess.Popen(command, stdin=theirs, stdout=theirs, stderr=theirs) as process:
        os.close(theirs)
        try:
            while b"password: " not in seen:
                seen += os.read(ours, 1024)
            os.write(ours, b"xyzzy\n")
            while b"GOT 6" not in seen:
                seen += os.read(ours, 1024)
        except OSError:
            pytest.fail(f"the program ended early: {seen.decode(errors='replace')}")
        finally:
            process.wait()
            os.close(ours)


def test_a_closed_or_missing_standard_input_is_not_a_terminal(monkeypatch, tmp_path):
    monkeypatch.setattr(sys, "stdin", None)
    assert stdin_is_terminal() is False
    closed = (tmp_path / "x").open("w")
    closed.close()
    monkeypatch.setattr(sys, "stdin", closed)
    assert stdin_is_terminal() is False


def test_a_spec_does_not_show_arguments_or_variables():
    spec = ExecSpec(command="c", args=("--password=sesame",), env={"K": "sesame"})
    assert "sesame" not in repr(spec)
