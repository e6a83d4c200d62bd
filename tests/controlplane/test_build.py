"""The build script, with a Go that is absent, too old, interrupted or obedient."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.controlplane.binaries import BUILD, NEEDED

# Stands in for the compiler: writes something at the path after `-o`.
COMPILER = """#!/bin/sh
if [ "$1" = list ]; then echo "{\\"GoMod\\": \\"$FAKE_GO_MOD\\"}"; exit; fi
if [ "$1" = get ]; then echo sums > go.sum; exit; fi
if [ "$1" = env ]; then printf '%s\\n%s\\n' "$FAKE_GO_VERSION" "$FAKE_GO_TOOLCHAIN"; exit; fi
while [ "$1" != -o ]; do shift; done
echo half > "$2"
[ -z "$FAKE_GO_HANGS" ] || { echo compiling; exec sleep 1000; }
echo whole > "$2"
"""

# Runs the build, and interrupts it at the worst moment: the compiler runs, and nobody has it in hand.
INTERRUPTED = """
import os, runpy, signal, subprocess, sys

class Popen(subprocess.Popen):
    def __init__(self, command, **options):
        super().__init__(command, **options)
        if "build" in command:
            os.kill(os.getpid(), signal.SIGTERM)

subprocess.Popen = Popen
del sys.argv[0]
runpy.run_path(sys.argv[0], run_name="__main__")
"""


class Go:
    """A PATH with Python and, if wanted, a fake Go; and a cache of its own."""

    def __init__(self, directory: Path, *, version: str | None, toolchain: str = "local") -> None:
        self.cache = directory / "cache"
        path = directory / "bin"
        path.mkdir()
        (path / "python3").symlink_to(sys.executable)
        if version is not None:
            (path / "go").write_text(COMPILER)
            (path / "go").chmod(0o755)
        for tool in ("sh", "sleep", "env"):
            found = shutil.which(tool)
            assert found is not None
            (path / tool).symlink_to(found)
        self.env = {
            "PATH": str(path),
            "ELASTI_CACHE": str(self.cache),
            "FAKE_GO_VERSION": f"go{version}",
            "FAKE_GO_TOOLCHAIN": toolchain,
        }

    def build(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [BUILD, *arguments], env=self.env, check=False, capture_output=True, text=True
        )

    def files(self) -> dict[str, str]:
        """What is in the cache, by name."""
        found = (path for path in self.cache.rglob("*") if path.is_file() and path.name != ".lock")
        return {path.name: path.read_text() for path in found}


def test_a_second_build_does_nothing(tmp_path: Path) -> None:
    go = Go(tmp_path, version="1.99.0")
    first = go.build()
    assert first.returncode == 0, first.stderr
    assert go.files() == dict.fromkeys([*NEEDED, "kube-proxy"], "whole\n")
    (tmp_path / "bin" / "go").unlink()
    second = go.build()
    assert second.returncode == 0
    assert second.stdout == f"controlplane: already built: {go.build('--where').stdout}"


def test_an_interrupted_build_leaves_nothing_and_the_next_one_goes_on(tmp_path: Path) -> None:
    go = Go(tmp_path, version="1.99.0")
    hanging = {**go.env, "FAKE_GO_HANGS": "yes"}
    with subprocess.Popen(
        [BUILD], env=hanging, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as build:
        assert build.stdout is not None
        assert "compiling\n" in iter(build.stdout.readline, "")
        build.send_signal(signal.SIGTERM)
        _, complaint = build.communicate(timeout=60)
    assert build.returncode == 130
    assert "run it again" in complaint
    assert go.files() == {}
    assert go.build().returncode == 0
    assert set(go.files().values()) == {"whole\n"}


def test_a_compiler_that_has_just_started_ends_with_the_build(tmp_path: Path) -> None:
    go = Go(tmp_path, version="1.99.0")
    build = subprocess.run(
        [sys.executable, "-c", INTERRUPTED, BUILD],
        env={**go.env, "FAKE_GO_HANGS": "yes"},
        check=False,
        capture_output=True,  # which ends when nobody is left who could write
        text=True,
        timeout=60,
    )
    assert build.returncode == 130, build.stderr
    assert go.files() == {}


def test_a_killed_build_is_swept_by_the_next_one(tmp_path: Path) -> None:
    go = Go(tmp_path, version="1.99.0")
    half = Path(go.build("--where").stdout.strip()) / ".building" / "etcd"
    half.parent.mkdir(parents=True)
    half.write_text("half")
    assert go.build().returncode == 0
    assert not half.parent.exists()
    assert set(go.files().values()) == {"whole\n"}


@pytest.mark.parametrize(
    ("version", "complaint"),
    [(None, "no `go` on PATH: install Go 1."), ("1.21.3", "go1.21.3 is too old: install Go 1.")],
)
def test_a_go_that_cannot_do_it_is_named(
    tmp_path: Path, version: str | None, complaint: str
) -> None:
    answer = Go(tmp_path, version=version).build()
    assert answer.returncode == 1
    assert answer.stderr.startswith(f"controlplane: {complaint}")
    assert answer.stderr.count("\n") == 1


def test_an_old_go_that_may_fetch_a_newer_one_is_let(tmp_path: Path) -> None:
    assert Go(tmp_path, version="1.21.3", toolchain="auto").build().returncode == 0


def test_a_failed_compilation_is_a_failed_build(tmp_path: Path) -> None:
    go = Go(tmp_path, version="1.99.0")
    (tmp_path / "bin" / "go").write_text(COMPILER + "exit 3\n")
    answer = go.build()
    assert answer.returncode == 1
    assert "failed with status 3" in answer.stderr
    assert go.files() == {}


def test_another_release_is_built_as_its_own_go_mod_pins_it(tmp_path: Path) -> None:
    go = Go(tmp_path, version="1.99.0")
    (tmp_path / "theirs.mod").write_text(
        "module k8s.io/kubernetes\n\ngo 1.24.0\n\nreplace k8s.io/api => ./staging/src/k8s.io/api\n"
    )
    go.env |= {"KUBERNETES_VERSION": "v1.33.13", "FAKE_GO_MOD": str(tmp_path / "theirs.mod")}
    built = go.build()
    assert built.returncode == 0, built.stderr
    assert "building Kubernetes v1.33.13" in built.stdout
    assert go.build("--where").stdout.startswith(f"{go.cache}/controlplane/v1.33.13-")
    pins = (go.cache / "controlplane" / "pins" / "v1.33.13" / "go.mod").read_text()
    assert "replace k8s.io/api => k8s.io/api v0.33.13\n" in pins
    assert pins.endswith("require k8s.io/kubernetes v1.33.13\n")
    go.env["KUBERNETES_VERSION"] = "1.33"
    wrong = go.build()
    assert wrong.returncode == 1
    assert wrong.stderr == (
        "controlplane: KUBERNETES_VERSION=1.33 is not a release: write it like v1.33.13\n"
    )


def test_the_cache_is_where_the_environment_says(tmp_path: Path) -> None:
    def where(**env: str) -> str:
        base = {"PATH": os.defpath, "HOME": "/home/me"}
        asked = subprocess.run(
            [sys.executable, BUILD, "--where"],
            env={**base, **env},
            check=True,
            stdout=subprocess.PIPE,
            text=True,
        )
        return asked.stdout

    assert where().startswith("/home/me/.cache/elasti/controlplane/v1.")
    assert where(XDG_CACHE_HOME="/caches").startswith("/caches/elasti/controlplane/v1.")
    assert where(ELASTI_CACHE=str(tmp_path)).startswith(f"{tmp_path}/controlplane/v1.")
