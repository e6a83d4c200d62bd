"""Play the release workflow on this machine, up to what only a forge or a registry can do.

    python -m hack.release [TAG]    by default the tag of VERSION; what would be published stays in build/release

Every `run` step of .github/workflows/release.yml is run, each job in a directory of its own, with what the job
downloads. cosign, gh and `helm registry` and `helm push` are replaced by programs that say what they are asked,
and fail if a file that they are given is missing. Actions are named, and not run.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from hack import dist

ROOT = Path(__file__).resolve().parents[1]
WORKFLOW = ROOT / ".github/workflows/release.yml"
ZEROS = f"sha256:{'0' * 64}"
PROGRAMS = ("cosign", "gh", "helm")
PROGRAM = f"""#!/usr/bin/env bash
for word in "$@"; do case $word in dist/*) [[ -f $word ]] || {{ echo "$word is missing" >&2; exit 1; }};; esac; done
[[ -t 0 ]] || cat > /dev/null
echo "would run: $(basename "$0") $*"
[[ $1 != push ]] || echo "Digest: {ZEROS}"
"""


def play(tag: str, place: Path, *, made: Path | None = None) -> str:
    """Play all jobs for a tag; returns what they said. `made`: a directory with the files, in place of `make dist`."""
    shutil.rmtree(place, ignore_errors=True)
    programs = place / "programs"
    programs.mkdir(parents=True)
    for name in PROGRAMS:
        (programs / name).write_text(PROGRAM)
        (programs / name).chmod(0o755)
    package = dist.released(tag)
    known = {
        "github.ref_name": tag,
        "github.repository_owner": "example",
        "github.actor": "nobody",
        "vars.BASE_IMAGE": f"python:3.13-slim@{ZEROS}",
        "steps.build.outputs.digest": ZEROS,
        "needs.dist.outputs.package": package,
        "needs.dist.outputs.version": dist.version(package),
        "secrets.GITHUB_TOKEN": "none",
        "github.token": "none",
    }
    said = ""
    for name, job in yaml.safe_load(WORKFLOW.read_text())["jobs"].items():
        # The chart is skipped with the image that it needs.
        if name in ("image", "chart") and package != "elasti":
            said += f"{name}: only for a tag of elasti\n"
            continue
        (place / name).mkdir()
        for step in job["steps"]:
            said += _step(step, name, place, known, made)
    return said


def _step(
    step: Mapping[str, Any], job: str, place: Path, known: Mapping[str, str], made: Path | None
) -> str:
    if "uses" in step:
        if "download-artifact" in step["uses"]:
            shutil.copytree(made or ROOT / "dist", place / job / step["with"]["path"])
        return f"{job}: left to the forge: {step['uses'].partition('@')[0]}\n"
    if job == "dist" and made is not None:
        return ""
    outputs = place / job / "outputs"
    environment = {
        **os.environ,
        "PATH": os.pathsep.join((str(place / "programs"), os.environ["PATH"])),
        "GITHUB_OUTPUT": str(outputs),
        "GITHUB_REPOSITORY": "example/elasti",
        "IMAGE": "ghcr.io/example/elasti",
        **{key: _filled(text, known) for key, text in step.get("env", {}).items()},
    }
    # As the forge runs them.
    command = ["bash", "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", step["run"]]
    done = subprocess.run(
        command, cwd=ROOT if job == "dist" else place / job, env=environment, check=False,
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip
    if done.returncode:
        raise SystemExit(f"release: the job {job} failed: {step['run']}\n{done.stdout}")
    for line in outputs.read_text().splitlines() if outputs.exists() else ():
        key, _, value = line.partition("=")
        if known[f"needs.dist.outputs.{key}"] != value:
            raise SystemExit(f"release: the output {line} is not the tag's")
    return "".join(f"{job}: {line}\n" for line in done.stdout.splitlines())


def _filled(text: str, known: Mapping[str, str]) -> str:
    return re.sub(r"\$\{\{ *(\S+) *\}\}", lambda found: known[found[1]], text)


if __name__ == "__main__":
    print(play((sys.argv[1:] or [f"v{dist.version()}"])[0], ROOT / "build" / "release"), end="")
