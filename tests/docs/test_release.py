"""What a release needs: versions, changelogs that have them, hooks and templates that work."""

from __future__ import annotations

import importlib
import re
import subprocess
from pathlib import Path

import pytest
import yaml

from hack import dist, release

ROOT = Path(__file__).parents[2]
PACKAGES = ("kubeloop", "kubeloop-kinds", "devkube", "elasti")


def version_of(package: str) -> str:
    return str(importlib.import_module(f"{package.replace('-', '_')}._version").__version__)


def test_product_and_chart_have_the_one_version():
    version = (ROOT / "VERSION").read_text().strip()
    assert version_of("elasti") == version, "make version"
    chart = yaml.safe_load((ROOT / "charts/elasti/Chart.yaml").read_text())
    assert (chart["version"], chart["appVersion"]) == (version, version), "make version"


def test_the_charts_page_names_the_kubernetes_that_the_chart_accepts():
    chart = yaml.safe_load((ROOT / "charts/elasti/Chart.yaml").read_text())
    oldest = re.fullmatch(r">=(\d+\.\d+)\.0-0", chart["kubeVersion"])
    assert oldest is not None
    for page in (
        "charts/elasti/README.md",
        "charts/elasti/README.md.gotmpl",
        "docs/guide/installing.md",
    ):
        found = re.findall(
            r"Kubernetes (\d+\.\d+) or newer[;.]", " ".join((ROOT / page).read_text().split())
        )
        assert found[:1] == [oldest[1]], page


def test_the_packages_ask_for_the_minor_versions_that_they_are_tested_with():
    asked = set()
    for package in PACKAGES:
        text = (ROOT / "packages" / package / "pyproject.toml").read_text()
        for name, range_ in re.findall(r'"(kubeloop|devkube)([<>=~][^"]*)"', text):
            major, minor, _ = map(int, version_of(name).split("."))
            assert range_ == f">={major}.{minor},<{major}.{minor + 1}", f"{package} asks for {name}"
            asked.add((package, name))
    assert asked >= {("kubeloop-kinds", "kubeloop"), ("devkube", "kubeloop"), ("elasti", "devkube")}


@pytest.mark.parametrize("package", PACKAGES)
def test_a_tag_names_a_package_and_its_version(package: str, capsys: pytest.CaptureFixture[str]):
    version, prefix = version_of(package), "" if package == "elasti" else f"{package}-"
    dist.main(["tag", f"{prefix}v{version}"])
    assert capsys.readouterr().out == f"package={package}\nversion={version}\n"
    for wrong in (f"{prefix}v9.9.9", f"other-v{version}", version, ""):
        with pytest.raises(SystemExit, match="is none of"):
            dist.main(["tag", wrong])


@pytest.mark.parametrize("package", PACKAGES)
def test_each_changelog_has_its_packages_version(package: str):
    place = ROOT if package == "elasti" else ROOT / "packages" / package
    titles = re.findall(r"^## (\S+)", (place / "CHANGELOG.md").read_text(), re.MULTILINE)
    assert len(titles) == len(set(titles))
    # A package that was never released has no dated section yet.
    assert version_of(package) in titles or titles == ["Unreleased"]


@pytest.fixture(name="made")
def _made(tmp_path: Path) -> Path:
    """Files with the names that `make dist` gives them."""
    made = tmp_path / "made"
    made.mkdir()
    for package in PACKAGES:
        name, version = package.replace("-", "_"), version_of(package)
        wheel = "elasti_operator" if package == "elasti" else name
        for file in (f"{wheel}-{version}.whl", f"{wheel}-{version}.tar.gz"):
            (made / file).touch()
        (made / f"{name}-{version}-notes.md").touch()
    for end in (".tgz", "-image.tar.gz"):
        (made / f"elasti-{version_of('elasti')}{end}").touch()
    return made


@pytest.mark.parametrize("package", PACKAGES)
def test_the_workflow_publishes_what_the_tag_names(package: str, made: Path, tmp_path: Path):
    version, name = version_of(package), package.replace("-", "_")
    tag = f"v{version}" if package == "elasti" else f"{package}-v{version}"
    said = release.play(tag, tmp_path / "release", made=made)
    wheel = "elasti_operator" if package == "elasti" else name
    published = {file.name for file in (tmp_path / "release/packages/dist").iterdir()}
    assert published == {f"{wheel}-{version}.whl", f"{wheel}-{version}.tar.gz"}
    (line,) = (line for line in said.splitlines() if "would run: gh release create" in line)
    assert f"create {tag} " in line
    assert f"--notes-file dist/{name}-{version}-notes.md" in line
    pushed = f"would run: helm push dist/elasti-{version}.tgz oci://ghcr.io/example/charts"
    assert (pushed in said) is (package == "elasti")
    assert ("cosign sign --yes ghcr.io/example/elasti@sha256:" in said) is (package == "elasti")


@pytest.mark.parametrize("missing", [".tgz", "-notes.md"])
def test_a_release_without_one_of_its_files_fails(missing: str, made: Path, tmp_path: Path):
    version = version_of("elasti")
    (made / f"elasti-{version}{missing}").unlink()
    with pytest.raises(SystemExit, match="is missing"):
        release.play(f"v{version}", tmp_path / "release", made=made)


def test_a_release_has_notes_and_what_the_image_is_built_from():
    for package in PACKAGES:
        assert dist.notes(package).startswith("##"), package
    found = dist.context()
    assert {"Dockerfile", "hack/image/steps", "requirements.lock"} <= set(found)
    assert "packages/elasti/src/elasti/__main__.py" in found
    assert [name for name in found if "/tests/" in name or "devkube" in name] == []


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


def test_every_action_is_named_by_commit_with_its_version_beside_it():
    uses = [
        line
        for path in (ROOT / ".github/workflows").glob("*.yml")
        for line in path.read_text().splitlines()
        if "uses:" in line
    ]
    assert len(uses) > 20
    pinned = re.compile(r"uses: [\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$")
    assert [line for line in uses if not pinned.search(line)] == []
