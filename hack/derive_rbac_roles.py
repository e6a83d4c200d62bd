#!/usr/bin/env python3
"""Derive the dev cluster's bootstrap roles and bindings from Kubernetes' own expectations.

    derive_rbac_roles.py            write the table
    derive_rbac_roles.py --check    fail when the table in the tree is not what would be written

The source is the `k8s.io/kubernetes` module at the version that `hack/controlplane/kubernetes/go.mod`
pins, as the Go module cache holds it. Facts only: names, labels, rules, subjects.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "packages/devkube/src/devkube/auth/data/roles.json"
PINS = ROOT / "hack/controlplane/kubernetes"
PACKAGE = "plugin/pkg/auth/authorizer/rbac/bootstrappolicy/testdata"
SOURCES = (
    "cluster-roles.yaml",
    "controller-roles.yaml",
    "cluster-role-bindings.yaml",
    "controller-role-bindings.yaml",
    "namespace-roles.yaml",
    "namespace-role-bindings.yaml",
)
# Every object has these; whoever reads the table puts them back.
COMMON_LABEL = "kubernetes.io/bootstrapping"


def source() -> Path:
    """Return where the module cache holds the documents."""
    command = ["go", "list", "-m", "-f", "{{.Dir}}", "k8s.io/kubernetes"]
    listed = subprocess.run(command, cwd=PINS, check=True, capture_output=True, text=True)
    return Path(listed.stdout.strip(), PACKAGE)


def compact(obj: dict[str, Any]) -> dict[str, Any]:
    """Return an object without what all of them have."""
    metadata = obj["metadata"]
    labels = {k: v for k, v in metadata.get("labels", {}).items() if k != COMMON_LABEL}
    parts = ("rules", "aggregationRule", "subjects", "roleRef")
    kept: dict[str, Any] = {"kind": obj["kind"], "name": metadata["name"]}
    kept |= {"namespace": metadata.get("namespace"), "labels": labels}
    kept |= {name: obj.get(name) for name in parts}
    return {name: value for name, value in kept.items() if value}


def table(directory: Path) -> str:
    """Return the table, one object a line."""
    rows = [
        compact(item)
        for name in SOURCES
        for item in yaml.safe_load((directory / name).read_text())["items"]
    ]
    return "[\n" + ",\n".join(json.dumps(row, separators=(",", ":")) for row in rows) + "\n]\n"


def main() -> None:
    """Write the table, or compare."""
    wanted = table(source())
    if "--check" not in sys.argv:
        TARGET.write_text(wanted)
    elif TARGET.read_text() != wanted:
        sys.exit(f"{TARGET.relative_to(ROOT)} is not what {Path(__file__).name} writes")


if __name__ == "__main__":
    main()
