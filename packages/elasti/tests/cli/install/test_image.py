"""The image: what can be known about it without building it."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

from elasti.cli.install.bundle import USER, bundle
from elasti.cli.install.choices import Choices

ROOT = Path(__file__).resolve().parents[5]
DOCKERFILE = (ROOT / "Dockerfile").read_text().replace("\\\n", " ")
LINES = [line.split(maxsplit=1) for line in DOCKERFILE.splitlines() if re.match(r"[A-Z]+ ", line)]


def values(word: str) -> list[list[str]]:
    return [shlex.split(rest) for found, rest in LINES if found == word]


def ignored(path: str) -> bool:
    """Whether .dockerignore, which leaves out everything but what it names, leaves this out."""
    rules = (ROOT / ".dockerignore").read_text().split()
    assert rules[0] == "*"
    kept = [rule.removeprefix("!") for rule in rules if rule.startswith("!")]
    return not any(path == rule or path.startswith(f"{rule}/") for rule in kept)


def test_everything_that_is_copied_is_there_and_not_ignored():
    for arguments in values("COPY"):
        if arguments[0].startswith("--from"):
            continue
        for source in arguments[:-1]:
            assert (ROOT / source).exists(), source
            assert not ignored(source), source


def test_the_dev_cluster_is_not_even_in_the_build_context():
    assert ignored("packages/devkube")
    copied = {source for arguments in values("COPY") for source in arguments[:-1]}
    assert {"packages/kubeloop", "packages/elasti"} <= copied
    assert "devkube" not in (ROOT / "hack/image/steps").read_text()


def test_it_runs_as_the_user_of_the_manifests_and_by_the_command_of_the_manifests():
    assert values("USER") == [[f"{USER}:{USER}"]]
    (entrypoint,) = values("ENTRYPOINT")
    assert entrypoint == ["[elasti]"]
    pods = [part.obj["spec"]["template"]["spec"] for part in bundle(Choices()) if _runs(part.obj)]
    assert {pod["containers"][0]["command"][0] for pod in pods} == {"elasti"}
    assert {pod["securityContext"]["runAsUser"] for pod in pods} == {USER}


def _runs(obj: dict[str, object]) -> bool:
    return obj["kind"] == "Deployment"


def test_the_steps_are_those_that_ci_runs():
    assert values("RUN") == [
        ["hack/image/steps", "/opt/elasti"],
        ["hack/image/root", "/opt/elasti", "/gathered"],
    ]
    for script in ("steps", "root", "check"):
        assert (ROOT / "hack/image" / script).stat().st_mode & 0o111


def test_the_image_has_what_was_gathered_for_it_and_nothing_of_the_base():
    _, last = values("FROM")
    assert last == ["scratch"]
    assert values("COPY")[-1] == ["--from=build", "/gathered", "/"]


def test_the_ports_are_those_of_the_containers():
    ports = {
        str(port["containerPort"])
        for part in bundle(Choices())
        if _runs(part.obj)
        for port in part.obj["spec"]["template"]["spec"]["containers"][0]["ports"]
    }
    (exposed,) = values("EXPOSE")
    assert {*exposed} == ports
