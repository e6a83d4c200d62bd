"""What Kubernetes' own API server says to an installation, without one being made."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from elasti.cli.install.apply import reference
from elasti.cli.install.bundle import bundle
from elasti.cli.install.choices import Choices
from elasti.cli.main import main
from tests.controlplane.rig import ControlPlane

pytestmark = [pytest.mark.controlplane, pytest.mark.timeout(120)]


def run(controlplane: ControlPlane, *arguments: str) -> str:
    result = CliRunner().invoke(main, [*arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_dry_run_is_accepted_for_every_object(controlplane: ControlPlane):
    watched = controlplane.create_namespace("watched")
    place = controlplane.create_namespace("place")
    access = ("--kubeconfig", str(controlplane.kubeconfig))
    for choices, call in (
        (Choices(), ()),
        (
            Choices(namespace=place, namespaced=True, watch_namespaces=(watched,)),
            ("-n", place, "--namespaced", "--watch-namespace", watched),
        ),
    ):
        said = run(controlplane, "install", "--dry-run", *access, *call)
        assert "not checked" not in said
        told = [line.split(" would be ")[0] for line in said.splitlines() if line[0] != " "]
        for part in bundle(choices):
            ref = reference(part.obj)
            assert ref in told or f"{ref} unchanged" in told, said


def test_kubectl_takes_the_manifests(controlplane: ControlPlane):
    place = controlplane.create_namespace("place")
    for call in ((), ("--namespaced", "--watch-namespace", place, "--no-authentication")):
        manifests = run(controlplane, "manifests", "-n", place, *call)
        dry = ("--server-side", "--dry-run=server", "--force-conflicts", "-f", "-")
        said = controlplane.kubectl("apply", *dry, stdin=manifests)
        assert said.count("serverside-applied") == manifests.count("\n---\n") + 1
