"""Commands of the pages are run on a dev cluster as they are typed; what is not run says who runs it."""

from __future__ import annotations

import functools
import itertools
import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml
from click.testing import CliRunner

from elasti.cli.main import main
from tests.chart.rendering import tool
from tests.controlplane.binaries import cache_directory
from tests.docs.pages import ROOT, Block, blocks, check_values, named, typed

TARGETS = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
SUBSTITUTED = re.compile(r"\$\(([^()]* [^()]*)\)")
OPERATORS = {"|", "&&", "&", ";"}
# What the pages use of other programs, without arguments of ours.
OTHERS = {"docker", "curl", "export", ".", "source", "kill", "jq", "devkube"}

# Run as a whole, in its order, by tests/e2e/test_start.py.
START = "docs/start.md"
# How lines begin that are not run here, and why. Installations are dry runs: one cluster is for all pages.
NOT_RUN = {
    ". .venv/": "the environment of these tests is used",
    "export ": "the environment has it",
    "make ": "targets that CI runs; tests/e2e/test_demo.py has the demo",
    "pip install ": "`make dist-try` installs wheels into an empty environment",
    "docker ": "needs a container engine; `make image` follows the Dockerfile without one",
    "digest=$(docker ": "needs a container engine and a registry",
    "helm ": "tests/chart/test_releases.py installs, upgrades and removes releases",
    "hack/realcluster/cluster ": "real nodes need root: tests/realcluster",
    "kill -9 <its owner>": "real nodes need root: tests/realcluster",
    "python examples/": "listens on a fixed port; tests/examples runs the same on a free one",
    "kubectl get websites": "needs that program; tests/examples/test_websites.py reads the status",
    "devkube ": "a fixed port; packages/devkube/tests starts it on a free one",
    "elasti dev": "a fixed port; the cluster of this test is started by it, on a free one",
    "elasti demo": "tests/e2e/test_demo.py",
    "elasti dashboard": "opens a browser; tests/browser has it, and --no-open is run here",
    "elasti operator ": "pods of the installation run it",
    "WATCH_NAMESPACES=shop,blog elasti operator": "pods of the installation run it",
    "elasti resolver": "pods of the installation run it",
    "elasti enable --observed": "needs a day of observing; packages/elasti/tests/cli/test_observed.py",
    "elasti report --prices": "needs a file; packages/elasti/tests/cli/test_report.py",
    "elasti diff": "needs a file and enrolment; packages/elasti/tests/cli/test_enrolled.py",
    "elasti report --opencost": "needs OpenCost; packages/elasti/tests/cli/test_report.py",
    "elasti report --observe --by label:team --opencost": "needs OpenCost; the same tests",
    "kubectl -n opencost": "needs OpenCost",
    "elasti sleep web -n shop --wait": "takes the engage settle; tests/e2e/test_start.py",
    "elasti install --dry-run --namespaced": "refused beside an installation for all",
    "elasti install --dry-run --namespace team": "refused beside an installation for all",
    "elasti manifests --image registry.example.com/elasti:1 |": "a test below, on a real API server",
    "kubectl apply --server-side -f elasti.yaml": "a test below, on a real API server",
    "elasti uninstall": "would end the run; packages/elasti/tests/cli/test_uninstall.py",
    "elasti completion zsh": "a variable of zsh's; packages/elasti/tests/cli/test_completion.py",
}
# What runs until Ctrl-C, and what it has printed by then.
LASTING = {
    "elasti dashboard -n shop --no-open": "The dashboard is at",
    "elasti get -A --watch": "NAME",
    "elasti informer ": "cache is synced",
}


def starts_with(line: str, table: dict[str, str]) -> str:
    """The value of the longest key that a line begins with."""
    return max(((key, table[key]) for key in table if line.startswith(key)), default=("", ""))[1]


def commands(block: Block) -> Iterator[list[str]]:
    """The commands of a block, one for each program that it starts."""
    lines = [line for line, _ in typed(block)]
    while lines:
        line = lines.pop(0)
        lines += SUBSTITUTED.findall(line)
        lexer = shlex.shlex(SUBSTITUTED.sub("x", line), posix=True, punctuation_chars="|&;<>")
        lexer.whitespace_split = True
        words: list[str] = []
        for word in lexer:
            if word in OPERATORS:
                yield words
                words = []
            elif word in (">", "<<<"):
                next(lexer)
            elif words or not re.match(r"\w+=", word):
                words.append(word)
        if words:
            yield words


