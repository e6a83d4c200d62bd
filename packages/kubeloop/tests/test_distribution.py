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
README = PACKAGE / "README.md"
# Pages with programs; those of the tutorial are pieces of an example.
PAGES = (
    "packages/*/README.md",
    "docs/kubeloop/*.md",
    "docs/guide/informers.md",
    "docs/guide/dev-cluster.md",
)
# A module that only pytest can load, as its plugin, and one that needs the extra `webhook`.
NOT_ALONE = {"kubeloop.testing.plugin", "kubeloop.webhook.certificates"}

pytestmark = [pytest.mark.distribution, pytest.mark.timeout(600)]


def run(*command: str | Path, cwd: Path | None = None) -> str:
    clean = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    ran = subprocess.run(command, capture_output=True, text=True, cwd=cwd, env=clean)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    return ran.stdout


def install(python: Path, *requirements: str | Path) -> None:
    """Install into an environment. Skips the test if no package index is within reach."""
    command = (python, "-m", "pip", "install", "--quiet", *requirements)
    installed = subprocess.run(command, capture_output=True, text=True)
    if "No matching distribution found for" in installed.stderr:
        pytest.skip(f"no package index within reach: {installed.stderr.splitlines()[-1]}")
    assert installed.returncode == 0, installed.stderr


@pytest.fixture(scope="module")
def wheels(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """By distribution: kubeloop, its kinds, and devkube for its users' tests."""
    directory = tmp_path_factory.mktemp("wheels")
    pip = (sys.executable, "-m", "pip")
    packages = [PACKAGE.with_name(name) for name in ("kubeloop", "kubeloop-kinds", "devkube")]
    run(*pip, "wheel", "--quiet", "--no-deps", "--no-build-isolation", "-w", directory, *packages)
    return {path.name.partition("-")[0]: path for path in directory.glob("*.whl")}


@pytest.fixture(scope="module")
def python(wheels: dict[str, Path], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The interpreter of an environment with kubeloop's wheel, and what that asks for."""
    directory = tmp_path_factory.mktemp("distribution")
    venv.create(directory, with_pip=True)
    install(directory / "bin" / "python", wheels["kubeloop"])
    return directory / "bin" / "python"


@pytest.fixture(scope="module")
def developers(python: Path, wheels: dict[str, Path]) -> Path:
    """The same with what a developer has beside it: the kinds, devkube and pytest."""
    install(python, *wheels.values(), "pytest", "pytest-asyncio>=1.4")
    return python


def test_it_has_exactly_two_direct_dependencies(python, tmp_path):
    code = "import importlib.metadata, json; print(json.dumps(importlib.metadata.requires('kubeloop')))"
    required = json.loads(run(python, "-c", code, cwd=tmp_path))
    always = (line for line in required if "extra ==" not in line)
    names = {re.split(r"[^\w-]", line)[0].lower() for line in always}
    assert names == {"msgspec", "pyyaml"}


def test_the_sizes_are_those_of_the_readme(wheels, python, tmp_path):
    row = re.search(r"a wheel of ([\d.]+) MB, pure Python; ([\d.]+) MB on disk", README.read_text())
    assert row is not None
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    packages = Path(run(python, "-c", code, cwd=tmp_path).strip())
    files = [
        path
        for name in ("kubeloop", "msgspec", "pyyaml", "yaml", "_yaml")
        for top in (packages / name, *packages.glob(f"{name}-*.dist-info"))
        for path in top.rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    ]
    sizes = wheels["kubeloop"].stat().st_size, sum(path.stat().st_size for path in files)
    stated = tuple(float(size) for size in row.groups())
    assert tuple(size / 1e6 for size in sizes) == pytest.approx(stated, rel=0.15)


def test_every_module_can_be_imported(python, tmp_path):
    code = f"""if True:
        import importlib, pathlib, pkgutil, kubeloop
        assert not pathlib.Path(kubeloop.__file__).is_relative_to({str(REPOSITORY)!r})
        names = [info.name for info in pkgutil.walk_packages(kubeloop.__path__, "kubeloop.")]
        for name in names:
            if name not in {NOT_ALONE!r}:
                importlib.import_module(name)
        print(len(names))
    """
    assert int(run(python, "-c", code, cwd=tmp_path)) > 100


@pytest.fixture
def programs(tmp_path) -> Path:
    """What a user writes: the programs of READMEs, guides and examples, in a directory of their own."""
    found = {path.name: path.read_text() for path in (REPOSITORY / "examples").glob("*.py")}
    for page in (path for pattern in PAGES for path in REPOSITORY.glob(pattern)):
        blocks = re.findall(r'```python(?: title="(.*?)")?\n(.*?)```', page.read_text(), re.DOTALL)
        stem = (page.parent.name if page.stem == "README" else page.stem).replace("-", "_")
        for number, (title, block) in enumerate(blocks):
            found[title or f"{stem}_{number}.py"] = block
    expected = {"kubeloop_1.py", "client_3.py", "informers_0.py", "test_greeter.py", "hello.py"}
    assert expected | {"websites.py"} <= found.keys()
    for name, block in found.items():
        (tmp_path / name).write_text(block)
    return tmp_path


def test_mypy_accepts_a_users_program(developers, programs):
    files = sorted(programs.glob("*.py"))
    mypy = (sys.executable, "-m", "mypy", "--strict", "--cache-dir", programs / "cache")
    run(*mypy, "--python-executable", developers, *files, cwd=programs)


def test_pyright_accepts_a_users_program(developers, programs):
    settings = {"typeCheckingMode": "strict", "reportMissingTypeStubs": False}
    (programs / "pyrightconfig.json").write_text(json.dumps(settings))
    run(Path(sys.executable).with_name("basedpyright"), "--pythonpath", developers, cwd=programs)


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
