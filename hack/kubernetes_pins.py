"""Which etcd and which Kubernetes, and how their programs are built outside their own trees.

Environment: KUBERNETES_VERSION, another release than the pinned one, such as v1.33.13. What it needs is
then pinned by its own go.mod, and checked by Go's checksum database.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
from pathlib import Path

from hack.gobuild import (
    STRIPPED,
    BuildError,
    Program,
    cache_root,
    exclusive,
    pinned_release,
    speaker,
)

NAMES = ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubectl")
PINS = Path(__file__).resolve().parent / "controlplane"
KUBERNETES, ETCD = PINS / "kubernetes", PINS / "etcd"
VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


def kubernetes_module() -> Path:
    """The directory of the go.mod that pins Kubernetes: the tree's, or one in the cache."""
    version = os.environ.get("KUBERNETES_VERSION")
    if not version:
        return KUBERNETES
    if not re.fullmatch(r"v1\.\d+\.\d+", version):
        raise BuildError(f"KUBERNETES_VERSION={version} is not a release: write it like v1.33.13")
    module = cache_root(os.environ) / "controlplane" / "pins" / version
    with exclusive(module, speaker("controlplane")):
        if not (module / "go.sum").is_file():
            _pin(version, module)
    return module


def _pin(version: str, module: Path) -> None:
    """Make its own go.mod one from which its programs can be built: what it stages is published."""
    asked = _go("list", "-m", "-json", f"k8s.io/kubernetes@{version}", cwd=module)
    text = Path(json.loads(asked)["GoMod"]).read_text()
    staged = version.replace("v1.", "v0.")
    text = re.sub(r"=> \./staging/src/(\S+)", rf"=> \1 {staged}", text)
    text = text.replace("module k8s.io/kubernetes", "module elasti/controlplane/kubernetes")
    (module / "go.mod").write_text(f"{text}\nrequire k8s.io/kubernetes {version}\n")
    programs = (f"k8s.io/kubernetes/cmd/{name}@{version}" for name in (*NAMES, "kubelet"))
    _go("get", *programs, cwd=module)


def _go(*words: str, cwd: Path) -> str:
    try:
        done = subprocess.run(
            ["go", *words], cwd=cwd, check=True, stdout=subprocess.PIPE, text=True
        )
    except (OSError, subprocess.CalledProcessError) as error:
        raise BuildError(f"KUBERNETES_VERSION: {error}, see above") from error
    return done.stdout


def kubernetes_version() -> str:
    """The pinned release, as in 'v1.2.3'."""
    return pinned_release(kubernetes_module(), "k8s.io/kubernetes")


def linker_flags() -> str:
    """Strip symbols, and stamp the release that a build outside its own tree cannot know."""
    version = kubernetes_version()
    major, minor = version.removeprefix("v").split(".")[:2]
    stamps = {
        "gitVersion": version,
        "gitMajor": major,
        "gitMinor": minor,
        "gitTreeState": "clean",
    }
    return " ".join(
        [STRIPPED]
        + [f"-X {pkg}.{name}={value}" for pkg in VERSION_PACKAGES for name, value in stamps.items()]
    )


def kubernetes_program(name: str) -> Program:
    """One of Kubernetes' own programs."""
    return Program(name, kubernetes_module(), f"k8s.io/kubernetes/cmd/{name}", linker_flags())


def etcd_program() -> Program:
    """Etcd, stamped like the rest: one digest, one way to build."""
    return Program("etcd", ETCD, "go.etcd.io/etcd/server/v3", linker_flags())