@named(blocks("console", "sh"))
def test_a_command_is_one_that_its_program_understands(block: Block):
    for words in commands(block):
        check_command(tuple(words))


@functools.cache
def check_command(words: tuple[str, ...]) -> None:
    program, *arguments = words
    match program:
        case "elasti":
            understand(arguments)
        case "make":
            assert set(arguments) <= set(TARGETS)
        case "pip":
            assert arguments.pop(0) == "install"
            paths = [path.partition("[")[0] for path in arguments if path.startswith(".")]
            assert [path for path in paths if not (ROOT / path).is_dir()] == []
        case "python":
            assert (ROOT / arguments[0]).is_file()
        case "kubectl":
            explain(shutil.which("kubectl") or str(cache_directory() / "kubectl"), arguments)
        case "helm":
            check_helm(arguments)
        case _ if program.startswith("hack/"):
            assert (ROOT / program).is_file()
        case _:
            assert program in OTHERS, f"say what checks {program}"


def understand(arguments: list[str]) -> None:
    """Parse a call of ours as the command does; nothing is run."""
    context = main.make_context("elasti", list(arguments))
    name, command, rest = main.resolve_command(context, [*context._protected_args, *context.args])
    assert isinstance(command, click.Command)
    command.make_context(name, rest, parent=context)


def explain(program: str, arguments: list[str]) -> None:
    """Ask a program for help about a call: it refuses commands and options that it does not have."""
    if not os.access(program, os.X_OK):
        pytest.skip(f"there is no {program}")
    asked = subprocess.run(
        [program, *arguments, "--help"], capture_output=True, text=True, check=False
    )
    assert asked.returncode == 0, asked.stderr


def check_helm(arguments: list[str]) -> None:
    values: dict[str, Any] = {}
    for option, value in itertools.pairwise(arguments):
        if option == "--set":
            *path, last = value.partition("=")[0].split(".")
            place = values
            for name in path:
                place = place.setdefault(name, {})
            place[last] = yaml.safe_load(f"{value.partition('=')[2]!r}")
    check_values(
        json.loads(json.dumps(values).replace('"true"', "true").replace('"false"', "false"))
    )
    try:
        program = tool("helm")
    except FileNotFoundError:
        return  # values were compared all the same; `make chart` has it
    explain(program, arguments)


# Running them


