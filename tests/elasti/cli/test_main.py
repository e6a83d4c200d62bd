from __future__ import annotations

import subprocess
import sys

import pytest
import yaml
from click.testing import CliRunner

from elasti.cli.main import _COMMANDS, main


def run(*args: str):
    return CliRunner().invoke(main, list(args))


@pytest.mark.parametrize("name", sorted(_COMMANDS))
def test_the_help_of_every_command_has_an_example_and_the_same_first_line(name):
    result = run(name, "--help")
    assert result.exit_code == 0
    assert f"elasti {name}" in result.output
    assert "Example" in result.output


def test_the_root_help_lists_every_command():
    result = run("--help")
    assert all(name in result.output for name in _COMMANDS)


def test_an_unknown_command_is_the_callers_mistake():
    result = run("wakeup")
    assert result.exit_code == 2
    assert "wakeup" in result.output


def test_the_definition_is_printed_as_yaml_and_as_json():
    as_yaml, as_json = run("crd"), run("crd", "-o", "json")
    assert yaml.safe_load(as_yaml.output) == yaml.safe_load(as_json.output)
    assert yaml.safe_load(as_yaml.output)["kind"] == "CustomResourceDefinition"


def test_the_version_is_printed():
    assert run("version").output.startswith("elasti ")


def test_help_loads_no_command_and_nothing_heavy():
    code = (
        "import sys; sys.argv = ['elasti', '--help']\n"
        "from elasti.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        "print(sorted(set(sys.modules) & {'aiohttp', 'msgspec', 'yaml', 'asyncio'}), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


@pytest.mark.parametrize(
    ("config", "words"),
    [(None, "does not exist"), ("http://127.0.0.1:9", "127.0.0.1:9"), ("nonsense", "nonsense")],
)
def test_without_a_cluster_informer_says_so_in_one_line(tmp_path, monkeypatch, config, words):
    path = tmp_path / "config"
    if config is not None:
        path.write_text(
            "apiVersion: v1\nkind: Config\ncurrent-context: a\n"
            "contexts: [{name: a, context: {cluster: a, user: a}}]\n"
            f"clusters: [{{name: a, cluster: {{server: '{config}'}}}}]\nusers: [{{name: a, user: {{}}}}]\n"
        )
    monkeypatch.setenv("KUBECONFIG", str(path))
    result = run("informer", "pods")
    assert result.exit_code == 5
    assert words in result.output
    assert "Traceback" not in result.output
    error, *more = result.output.splitlines()
    assert error.startswith("Error: ")
    assert all("--kubeconfig" in line for line in more)
