#!/usr/bin/env python3
"""Derive the dev cluster's resource and type tables from Kubernetes' published documents.

    derive_kube_schema.py            write the tables
    derive_kube_schema.py --check    fail when the tables in the tree are not what would be written

Facts only: names, types, merge keys, list kinds, defaults, enumerations, discovery. No prose. The
source is the `k8s.io/kubernetes` and `k8s.io/api` modules at the version that
`hack/controlplane/kubernetes/go.mod` pins, as the Go module cache holds them (`go mod download`).

One file of types a Go package, so that a server reads only the groups that it is asked for;
`resources.json`: what discovery says of every resource of the served group versions; and
`protobuf.json`: the field numbers under which typed clients send those types.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parent.parent
TARGET = ROOT / "packages/devkube/src/devkube/apiserver/schema/data"
PINS = ROOT / "hack/controlplane/kubernetes"

# Order is discovery's order of preference.
SERVED = (
    "v1",
    "events.k8s.io/v1",
    "authentication.k8s.io/v1",
    "authorization.k8s.io/v1",
    "autoscaling/v2",
    "autoscaling/v1",
    "batch/v1",
    "networking.k8s.io/v1",
    "policy/v1",
    "rbac.authorization.k8s.io/v1",
    "storage.k8s.io/v1",
    "scheduling.k8s.io/v1",
    "apiextensions.k8s.io/v1",
    "discovery.k8s.io/v1",
    "coordination.k8s.io/v1",
    "apps/v1",
)
REF = "#/components/schemas/"
# Kinds that every group repeats: their list of kinds says nothing.
SHARED_KINDS = ("DeleteOptions", "WatchEvent", "Status")


def module_dir(module: str) -> Path:
    """Where the module cache holds the pinned version of a module."""
    answer = subprocess.run(
        ["go", "mod", "download", "-json", module],
        cwd=PINS,
        check=True,
        capture_output=True,
        text=True,
    )
    return Path(json.loads(answer.stdout)["Dir"])


def document_name(group_version: str) -> str:
    """Name a group version's published documents."""
    path = f"api/{group_version}" if "/" not in group_version else f"apis/{group_version}"
    return path.replace("/", "__")


def compact(schema: dict[str, Any]) -> dict[str, Any]:
    """Drop the prose, write references by name, keep every fact."""
    result: dict[str, Any] = {}
    for key, value in schema.items():
        match key:
            case "description":
                continue
            case "properties":
                result[key] = {name: compact(child) for name, child in value.items()}
            case "items" | "additionalProperties" if isinstance(value, dict):
                result[key] = compact(value)
            case "allOf":
                (only,) = value
                result |= compact(only)
            case "$ref":
                result[key] = value.removeprefix(REF)
            case "default" if value in ({}, "", 0):
                continue  # Go's zero value, not a default that anybody notices
            case _:
                result[key] = value
    return result


def definitions(kubernetes: Path) -> dict[str, dict[str, Any]]:
    """Return every definition of the served group versions, compacted."""
    found: dict[str, dict[str, Any]] = {}
    for group_version in SERVED:
        file = kubernetes / f"api/openapi-spec/v3/{document_name(group_version)}_openapi.json"
        for name, schema in json.loads(file.read_text())["components"]["schemas"].items():
            small = compact(schema)
            if name.rsplit(".", 1)[1] in SHARED_KINDS:
                small.pop("x-kubernetes-group-version-kind", None)
            if found.setdefault(name, small) != small:
                raise SystemExit(f"{name} differs between documents")
    return found