class Terminal:
    """A reader's terminal beside a cluster, in a home of its own."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.banner = ""
        programs = (Path(sys.executable).parent, cache_directory(), os.environ["PATH"])
        self.environment = {
            **os.environ,
            "HOME": str(home),
            "KUBECONFIG": f"{home}/.kube/elasti-dev.yaml",
            "PATH": os.pathsep.join(map(str, programs)),
        }

    def run(self, line: str, directory: Path) -> tuple[int, str]:
        """The exit code of a line, and what it said. Our own command runs here: a start takes longer than most."""
        given = None
        if alone := re.match(r"(elasti [^|<>]*)(.*)", line):
            ours, line = alone.groups()
            result = CliRunner(env=self.environment).invoke(main, shlex.split(ours)[1:])
            if result.exit_code or not line:
                return result.exit_code, result.output
            line, given = f"cat {line}", result.stdout
        done = subprocess.run(
            ["bash", "-euo", "pipefail", "-c", line], cwd=directory, env=self.environment, input=given,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
        )  # fmt: skip
        return done.returncode, done.stdout

    def interrupted(self, line: str, first: str) -> tuple[int, str]:
        """The same of a line that lasts until Ctrl-C, which is pressed when it has said the first thing."""
        said = ""
        with self.start(line) as process:
            assert process.stdout is not None
            while first not in said and (more := process.stdout.readline()):
                said += more
            process.send_signal(signal.SIGINT)
            said += process.stdout.read()
        return process.returncode if first in said else 1, said

    def start(self, line: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            shlex.split(line), cwd=self.home, env=self.environment,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip


def workloads() -> Iterator[dict[str, Any]]:
    """What the commands name: the app of the page «Start», in two namespaces, and a database."""
    for name in ("shop", "monitoring"):
        yield {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    (page,) = (block for block in blocks("yaml") if block.page == START)
    for namespace, name in (("default", "web"), ("shop", "web"), ("shop", "api"), ("shop", "db")):
        for document in yaml.safe_load_all(page.text.replace("web", name)):
            document["metadata"] |= {"namespace": namespace, "labels": {"team": "shop"}}
            if name == "db" and document["kind"] == "Deployment":
                document["kind"] = "StatefulSet"
            if name != "db" or document["kind"] != "ElastiService":
                yield document


@pytest.fixture
def terminal(tmp_path: Path) -> Iterator[Terminal]:
    """A terminal with Elasti and workloads."""
    if shutil.which("kubectl", path=f"{cache_directory()}:{os.environ['PATH']}") is None:
        pytest.skip("there is no kubectl")
    terminal = Terminal(tmp_path)
    (tmp_path / ".config" / "fish" / "completions").mkdir(parents=True)
    (tmp_path / "all.yaml").write_text(yaml.safe_dump_all(workloads()))
    with terminal.start("elasti dev --port=0") as cluster:
        assert cluster.stdout is not None
        try:
            while "Ctrl-C stops it" not in terminal.banner:
                terminal.banner += (line := cluster.stdout.readline())
                assert line, terminal.banner
            for line in (
                "elasti install --operator-replicas=1 --resolver-replicas=1",
                "kubectl apply -f all.yaml",
            ):
                code, said = terminal.run(line, tmp_path)
                assert code == 0, said
            yield terminal
        finally:
            cluster.send_signal(signal.SIGINT)
            cluster.stdout.read()


def shows(shown: list[str], said: str) -> bool:
    """Whether a command said what its page shows: with other numbers, and any name or home of «me»."""
    return all(re.search(pattern(line), said) for line in shown)


def pattern(line: str) -> str:
    escaped = re.sub(r"(\\ )+", r"\\s+", re.escape(line.replace("/home/me", "me")))
    return re.sub(r"\bme\b", r"\\S+", re.sub(r"\d+", r"\\d+", escaped)).replace(r"\.\.\.", ".*")


def page_directory(terminal: Terminal, page: str) -> Path:
    """Where a reader of a page types: `web.yaml` is the Deployment that the page has."""
    directory = terminal.home / page.replace("/", "-")
    if not directory.exists():
        directory.mkdir()
        (directory / "examples").symlink_to(ROOT / "examples")
        found = (b.text for b in blocks("yaml") if b.page == page and "kind: Deployment" in b.text)
        (directory / "web.yaml").write_text(next(found, ""))
    return directory


@pytest.mark.timeout(300)  # some fifty processes: 15 s of processor time, minutes on a busy machine
def test_commands_of_the_pages_do_their_work(terminal: Terminal):
    failed, done = [], set()
    # The page of the dev cluster breaks it on purpose.
    for block in sorted(blocks("console", "sh"), key=lambda block: "dev-cluster" in block.page):
        for line, shown in typed(block) if block.page != START else ():
            line = re.sub(" +#.*", "", line).replace("elasti install", "elasti install --dry-run")
            if line == "elasti dev":
                code, said = 0, terminal.banner
            elif first := starts_with(line, LASTING):
                code, said = terminal.interrupted(line, first)
            elif starts_with(line, NOT_RUN) or line in done:
                continue
            else:
                code, said = terminal.run(line, page_directory(terminal, block.page))
            done.add(line)
            is_error = any(text.startswith("Error") for text in shown)
            if (code not in (0, 130)) != is_error or not shows(shown, said):
                failed.append(f"{block.where}: {line} [{code}]\n{said}")
    assert not failed, "\n".join(failed)


def test_what_is_not_run_is_there():
    lines = [line for block in blocks("console", "sh") for line, _ in typed(block)]
    for beginning in (*NOT_RUN, *LASTING):
        said = beginning.replace(" --dry-run", "")
        assert any(line.startswith(said) for line in lines), beginning
