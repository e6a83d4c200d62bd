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
    "AddCRD", "AutoscalerSpec", "CRDDetails", "CRDDetails.CRDName", "CRDDetails.Spec", "CRDDetails.Status",
    "Directory.Logger", "Directory.Services", "ElastiServer", "ElastiService", "ElastiServiceList",
    "ElastiServiceReconciler", "ElastiServiceReconciler.Reconcile", "ElastiServiceSpec", "ElastiServiceStatus",
    "KeyParams", "KeyParams.CRDName", "KeyParams.Namespace", "KeyParams.ResourceName", "KeyParams.ResourceType",
    "Manager.client", "Manager.dynamicClient", "Manager.healthCheckDuration", "Manager.healthCheckStopChan",
    "Manager.informers", "Manager.logger", "Manager.resolver", "Manager.resyncPeriod",
    "RPCClient.Client", "RequestWatch", "RequestWatch.GroupVersionResource", "RequestWatch.Handlers",
    "RequestWatch.Req", "RequestWatch.ResourceName", "RequestWatch.ResourceNamespace", "ScaleHandler",
    "ScaleHandler.ScaleTargetFromZero", "ScaleTargetRef", "ScaleTrigger", "crddirectory.Directory",
    "elastiserver.Server", "info", "info.Informer", "info.Req", "info.StopCh", "informer.Manager", "opsInformer",
    "updateObjInfo", "updateObjInfo.name", "updateObjInfo.namespace", "updateObjInfo.selector",
    "updateObjInfo.specReplicas", "updateObjInfo.statusReplicas",
)  # fmt: skip
# What they use of client-go and controller-runtime; its table is in the guide to informers.
CLIENT_GO = (
    "AddEventHandler", "AddFunc", "DeleteFunc", "UpdateFunc", "HasSynced", "NewSharedInformerFactory", "Request",
    "ResourceEventHandlerFuncs", "SharedInformer", "WaitForCacheSync", "dynamic.Interface", "factory.Start",
    "factory.Core().V1().Pods().Informer()", "kubernetes.Clientset", "schema.GroupVersionResource", "wait.Until",
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


def test_every_name_of_client_go_is_in_its_table():
    guide = (ROOT / "docs" / "guide" / "informers.md").read_text().split("## client-go's names")[1]
    named = " ".join(re.findall(r"^\| ([^|]+) \|", guide, re.MULTILINE))
    assert [name for name in CLIENT_GO if not re.search(rf"\b{re.escape(name)}[`(]", named)] == []
