"""The table of KubeElasti's names leads to files and names that exist."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs" / "reference" / "names.md").read_text()
ROWS = re.findall(r"^\| (`[^|]+`) \| (`[^|]+`) \| `([^`]+)` \|", PAGE, re.MULTILINE)
# What readers of KubeElasti's documents look for.
KNOWN = (
    "AutoscalerSpec", "CRDDetails", "ElastiServer", "ElastiService", "ElastiServiceList",
    "ElastiServiceReconciler", "ElastiServiceSpec", "ElastiServiceStatus", "KeyParams",
    "KeyParams.CRDName", "KeyParams.Namespace", "KeyParams.ResourceName", "KeyParams.ResourceType",
    "RPCClient.Client", "RequestWatch", "RequestWatch.GroupVersionResource", "RequestWatch.Handlers",
    "RequestWatch.Req", "RequestWatch.ResourceName", "RequestWatch.ResourceNamespace", "ScaleHandler",
    "ScaleTargetRef", "ScaleTrigger", "crddirectory.Directory", "info", "informer.Manager", "opsInformer",
    "updateObjInfo", "updateObjInfo.name", "updateObjInfo.namespace", "updateObjInfo.selector",
    "updateObjInfo.specReplicas", "updateObjInfo.statusReplicas",
)  # fmt: skip


def source(path: str) -> Path:
    package = "kubeloop" if path.startswith("kubeloop/") else "elasti"
    inside = path if package == "kubeloop" else f"elasti/{path}"
    return ROOT / "packages" / package / "src" / inside


def defined(tree: ast.AST) -> set[str]:
    """The names that a syntax tree defines: classes, functions, fields, attributes."""
    found = set()
    for node in ast.walk(tree):
        match node:
            case (
                ast.ClassDef(name=name)
                | ast.FunctionDef(name=name)
                | ast.AsyncFunctionDef(name=name)
            ):
                found.add(name)
            case (
                ast.AnnAssign(target=ast.Name(id=name))
                | ast.AnnAssign(target=ast.Attribute(attr=name))
            ):
                found.add(name)
            case ast.Attribute(attr=name):
                found.add(name)
    return found


@pytest.mark.parametrize(("names", "path"), [row[1:] for row in ROWS], ids=[row[0] for row in ROWS])
def test_a_name_is_in_its_file(names: str, path: str):
    tree = ast.parse(source(path).read_text())
    for name in re.findall(r"`([^`]+)`", names):
        *owners, last = name.split(".")
        place: ast.AST = tree
        for owner in owners:
            [place] = (
                node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == owner
            )
        assert last in defined(place), f"{path} has no {name}"


def test_every_name_that_readers_know_is_in_the_table():
    named = {name for row in ROWS for name in re.findall(r"`([^`]+)`", row[0])}
    assert [name for name in KNOWN if name not in named] == []
