"""Which etcd and which Kubernetes, and how their programs are built outside their own trees."""

from __future__ import annotations

from pathlib import Path

from hack.gobuild import STRIPPED, Program, pinned_release

PINS = Path(__file__).resolve().parent / "controlplane"
KUBERNETES, ETCD = PINS / "kubernetes", PINS / "etcd"
VERSION_PACKAGES = ("k8s.io/component-base/version", "k8s.io/client-go/pkg/version")


def kubernetes_version() -> str:
    """The pinned release, as in 'v1.2.3'."""
    return pinned_release(KUBERNETES, "k8s.io/kubernetes")


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
    return Program(name, KUBERNETES, f"k8s.io/kubernetes/cmd/{name}", linker_flags())


def etcd_program() -> Program:
    """Etcd, stamped like the rest: one digest, one way to build."""
    return Program("etcd", ETCD, "go.etcd.io/etcd/server/v3", linker_flags())
