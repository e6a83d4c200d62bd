"""What a test run says where there are no binaries."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import TYPE_CHECKING

import pytest

from tests.controlplane.binaries import NEEDED, Binaries, BinariesMissing
from tests.controlplane.sandbox import ROOT

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache."""
    monkeypatch.setenv("ELASTI_CACHE", str(tmp_path / "cache"))
    return tmp_path


def run_rig_tests(**env: str) -> subprocess.CompletedProcess[str]:
    hidden = {"CI", "KUBEBUILDER_ASSETS"}
    kept = {name: value for name, value in os.environ.items() if name not in hidden}
    return subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-q",
            "tests/controlplane/test_rig.py",
        ],
        cwd=ROOT,
        env={**kept, **env},
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.usefixtures("elsewhere")
def test_without_binaries_one_line_says_how_to_get_them() -> None:
    run = run_rig_tests()
    assert run.returncode == 0
    (line,) = [line for line in run.stdout.splitlines() if "SKIPPED" in line]
    assert "make controlplane" in line
    assert "KUBEBUILDER_ASSETS" in line


@pytest.mark.usefixtures("elsewhere")
def test_without_binaries_a_ci_job_fails() -> None:
    run = run_rig_tests(CI="true")
    assert run.returncode == 1
    assert "skipped" not in run.stdout


def test_given_assets_come_first_if_they_are_complete(elsewhere: Path) -> None:
    assets = elsewhere / "assets"
    assets.mkdir()
    for name in NEEDED:
        with pytest.raises(BinariesMissing):
            Binaries.locate(assets)
        (assets / name).touch(mode=0o755)
    assert Binaries.locate(assets).directory == assets


@pytest.mark.parametrize(("ci", "code"), [("true", 1), ("", 0)])
def test_any_other_skip_fails_a_ci_job_too(tmp_path: Path, ci: str, code: int) -> None:
    path = tmp_path / "test_one.py"
    path.write_text("import pytest\n\ndef test_it():\n    pytest.skip('no such program')\n")
    plugin = [
        "-p",
        "tests.controlplane.plugin",
        "-p",
        "no:cacheprovider",
        "--rootdir",
        str(tmp_path),
    ]
    run = subprocess.run(
        [sys.executable, "-m", "pytest", "-c", os.devnull, *plugin, str(path)],
        cwd=ROOT,
        env={**os.environ, "CI": ci},
        check=False,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert run.returncode == code, run.stdout
    assert "no such program" in run.stdout or not ci
