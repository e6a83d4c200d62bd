from __future__ import annotations

import errno
import os
import subprocess
import sys
from pathlib import Path

import click
import pytest
import yaml
from click.testing import CliRunner

import elasti.__main__ as entry
from elasti.cli import options, programs
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
    assert "No such command 'wakeup'. Did you mean 'wake'?" in result.output
    assert "Did you mean" not in run("xyz").output


def test_an_option_before_the_command_is_an_error_that_says_where_it_belongs():
    result = run("--context", "dev", "get")
    assert result.exit_code == 2
    assert "Options come after the command: elasti get --context" in result.output


def test_the_definition_is_printed_as_yaml_and_as_json():
    as_yaml, as_json = run("crd"), run("crd", "-o", "json")
    assert yaml.safe_load(as_yaml.output) == yaml.safe_load(as_json.output)
    assert yaml.safe_load(as_yaml.output)["kind"] == "CustomResourceDefinition"


def test_the_version_is_printed():
    assert run("version").output.startswith("elasti ")
    assert run("version").output.startswith(run("--version").output.rstrip())


@pytest.mark.parametrize(
    "call",
    [
        ["get", "-n", "No Namespace"],
        ["get", "--elasti-namespace", "a/b"],
        ["doctor", "-n", "a_b"],
        ["informer", "pods", "-n", ".."],
        ["uninstall", "-n", "a_b"],
        ["uninstall", "-n", ""],
        ["install", "-n", ""],
        ["doctor", "--elasti-namespace", ""],
        ["install", "-n", "Foo_"],
        ["manifests", "-n", "Foo_"],
        ["get", "shop/web"],
        ["describe", "a b"],
        ["wake", ".."],
        ["sleep", "web", "%"],
        ["informer", "pods", "--period", "-1"],
        ["informer", "pods", "--resync", "-1"],
    ],
)
def test_a_name_or_a_number_that_cannot_be_is_a_wrong_call(call):
    result = run(*call)
    assert result.exit_code == 2
    assert "Invalid value for" in result.output


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (["install", "--operator-replicas", "x"], "'x' is not a valid integer."),
        (["install", "--operator-replicas", "0"], "0 is not in the range 1<=x<=20."),
        (["wake", "web", "--timeout", "x"], "'x' is not a duration"),
    ],
)
def test_an_invalid_number_is_an_error(call, words):
    assert words in run(*call).output


def test_names_are_taken_as_get_prints_them():
    for text in ("web", "elastiservice/web", "elastiservice.elasti.truefoundry.com/web"):
        assert options.name(text) == "web"


def test_an_output_that_cannot_be_written_is_one_line():
    command = [sys.executable, "-m", "elasti", "manifests"]
    with Path("/dev/full").open("w") as full:
        done = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, text=True, check=False)
    assert done.returncode == 1
    assert done.stderr == "Error: No space left on device\n"


def test_a_reader_that_goes_ends_a_command_without_a_word():
    command = [sys.executable, "-m", "elasti", "manifests"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.close()
        assert process.stderr.read() == b""
        assert process.wait(60) == 1


def test_letters_that_an_output_cannot_show_are_spelled():
    code = (
        "from elasti.cli.main import main\nimport click\n"
        "main.add_command(click.Command('say', callback=lambda: click.echo('\\u2713')))\n"
        "main.get_command = lambda ctx, name: main.commands.get(name)\n"
        "main(['say'])"
    )
    environment = {**os.environ, "PYTHONIOENCODING": "latin-1"}
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=False
    )
    assert (done.stdout, done.stderr) == ("\\u2713\n", "")


def test_an_interrupt_before_a_command_began_is_code_130(monkeypatch):
    def interrupted(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(main, "get_command", interrupted)
    result = run("get")
    assert (result.exit_code, result.output) == (130, "")


def test_a_port_in_use_is_an_error_with_a_remedy(monkeypatch):
    def taken(*_):
        raise OSError(errno.EADDRINUSE, "address already in use")

    monkeypatch.setattr(main, "get_command", taken)
    result = run("operator")
    assert result.exit_code == 1
    assert "address already in use" in result.output
    assert "choose another, see --help" in result.output


@pytest.mark.parametrize(
    ("environment", "colour"),
    [({"NO_COLOR": "1"}, False), ({"TERM": "dumb"}, False), ({"TERM": "xterm"}, None)],
)
def test_colours_are_left_out_if_they_are_not_wanted(monkeypatch, environment, colour):
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    with click.Context(main) as ctx:
        assert main.callback is not None
        main.callback()
    assert ctx.color is colour


HEAVY = {"aiohttp", "msgspec", "yaml", "asyncio", "rich", "devkube"}


@pytest.mark.parametrize("call", [[], *([name] for name in sorted(_COMMANDS))], ids=" ".join)
def test_help_loads_no_command_and_nothing_heavy(call):
    code = (
        f"import sys; sys.argv = ['elasti', *{call}, '--help']\n"
        "from elasti.cli.main import main\n"
        "try: main()\n"
        "except SystemExit: pass\n"
        f"print(sorted(set(sys.modules) & {HEAVY}), file=sys.stderr)"
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


@pytest.mark.parametrize("program", ["operator", "resolver"])
def test_pods_start_a_program_without_the_command_line(
    program: str, monkeypatch: pytest.MonkeyPatch
):
    started = []
    monkeypatch.setattr(programs, f"run_{program}", lambda: started.append(program))
    monkeypatch.setattr(sys, "argv", ["elasti", program])
    entry.main()
    assert started == [program]


@pytest.mark.parametrize("program", ["operator", "resolver"])
def test_a_program_says_the_same_about_a_failure_with_and_without_options(program: str):
    bare, with_option = (
        subprocess.run(
            [sys.executable, "-m", "elasti", program, *options],
            env=os.environ | {"ELASTI_RESOLVER_PORT": "abc"},
            capture_output=True,
            text=True,
            check=False,
        )
        for options in ((), ("--json",))
    )
    assert (bare.returncode, bare.stderr) == (with_option.returncode, with_option.stderr)
    assert "ELASTI_RESOLVER_PORT: 'abc' is not a port" in bare.stderr
