"""Which image is built anew, and when: by what goes into it."""

from __future__ import annotations

from pathlib import Path

import pytest

from hack.realcluster import images, programs
from hack.realcluster.programs import ProgramsMissing

DOCKERFILE = """\
FROM python:3.13-slim AS build
COPY pyproject.toml README.md ./
COPY source source
FROM python:3.13-slim
COPY --from=build /opt/elasti /opt/elasti
"""

IGNORED = "*\n!pyproject.toml\n!README.md\n!so*\nsource/tests\n**/__pycache__\n"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A project with a Dockerfile."""
    (tmp_path / "source" / "deep").mkdir(parents=True)
    (tmp_path / ".dockerignore").write_text(IGNORED)
    for name in ("pyproject.toml", "README.md", "source/deep/a.py", "other.py"):
        (tmp_path / name).write_text(name)
    (tmp_path / "Dockerfile").write_text(DOCKERFILE)
    return tmp_path


def name_of(tree: Path) -> str:
    return images.project_archive({"HOME": "/"}, tree).name


def test_the_projects_image_is_that_of_what_the_dockerfile_copies(tree: Path) -> None:
    copied = {str(path.relative_to(tree)) for path in images.copied_files(tree)}
    assert copied == {
        ".dockerignore",
        "Dockerfile",
        "pyproject.toml",
        "README.md",
        "source/deep/a.py",
    }


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("source/deep/a.py", True),
        ("source/new.py", True),
        ("Dockerfile", True),
        ("other.py", False),
        ("source/__pycache__/a.pyc", False),
        ("source/tests/test_a.py", False),
    ],
)
def test_it_is_built_again_when_that_has_changed(tree: Path, name: str, changes: bool) -> None:
    before = name_of(tree)
    (tree / name).parent.mkdir(exist_ok=True)
    with (tree / name).open("a") as file:
        file.write("# more\n")
    assert (name_of(tree) != before) is changes


def test_what_is_not_there_is_named_with_its_remedy(tmp_path: Path) -> None:
    with pytest.raises(ProgramsMissing, match="run `make realcluster`"):
        images.ready({"ELASTI_CACHE": str(tmp_path)})
    with pytest.raises(ProgramsMissing, match=r"^not installed: apt-get install teapot kettle$"):
        programs.require({"/no/teapot": "teapot", "sh": "dash", "no-kettle": "kettle"})


def test_every_toolset_has_its_own_place_in_the_cache() -> None:
    env = {"ELASTI_CACHE": "/cache"}
    places = {name: toolset.directory(env) for name, toolset in programs.toolsets().items()}
    assert len(set(places.values())) == len(places)
    for name, place in places.items():
        assert place.parent == Path("/cache/realcluster") / name


def test_pip_gets_an_index_only_if_the_machine_names_one() -> None:
    assert "index-url" not in images.pip_settings({})
    assert "index-url = https://mirror/simple\n" in images.pip_settings(
        {"PIP_INDEX_URL": "https://mirror/simple"}
    )
