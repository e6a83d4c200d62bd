"""kubeloop's guides do what they say: their functions run, their test files pass as they stand."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

from kubeloop.controller import Manager
from kubeloop.testing.fake_client import FakeClient

GUIDES = Path(__file__).parents[2] / "docs" / "kubeloop"


def objects() -> list[dict[str, Any]]:
    pod = {
        "metadata": {"name": "web-0", "labels": {"app": "web"}, "uid": "u"},
        "status": {"phase": "Running"},
    }
    return [
        {"apiVersion": "v1", "kind": "Pod", **pod},
        {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": {}},
        {
            "apiVersion": "v1",
            "kind": "ConfigMap",
            "metadata": {"name": "settings", "labels": {"old": "1"}},
        },
    ]


async def test_functions_of_the_client_guide_run() -> None:
    blocks = re.findall(r"```python\n(.*?)```", (GUIDES / "client.md").read_text(), re.DOTALL)
    results: dict[str, Any] = {}
    for block in blocks:
        names: dict[str, Any] = {"__name__": "block"}
        exec(compile(block, "client.md", "exec", dont_inherit=True), names)
        for name, found in names.items():
            if inspect.iscoroutinefunction(found) and name != "main":
                client = FakeClient(
                    *(o for o in objects() if name != "write" or o["kind"] != "ConfigMap")
                )
                results[name] = await found(client)
            if name == "report":
                found(FakeClient(), Manager(), objects()[0])
    expected = {
        "read": ["web-0", "web-0"],
        "addresses": {"web-0": ""},
        "first_change": "ADDED web-0",
        "write": None,
        "scale": None,
        "pause": "paused",
        "remove_label": True,
        "install": None,
    }
    assert results == expected


def test_files_of_the_testing_guide_pass(tmp_path: Path) -> None:
    guide = (GUIDES / "testing.md").read_text()
    for name, content in re.findall(r'```python title="(.*?)"\n(.*?)```', guide, re.DOTALL):
        (tmp_path / name).write_text(content)
    (settings,) = re.findall(r"```toml\n(.*?)```", guide, re.DOTALL)
    (tmp_path / "pyproject.toml").write_text(settings)
    pytest = (sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:xdist")
    ran = subprocess.run(pytest, cwd=tmp_path, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout + ran.stderr
    assert "4 passed" in ran.stdout


def test_every_name_of_the_controllers_guide_is_made_in_one_of_its_blocks() -> None:
    guide = (GUIDES.parent / "guide" / "controllers.md").read_text()
    program = "\n".join(re.findall(r"```python\n(.*?)```", guide, re.DOTALL))
    ruff = (
        Path(sys.executable).with_name("ruff"),
        "check",
        "--isolated",
        "--select=F821,F401",
        "-",
    )
    checked = subprocess.run(ruff, input=program, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout
