"""The distribution, as its user has it: alone in an empty environment, outside of the repository."""

from __future__ import annotations

import asyncio
import json
import os
import re
import signal
import subprocess
import sys
import venv
from pathlib import Path

import pytest

from devkube.testing import start_cluster

PACKAGE = Path(__file__).parents[1]
REPOSITORY = PACKAGE.parents[1]
# A module that only pytest can load, as its plugin.
PYTEST_ONLY = {"kubeloop.testing.plugin"}

pytestmark = [pytest.mark.distribution, pytest.mark.timeout(600)]


def run(*command: str | Path, cwd: Path | None = None) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ran = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=clean)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


@pytest.fixture(scope="module")
def python(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with kubeloop's wheel, what that asks for, and pytest."""
    directory = tmp_path_factory.mktemp("distribution")
    pip = (sys.executable, "-m", "pip")
    run(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", directory, PACKAGE)
    (wheel,) = directory.glob("kubeloop-*.whl")
    venv.create(directory / "env", with_pip=True)
    python = directory / "env" / "bin" / "python"
    installed = subprocess.run(
        (python, "-m", "pip", "install", "--quiet", wheel, "pytest"), capture_output=True, text=True
    )
    if "No matching distribution found for" in installed.stderr:
        pytest.skip(f"no package index within reach: {installed.stderr.splitlines()[-1]}")
    assert installed.returncode == 0, installed.stderr
    return python


def test_it_has_exactly_three_direct_dependencies(python, tmp_path):
    code = "import importlib.metadata, json; print(json.dumps(importlib.metadata.requires('kubeloop')))"
    required = json.loads(run(python, "-c", code, cwd=tmp_path))
    names = {re.split(r"[^\w-]", line)[0].lower() for line in required}
    assert names == {"aiohttp", "msgspec", "pyyaml"}


def test_every_module_can_be_imported(python, tmp_path):
    code = f"""if True:
        import importlib, pathlib, pkgutil, kubeloop
        assert not pathlib.Path(kubeloop.__file__).is_relative_to({str(REPOSITORY)!r})
        names = [info.name for info in pkgutil.walk_packages(kubeloop.__path__, "kubeloop.")]
        for name in names:
            if name not in {PYTEST_ONLY!r}:
                importlib.import_module(name)
        print(len(names))
    """
    assert int(run(python, "-c", code, cwd=tmp_path)) > 100


@pytest.fixture
def programs(tmp_path) -> Path:
    """What a user writes: the programs of the README and the guides, in a directory of their own."""
    pages = [PACKAGE / "README.md", *(REPOSITORY / "docs" / "kubeloop").glob("*.md")]
    found = {}
    for page in pages:
        blocks = re.findall(r'```python(?: title="(.*?)")?\n(.*?)```', page.read_text(), re.DOTALL)
        for number, (title, block) in enumerate(blocks):
            # devkube is a distribution of its own, and not there.
            if "from devkube" not in block:
                found[title or f"{page.stem.lower()}_{number}.py"] = block
    assert {"readme_1.py", "client_3.py", "test_greeter.py"} <= found.keys()
    for name, block in found.items():
        (tmp_path / name).write_text(block)
    return tmp_path


def test_mypy_accepts_a_users_program(python, programs):
    files = sorted(programs.glob("*.py"))
    mypy = (sys.executable, "-m", "mypy", "--strict", "--cache-dir", programs / "cache")
    run(*mypy, "--python-executable", python, *files, cwd=programs)


def test_pyright_accepts_a_users_program(python, programs):
    settings = {"typeCheckingMode": "strict", "reportMissingTypeStubs": False}
    (programs / "pyrightconfig.json").write_text(json.dumps(settings))
    run(Path(sys.executable).with_name("basedpyright"), "--pythonpath", python, cwd=programs)


async def test_the_informer_example_runs_against_a_cluster(python, tmp_path):
    async with start_cluster(tmp_path) as cluster:
        process = await asyncio.create_subprocess_exec(
            str(python), str(REPOSITORY / "examples" / "pod_informer.py"),
            cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.STDOUT,
            env={"PATH": os.environ["PATH"], "KUBECONFIG": str(cluster.kubeconfig)},
        )  # fmt: skip
        assert process.stdout is not None
        try:
            async with asyncio.timeout(60):
                while b"cache is synced" not in (line := await process.stdout.readline()):
                    assert line, "it ended"
                pod = {
                    "metadata": {"name": "a"},
                    "spec": {"containers": [{"name": "a", "image": "a"}]},
                }
                await cluster.client.resource("v1/pods", namespace="default").create(pod)
                while b"handleAdd is called for Pod (key: default/a)" not in line:
                    line = await process.stdout.readline()
                    assert line, "it ended"
        finally:
            process.send_signal(signal.SIGINT)
            rest, _ = await process.communicate()
    assert b"stopped" in rest
    assert process.returncode == 0