ENUM = re.compile(r"^// \+enum\ntype (\w+) string", re.MULTILINE)
CONSTANT = re.compile(r'^\s+\w+\s+(\w+)\s+=\s+"([^"]*)"', re.MULTILINE)
STRUCT = re.compile(r"^type (\w+) struct \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
MEMBER = re.compile(r'^\s+\w+\s+(?:\*)?(\w+)\s+`json:"(\w+)', re.MULTILINE)


def enumerated_fields(source: str) -> Iterator[tuple[str, str, list[str]]]:
    """Yield (struct, JSON name, values) of every field whose Go type is marked as an enumeration."""
    values: dict[str, list[str]] = {name: [] for name in ENUM.findall(source)}
    for kind, value in CONSTANT.findall(source):
        if kind in values and value:
            values[kind].append(value)
    for struct, body in STRUCT.findall(source):
        for kind, field in MEMBER.findall(body):
            if values.get(kind):
                yield struct, field, sorted(set(values[kind]))


def add_zero_structs(types: dict[str, dict[str, Any]], api: Path) -> None:
    """Mark fields whose Go type is a struct itself: an empty object has them, empty."""
    for package in sorted({name.rsplit(".", 1)[0] for name in types}):
        if not package.startswith("io.k8s.api."):
            continue
        place = package.removeprefix("io.k8s.api.").replace(".", "/")
        source = (api / place / "types.go").read_text()
        for struct, body in STRUCT.findall(source):
            pointers = set(POINTER.findall(body))
            schema = types.get(f"{package}.{struct}", {})
            for name, field in schema.get("properties", {}).items():
                target = types.get(field.get("$ref", ""), {})
                if "properties" in target and name not in pointers:
                    field["x-zero"] = True


def add_enumerations(types: dict[str, dict[str, Any]], api: Path) -> None:
    """Note the values of enumerations, which the published documents leave out."""
    for package in sorted({name.rsplit(".", 1)[0] for name in types}):
        if not package.startswith("io.k8s.api."):
            continue
        source = (
            api / package.removeprefix("io.k8s.api.").replace(".", "/") / "types.go"
        ).read_text()
        for struct, field, values in enumerated_fields(source):
            if f"{package}.{struct}" in types:
                types[f"{package}.{struct}"]["properties"][field]["enum"] = values


MESSAGE = re.compile(r"^message (\w+) \{\n(.*?)^\}", re.MULTILINE | re.DOTALL)
PROTO_FIELD = re.compile(
    r"^  (optional|repeated)? ?(?:map<string, (?P<value>[\w.]+)>|(?P<type>[\w.]+)) (?P<name>\w+)"
    r" = (?P<number>\d+);",
    re.MULTILINE,
)
# Types of other packages have a dot: `*metav1.LabelSelector`.
POINTER = re.compile(r'^\s+\w+\s+\*[\w.]+\s+`json:"(\w+)', re.MULTILINE)
SCALARS = ("string", "bytes", "bool", "int32", "int64", "double")


def protobuf_messages(
    package: str, proto: str, source: str, types: dict[str, dict[str, Any]]
) -> Iterator[tuple[str, list[list[Any]]]]:
    """Yield (message, fields) of a package; a field is [number, name, type, flags].

    Flags: `r` repeated, `m` a map by strings, `i` inlined into the parent in JSON, `p` a pointer in
    Go, so that its zero value means something.
    """
    pointers = {struct: set(POINTER.findall(body)) for struct, body in STRUCT.findall(source)}
    for message, body in MESSAGE.findall(proto):
        declared = types.get(f"{package}.{message}", {}).get("properties")
        fields = []
        for found in PROTO_FIELD.finditer(body):
            kind = found["value"] or found["type"]
            if kind not in SCALARS:
                kind = f"io.{kind[1:]}" if kind.startswith(".") else f"{package}.{kind}"
                kind = kind.replace("io.k8s.io.", "io.k8s.")
            flags = "m" if found["value"] else "r" if found[1] == "repeated" else ""
            if declared is not None and found["name"] not in declared and kind not in SCALARS:
                flags += "i"
            if found["name"] in pointers.get(message, ()):
                flags += "p"
            fields.append([int(found["number"]), found["name"], kind, flags])
        yield f"{package}.{message}", fields


def protobuf(types: dict[str, dict[str, Any]], api: Path, machinery: Path) -> dict[str, Any]:
    """Return the field numbers of every message that may be part of a request's body."""
    places = {
        package: api / package.removeprefix("io.k8s.api.").replace(".", "/")
        for package in {name.rsplit(".", 1)[0] for name in types}
        if package.startswith("io.k8s.api.")
    }
    for package in ("pkg.apis.meta.v1", "pkg.runtime", "pkg.util.intstr", "pkg.api.resource"):
        places[f"io.k8s.apimachinery.{package}"] = machinery / package.replace(".", "/")
    messages: dict[str, Any] = {}
    for package, place in sorted(places.items()):
        proto = (place / "generated.proto").read_text()
        types_file = place / "types.go"
        source = types_file.read_text() if types_file.exists() else ""
        messages |= protobuf_messages(package, proto, source, types)
    return dict(sorted(messages.items()))


def resources(kubernetes: Path) -> list[dict[str, Any]]:
    """Return discovery's resource lists in order, one entry a group version."""
    table = []
    for group_version in SERVED:
        file = kubernetes / f"api/discovery/{document_name(group_version)}.json"
        listed = json.loads(file.read_text())["resources"]
        for resource in listed:
            resource.pop("storageVersionHash", None)
        table.append({"groupVersion": group_version, "resources": listed})
    return table


def tables() -> dict[str, str]:
    """Return the files to write by name."""
    kubernetes = module_dir("k8s.io/kubernetes")
    types = definitions(kubernetes)
    api = module_dir("k8s.io/api")
    add_enumerations(types, api)
    add_zero_structs(types, api)
    packages: dict[str, dict[str, Any]] = {}
    for name in sorted(types):
        package, _, short = name.rpartition(".")
        packages.setdefault(package, {})[short] = types[name]
    files = {f"{package}.json": content for package, content in packages.items()}
    text = {name: json.dumps(c, separators=(",", ":")) + "\n" for name, c in files.items()}
    text["resources.json"] = json.dumps(resources(kubernetes), separators=(",", ":")) + "\n"
    messages = protobuf(types, api, module_dir("k8s.io/apimachinery"))
    text["protobuf.json"] = json.dumps(messages, separators=(",", ":")) + "\n"
    return text


def main() -> int:
    """Write or check the tables."""
    wanted = tables()
    if "--check" in sys.argv[1:]:
        present = {file.name: file.read_text() for file in TARGET.glob("*.json")}
        stale = sorted(n for n in wanted | present if wanted.get(n) != present.get(n))
        print("\n".join(f"stale: {name}; run hack/derive_kube_schema.py" for name in stale))
        return 1 if stale else 0
    TARGET.mkdir(parents=True, exist_ok=True)
    for file in TARGET.glob("*.json"):
        file.unlink()
    for name, content in wanted.items():
        (TARGET / name).write_text(content)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
