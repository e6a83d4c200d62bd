"""How the suites are built: laid out as the source, helpers in support modules, skips with a reason."""

from __future__ import annotations

import ast
import configparser
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SUITES = [ROOT / "tests", *sorted(ROOT.glob("packages/*/tests"))]
FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


def modules() -> Iterator[tuple[Path, ast.Module]]:
    # One after the other: to keep all trees costs the garbage collector more than to parse them again.
    for suite in SUITES:
        for path in sorted(suite.rglob("*.py")):
            yield path.relative_to(ROOT), ast.parse(path.read_text())


def imported(tree: ast.Module) -> Iterator[str]:
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and node.module:
            yield node.module
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        elif isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)


def is_test_module(name: str) -> bool:
    parts = name.split(".")
    # A name of at least two parts below `tests`: functions called test_* are no modules.
    return parts[0] == "tests" and any(part.startswith("test_") for part in parts[1:])


def test_no_module_imports_from_a_test_module():
    found = {
        f"{path}: {name}"
        for path, tree in modules()
        for name in imported(tree)
        if is_test_module(name)
    }
    assert found == set(), "move what is shared into a support module beside the tests"


def bare_skips(node: ast.AST) -> Iterator[int]:
    """Lines of blocks of a function itself that do nothing but return."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, (*FUNCTIONS, ast.Lambda, ast.ClassDef)):
            continue
        if isinstance(child, ast.If) and isinstance(child.body[0], ast.Return):
            yield child.lineno
        yield from bare_skips(child)


def test_no_test_skips_itself_with_a_bare_return():
    # Under hypothesis, `return` discards an example.
    found = {
        f"{path}:{line}"
        for path, tree in modules()
        for node in ast.walk(tree)
        if isinstance(node, FUNCTIONS)
        if node.name.startswith("test_")
        if not any("given" in ast.unparse(decorator) for decorator in node.decorator_list)
        for line in bare_skips(node)
    }
    assert found == set(), "say pytest.skip(reason), or parametrize"


@pytest.mark.parametrize("package", ["kubeloop", "devkube", "elasti"])
def test_tests_are_laid_out_as_the_source(package: str):
    tests = ROOT / "packages" / package / "tests"
    source = ROOT / "packages" / package / "src" / package
    rooms = {path.parent.relative_to(tests) for path in tests.rglob("test_*.py")}
    assert {str(room) for room in rooms if not (source / room).is_dir()} == set()


def test_the_resolvers_contract_has_every_module():
    """The operator's is `exhaustive`; that covers no directories whose modules are layers themselves."""
    contracts = configparser.ConfigParser()
    contracts.read(ROOT / ".importlinter")
    layers = re.findall(r"[\w.]+", contracts["importlinter:contract:resolver-layers"]["layers"])
    source = ROOT / "packages" / "elasti" / "src" / "elasti" / "resolver"
    modules = {
        ".".join(path.relative_to(source).with_suffix("").parts) for path in source.rglob("*.py")
    }
    assert "proxy.h2.frames" in modules
    found = [
        name
        for name in modules
        if not name.endswith("__init__")
        if not any(f"{name}.".startswith(f"{layer}.") for layer in layers)
    ]
    assert found == [], "give it a layer in .importlinter"
