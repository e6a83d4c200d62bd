"""`elasti completion`, and what it offers."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from click.shell_completion import ShellComplete
from click.testing import CliRunner
from tests.cli.environment import CommandEnvironment

from elasti.api.names import ELASTISERVICES
from elasti.cli.cluster import AccessOptions
from elasti.cli.completion import names_from
from elasti.cli.main import main

VARIABLE = "_ELASTI_COMPLETE"


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_each_shell_gets_a_script_that_it_can_read(shell: str, tmp_path: Path):
    result = CliRunner().invoke(main, ["completion", shell])
    assert result.exit_code == 0
    assert VARIABLE in result.stdout
    assert result.stderr == ""
    program = shutil.which(shell)
    if program is not None:
        script = tmp_path / "script"
        script.write_text(result.stdout)
        subprocess.run([program, "-n", str(script)], check=True, timeout=30)


def test_another_shell_is_the_callers_mistake():
    assert CliRunner().invoke(main, ["completion", "tcsh"]).exit_code == 2


def completed(*words: str) -> list[str]:
    *before, last = words
    shell = ShellComplete(main, {}, "elasti", VARIABLE)
    return [item.value for item in shell.get_completions(list(before), last)]


def test_commands_are_offered():
    assert {"wake", "sleep", "describe"} <= set(completed(""))
    assert completed("desc") == ["describe"]


def test_contexts_are_offered_from_the_kubeconfig(tmp_path: Path):
    path = tmp_path / "config"
    path.write_text("contexts: [{name: blue, context: {}}, {name: green, context: {}}]")
    line = ["get", "--kubeconfig", str(path), "--context"]
    assert completed(*line, "") == ["blue", "green"]
    assert completed(*line, "g") == ["green"]
    path.write_text("{ nonsense")
    assert completed(*line, "") == []


def test_names_come_from_the_cluster_and_are_silent_where_they_do_not(
    environment: CommandEnvironment,
):
    environment.call(environment.rig.web(0, "tab-one"))
    admin = AccessOptions(kubeconfig=environment.admin)
    assert "tab-one" in names_from(admin, ELASTISERVICES, environment.namespace)
    assert names_from(admin, ELASTISERVICES, "default") == []
    for path in (environment.nobody, environment.bare, environment.nowhere, Path("/missing")):
        assert (
            names_from(AccessOptions(kubeconfig=path), ELASTISERVICES, environment.namespace) == []
        )


def tab(environment: dict[str, str], words: str) -> subprocess.CompletedProcess[str]:
    count = len(words.split()) - (0 if words.endswith(" ") else 1)
    return subprocess.run(
        [sys.executable, "-c", "from elasti.cli.main import main; main(prog_name='elasti')"],
        env={
            "PATH": "/usr/bin:/bin",
            VARIABLE: "bash_complete",
            "COMP_WORDS": words,
            "COMP_CWORD": str(count),
            **environment,
        },
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


def test_a_tab_in_a_shell_offers_names_or_nothing(environment: CommandEnvironment):
    environment.call(environment.rig.web(0, "tab-two"))
    done = tab(
        {"KUBECONFIG": str(environment._namespaced(environment.admin))}, "elasti wake tab-tw"
    )
    # On a machine that is too busy the second may be over before the cluster answers.
    assert done.stdout in ("plain,tab-two\n", "")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_cluster_that_does_not_answer_costs_a_second(tmp_path: Path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        path = tmp_path / "config"
        path.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: a\nusers: []\n"
            "contexts: [{name: a, context: {cluster: a}}]\n"
            f"clusters: [{{name: a, cluster: {{server: 'http://127.0.0.1:{silent.getsockname()[1]}'}}}}]\n"
        )
        done = tab({"KUBECONFIG": str(path)}, "elasti describe ")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
