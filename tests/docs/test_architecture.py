"""The map of the code is true: every room, file and name on it exists, and no room is missing."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "architecture.md").read_text()
WAYS = ("event", "object", "wake-up", "connection")
STEP = re.compile(r"^\d+\. `([^`]+\.py)` `([^`]+)`", re.MULTILINE)


def steps(way: str) -> list[tuple[Path, str]]:
    """The files and names of a way, in its order."""
    section = PAGE.split(f" {way}, step by step")[1]
    section = section.split("\n## ")[0]
    place = re.search(r"`(packages/[^`]+)`", section)
    assert place is not None
    return [(ROOT / place[1] / file, name) for file, name in STEP.findall(section)]


def defined(file: Path) -> set[str]:
    kinds = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    return {node.name for node in ast.parse(file.read_text()).body if isinstance(node, kinds)}


@pytest.mark.parametrize("way", WAYS)
def test_a_way_has_at_most_a_dozen_steps(way: str):
    assert 5 <= len(steps(way)) <= 12


@pytest.mark.parametrize(
    ("file", "name"),
    [step for way in WAYS for step in steps(way)],
    ids=lambda value: str(value)[-40:],
)
def test_a_step_names_a_file_and_what_is_in_it(file: Path, name: str):
    assert file.is_file(), (
        f"docs/architecture.md names {file.relative_to(ROOT)}, which is not there"
    )
    assert name in defined(file), f"{file.relative_to(ROOT)} has no {name}"


def rooms(package: str) -> set[str]:
    table = PAGE.split(f"| `packages/{package}/src/{package}` |")[1].split("\n\n")[0]
    return set(re.findall(r"^\| `([a-z0-9_/]+)/` \|", table, re.MULTILINE))


@pytest.mark.parametrize("package", ["kubeloop", "devkube", "elasti"])
def test_the_rooms_on_the_map_are_those_of_the_package(package: str):
    source = ROOT / "packages" / package / "src" / package
    assert [room for room in rooms(package) if not (source / room).is_dir()] == []
    first = {path.parent.name for path in source.glob("*/__init__.py")}
    assert first - rooms(package) == set()


def test_the_map_has_every_room_of_both_programs():
    source = ROOT / "packages" / "elasti" / "src" / "elasti"
    for program in ("operator", "resolver"):
        there = {
            f"{program}/{path.parent.name}" for path in source.glob(f"{program}/*/__init__.py")
        }
        assert there - rooms("elasti") == set()


def test_the_map_has_every_package():
    packages = {path.parent.name for path in (ROOT / "packages").glob("*/pyproject.toml")}
    for page in ("docs/architecture.md", "README.md", "CONTRIBUTING.md"):
        named = (ROOT / page).read_text()
        assert [name for name in packages if not re.search(rf"{name}[/`]", named)] == []


def test_the_object_passes_few_files_and_the_page_counts_them():
    section = PAGE.split("## An object, step by step")[1].split("\n## ")[0]
    walk = section.split("The walk names ")[1].split("\n\nEvery reconcile")[0]
    operator = ROOT / "packages" / "elasti" / "src" / "elasti" / "operator"
    named = set(re.findall(r"`([a-z_/]+\.py)`", walk))
    assert [file for file in named if not (operator / file).is_file()] == []
    assert len(named) == int(walk.split()[0]) <= 30
