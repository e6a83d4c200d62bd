"""What a release needs: one version, a changelog that has it, hooks and templates that work."""

from __future__ import annotations

import importlib
import re
import subprocess
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
PACKAGES = ("kubeloop", "devkube", "elasti")


def version_of(package: str) -> str:
    return str(importlib.import_module(f"{package}._version").__version__)


def test_packages_and_chart_have_the_one_version():
    version = (ROOT / "VERSION").read_text().strip()
    assert {version_of(package) for package in PACKAGES} == {version}, "make version"
    chart = yaml.safe_load((ROOT / "charts/elasti/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version), "make version"


def test_the_packages_ask_for_each_other_in_that_minor_version():
    major, minor, _ = map(int, version_of("kubeloop").split("."))
    wanted = f">={major}.{minor},<{major}.{minor + 1}"
    for package in PACKAGES:
        text = (ROOT / "packages" / package / "pyproject.toml").read_text()
        for name, range_ in re.findall(r'"(kubeloop|devkube)([<>=~][^"]*)"', text):
            assert range_ == wanted, f"{package} asks for {name}{range_}"


def test_the_changelog_has_the_version_with_a_section_for_each_package():
    text = (ROOT / "CHANGELOG.md").read_text()
    parts = re.split(rf"^## {re.escape(version_of('elasti'))}\b.*$", text, flags=re.MULTILINE)
    assert len(parts) == 2, "CHANGELOG.md needs one section for the version of _version.py"
    section = parts[1].split("\n## ")[0]
    assert [name for name in PACKAGES if f"\n### {name}\n" not in section] == []


def test_every_hook_is_a_target_of_the_makefile():
    targets = re.findall(r"^([a-z0-9-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    [repo] = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())["repos"]
    for hook in repo["hooks"]:
        command, target = hook["entry"].split()
        assert command == "make"
        assert target in targets


FORMS = sorted((ROOT / ".github").rglob("*.yml"))


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form.name)
def test_forms_for_the_forge_are_yaml(form: Path):
    assert isinstance(yaml.safe_load(form.read_text()), dict)


def test_code_owners_name_paths_that_exist():
    for line in (ROOT / ".github" / "CODEOWNERS").read_text().splitlines():
        if line.startswith("/"):
            assert (ROOT / line.split()[0].strip("/")).exists(), line


LOCKS = sorted(
    [*ROOT.glob("requirements*.lock"), *(ROOT / "tests").rglob("requirements.lock")], key=str
)


@pytest.mark.parametrize("lock", LOCKS, ids=lambda lock: str(lock.relative_to(ROOT)))
def test_every_pin_of_a_lock_has_hashes(lock: Path):
    pins = re.split(r"^(?=\S)", lock.read_text(), flags=re.MULTILINE)[1:]
    assert pins
    assert [pin for pin in pins if not re.match(r"[\w.-]+==\S+.*\\\n +--hash=sha256:", pin)] == []


def test_no_lock_is_installed_without_its_hashes():
    text = "".join((ROOT / name).read_text() for name in ("Makefile", "hack/image/steps"))
    lines = [line for line in text.splitlines() if re.search(r"install.*\.lock", line)]
    assert {found for line in lines for found in re.findall(r"\S+\.lock", line)} == {
        str(lock.relative_to(ROOT)) for lock in LOCKS
    }
    assert [line for line in lines if "--require-hashes" not in line] == []


def test_a_release_builds_on_a_base_by_digest():
    """What the digest is only a registry can tell; that there is one the workflow checks."""
    workflow = yaml.safe_load((ROOT / ".github/workflows/release.yml").read_text())
    steps = workflow["jobs"]["image"]["steps"]
    (check,) = (step["run"] for step in steps if "BASE" in step.get("env", {}))
    (build,) = (step for step in steps if "build-push-action" in step.get("uses", ""))
    assert build["with"]["build-args"] == "BASE=${{ vars.BASE_IMAGE }}"
    base = re.findall(r"^ARG BASE=(\S+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    for given, accepted in (
        (f"{base[0]}@sha256:{'a' * 64}", True),
        (base[0], False),
        (f"{base[0]}@sha256:short", False),
        (f"evil/{base[0]}@sha256:{'a' * 64}", False),
        ("", False),
    ):
        done = subprocess.run(["bash", "-ec", check], env={"BASE": given}, check=False)
        assert (done.returncode == 0) is accepted, given
