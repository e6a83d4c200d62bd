"""The façades: what they promise exists, checkers see the same, and importing them is cheap."""

from __future__ import annotations

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import kubeloop

PACKAGES = [
    "kubeloop",
    *(f"kubeloop.{info.name}" for info in pkgutil.iter_modules(kubeloop.__path__) if info.ispkg),
]
FACADES = [name for name in PACKAGES if hasattr(importlib.import_module(name), "_EXPORTS")]
HEAVY = ["aiohttp", "yaml"]


def type_checking_imports(package: str) -> dict[str, str]:
    """Return name to module, of the imports that only type checkers see."""
    tree = ast.parse(Path(importlib.import_module(package).__file__ or "").read_text())
    found: dict[str, str] = {}
    for node in tree.body:
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING":
            for statement in node.body:
                assert isinstance(statement, ast.ImportFrom)
                for alias in statement.names:
                    assert alias.asname == alias.name, f"{alias.name}: import it `as` itself"
                    found[alias.name] = statement.module or ""
    return found


@pytest.mark.parametrize("package", FACADES)
def test_checkers_and_the_interpreter_see_the_same_names(package):
    module = importlib.import_module(package)
    assert type_checking_imports(package) == module._EXPORTS


@pytest.mark.parametrize("package", FACADES)
def test_every_promised_name_exists_where_the_table_says(package):
    module = importlib.import_module(package)
    for name, home in module._EXPORTS.items():
        assert getattr(module, name) is getattr(importlib.import_module(home), name)


@pytest.mark.parametrize("package", FACADES)
def test_dir_lists_every_name_for_those_who_explore(package):
    module = importlib.import_module(package)
    assert {*module._EXPORTS, "__name__"} <= set(dir(module))


@pytest.mark.parametrize("package", FACADES)
def test_a_star_imports_every_name(package):
    module = importlib.import_module(package)
    found: dict[str, object] = {}
    exec(f"from {package} import *", found)
    assert found.keys() >= module._EXPORTS.keys()


def test_the_version_is_public():
    assert kubeloop.__version__


@pytest.mark.parametrize("package", FACADES)
def test_help_lists_names_in_order(package):
    module = importlib.import_module(package)
    assert module.__all__ == sorted(module._EXPORTS)


@pytest.mark.parametrize("package", FACADES)
def test_an_unknown_name_is_an_ordinary_attribute_error(package):
    module = importlib.import_module(package)
    with pytest.raises(AttributeError, match=f"module '{package}' has no attribute 'Nope'"):
        _ = module.Nope


@pytest.mark.parametrize("package", PACKAGES)
def test_importing_a_package_does_not_load_the_transport(package):
    code = f"import {package}, sys; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout.split() == []
