"""`elasti informer` on a cluster."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.cli.environment import CommandEnvironment


def test_it_tells_what_happens_until_it_is_interrupted(environment: CommandEnvironment):
    command = [sys.executable, "-m", "elasti", "informer", "svc", "-n", environment.namespace]
    command += ["--kubeconfig", str(environment.admin), "--period", "0", "--resync", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            while "cache is synced" not in process.stdout.readline():
                pass
            environment.call(environment.rig.service("informed"))
            added = f"handleAdd is called for Service (key: {environment.namespace}/informed)"
            while added not in (line := process.stdout.readline()):
                assert line, "it ended"
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_an_unknown_resource_is_an_error_that_names_similar_ones(
    environment: CommandEnvironment,
):
    result = environment.run("informer", "deploymints")
    assert result.exit_code == 3
    assert "deploymints" in result.stderr


def test_an_invalid_selector_is_an_error(environment: CommandEnvironment):
    result = environment.run("informer", "pods", "-l", "a in (")
    assert result.exit_code == 2
    assert "Traceback" not in result.output


def test_a_closed_pipe_ends_it_silently(environment: CommandEnvironment):
    command = [
        sys.executable,
        "-m",
        "elasti",
        "informer",
        "ns",
        "--kubeconfig",
        str(environment.admin),
    ]
    command += ["--period", "0.2"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        try:
            process.stdout.readline()
            process.stdout.close()
            assert process.stderr.read() == ""
            assert process.wait(60) == 1
        finally:
            process.kill()
