"""`elasti informer` on a cluster."""

from __future__ import annotations

import signal
import subprocess
import sys

from tests.elasti.cli.stage import Stage


def test_it_tells_what_happens_until_it_is_interrupted(stage: Stage):
    command = [sys.executable, "-m", "elasti", "informer", "svc", "-n", stage.namespace]
    command += ["--kubeconfig", str(stage.admin), "--period", "0", "--resync", "0"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        try:
            while "cache is synced" not in process.stdout.readline():
                pass
            stage.call(stage.rig.service("informed"))
            added = f"handleAdd is called for Service (key: {stage.namespace}/informed)"
            while added not in (line := process.stdout.readline()):
                assert line, "it ended"
            process.send_signal(signal.SIGINT)
            assert process.wait(30) == 0
        finally:
            process.kill()


def test_a_resource_that_does_not_exist_is_told_with_what_comes_near(stage: Stage):
    result = stage.run("informer", "deploymints")
    assert result.exit_code == 3
    assert "deploymints" in result.stderr


def test_a_selector_that_is_none_is_told(stage: Stage):
    result = stage.run("informer", "pods", "-l", "a in (")
    assert result.exit_code == 1
    assert "Traceback" not in result.output
