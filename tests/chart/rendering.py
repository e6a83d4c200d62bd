"""The chart, rendered by Helm; and objects made comparable with those of `elasti manifests`."""

from __future__ import annotations

import functools
import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import yaml

from elasti.cli.install.choices import OPTIONS_ANNOTATION

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "elasti"
BUILD = ROOT / "hack" / "charttools" / "build"
KUBEELASTI = Path(__file__).with_name("kubeelasti")
KUBEELASTI_VALUES = KUBEELASTI / "values.yaml"
"""KubeElasti's, v0.1.30, unchanged."""

JsonObject = dict[str, Any]
Key = tuple[str, str, str]

# What says who installed an object, and by what.
_OWNER_LABELS = ("app.kubernetes.io/managed-by", "helm.sh/chart")
_OWNER_ANNOTATIONS = (OPTIONS_ANNOTATION, "helm.sh/resource-policy")


@functools.cache
def tools() -> Path:
    """The directory that `make charttools` fills."""
    asked = subprocess.run([BUILD, "--where"], check=True, capture_output=True, text=True)
    return Path(asked.stdout.strip())


def tool(name: str) -> str:
    path = tools() / name
    if not os.access(path, os.X_OK):
        raise FileNotFoundError(f"no {name}: run `make charttools` (once, needs Go)")
    return str(path)


class RenderError(Exception):
    """Helm's own words."""


def helm(*arguments: str, **options: Any) -> str:
    """Helm's output. Raises RenderError."""
    done = subprocess.run(
        [tool("helm"), *arguments], check=False, capture_output=True, text=True, **options
    )
    if done.returncode != 0:
        raise RenderError(done.stderr)
    return done.stdout


def render(values: JsonObject | Path, name: str = "elasti", *arguments: str) -> list[JsonObject]:
    """All objects, hooks too; `name` is the release's and the namespace's. Raises RenderError."""
    with tempfile.NamedTemporaryFile("w", suffix=".json") as file:
        if not isinstance(values, Path):
            json.dump(values, file, ensure_ascii=False)
            file.flush()
        path = values if isinstance(values, Path) else file.name
        text = helm(
            "template", name, str(CHART), f"--namespace={name}", f"--values={path}", *arguments
        )
    return [obj for obj in yaml.load_all(text, yaml.CSafeLoader) if obj]


def key(obj: JsonObject) -> Key:
    meta = obj["metadata"]
    return obj["kind"], meta.get("namespace", ""), meta["name"]


def is_hook(obj: JsonObject) -> bool:
    return "helm.sh/hook" in obj["metadata"].get("annotations", {})


def found(objects: list[JsonObject], kind: str, name: str = "") -> JsonObject:
    """The one object of a kind and name."""
    (one,) = (o for o in objects if o["kind"] == kind and name in ("", o["metadata"]["name"]))
    return one


def container(objects: list[JsonObject], program: str) -> JsonObject:
    deployment = found(objects, "Deployment", f"elasti-{program}")
    (one,) = deployment["spec"]["template"]["spec"]["containers"]
    return one


def comparable(objects: list[JsonObject]) -> dict[Key, JsonObject]:
    """Objects by key: without owners, without what is empty, with variables by name."""
    return {key(obj): _plain(_without_owner(obj)) for obj in objects}


def _without_owner(obj: JsonObject) -> JsonObject:
    copied: JsonObject = json.loads(json.dumps(obj))
    for meta in (
        copied["metadata"],
        copied.get("spec", {}).get("template", {}).get("metadata", {}),
    ):
        for field, names in (("labels", _OWNER_LABELS), ("annotations", _OWNER_ANNOTATIONS)):
            meta[field] = {k: v for k, v in meta.get(field, {}).items() if k not in names}
    return copied


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        plain = {name: _plain(item) for name, item in value.items()}
        if isinstance(plain.get("env"), list):
            plain["env"] = {item["name"]: item for item in plain["env"]}
        return {name: item for name, item in plain.items() if item not in ({}, [], None)}
    return [_plain(item) for item in value] if isinstance(value, list) else value
