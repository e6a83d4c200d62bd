"""A name in back-ticks in a docstring exists: in its module, beside it, or in Python and Kubernetes."""

from __future__ import annotations

import ast
import builtins
import functools
import keyword
import re
import socket
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    path
    for package in ("kubeloop", "devkube", "elasti")
    for path in ROOT.glob(f"packages/{package}/src/**/*.py")
)
# Words of Kubernetes, kubectl and JSON patches that docstrings use as examples.
KUBERNETES = frozenset(
    [
        "true",
        "false",
        "null",
        "api",
        "apps",
        "autoscaler",
        "deploy",
        "deployments",
        "diff",
        "eviction",
        "force",
        "io",
        "k8s",
        "metav1",
        "nodeName",
        "scale",
        "spec",
        "test",
        "v1",
        "whoami",
        "Condition",
        "DeploymentSpec",
        "MicroTime",
        "Time",
    ]
)
# One lower-case word, or several joined by dots: `name`, `module.name`, `name()`, `name=`.
_NAME = re.compile(r"(?<!`)`([a-z_][a-z0-9_]+(?:\.[A-Za-z_][A-Za-z0-9_]*)*)(?:\(\)|=)?`(?!`)")
_WORD = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_DOCUMENTED = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    for node in ast.walk(tree):
        if isinstance(node, _DOCUMENTED) and (text := ast.get_docstring(node)) is not None:
            yield (node.lineno if hasattr(node, "lineno") else 1), text


def parsed(path: Path) -> ast.Module:
    # Not kept: hundreds of trees cost the garbage collector more than to parse each of them twice.
    return ast.parse(path.read_text())


@functools.cache
def words_of_code(path: Path) -> frozenset[str]:
    """Return every name that a module's code has, and the words of its strings but docstrings."""
    tree, found = parsed(path), set(path.parts[path.parts.index("src") + 1 :]) | {path.stem}
    texts = {
        id(node.body[0].value)
        for node in ast.walk(tree)
        if isinstance(node, _DOCUMENTED) and node.body and isinstance(node.body[0], ast.Expr)
    }
    for node in ast.walk(tree):
        match node:
            case ast.Name(id=name) | ast.Attribute(attr=name) | ast.arg(arg=name):
                found.add(name)
            case (
                ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
                | ast.ClassDef(name=name)
            ):
                found.add(name)
            case ast.keyword(arg=str() as name):
                found.add(name)
            case ast.alias(name=name):
                found.update(name.split("."))
            case ast.Constant(value=str() as text) if id(node) not in texts:
                found.update(_WORD.findall(text))
    return frozenset(found)


@functools.cache
def known_beside(directory: Path) -> frozenset[str]:
    """Return the words of a package's modules, those below it included."""
    return frozenset().union(*(words_of_code(path) for path in directory.rglob("*.py")))


@functools.cache
def everywhere() -> frozenset[str]:
    """Return what any reader knows: Python's names, and those of modules and packages of ours."""
    ours = {part for path in SOURCES for part in (*path.parts, path.stem)}
    python = {*dir(builtins), *dir(socket), *keyword.kwlist, *sys.stdlib_module_names, "py"}
    return frozenset(python | ours | KUBERNETES)


def unknown(path: Path) -> list[str]:
    known = words_of_code(path) | known_beside(path.parent) | everywhere()
    return [
        f"{path.relative_to(ROOT)}:{line}: `{name}`"
        for line, text in docstrings(parsed(path))
        for name in _NAME.findall(text)
        if not exists(name, known)
    ]


def exists(name: str, known: frozenset[str]) -> bool:
    """Whether every part of a name is known, or its last one is a name of the module before it."""
    *_, module, last = ["", *name.split(".")]
    there = (last in words_of_code(path) for path in SOURCES if path.stem == module)
    return all(part in known for part in name.split(".")) or any(there)


def test_names_in_docstrings_exist():
    assert [name for path in SOURCES for name in unknown(path)] == []


@pytest.mark.parametrize(
    "text", ["`gone_name`", "Call `gone_name()`.", "`ast.gone_name`", "`gone_name=`"]
)
def test_a_name_that_was_renamed_is_found(tmp_path, monkeypatch, text):
    module = tmp_path / "src" / "module.py"
    module.parent.mkdir()
    module.write_text(f'"""{text}"""\nimport ast\nnew_name = 1\n')
    monkeypatch.setattr(sys.modules[__name__], "ROOT", tmp_path)
    assert len(unknown(module)) == 1
