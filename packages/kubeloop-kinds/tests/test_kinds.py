"""The generated kinds: complete, current, checked by two checkers, and taken by the client and informers."""

from __future__ import annotations

import contextlib
import importlib
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import msgspec
import pytest

import kubeloop_kinds
from devkube.testing import start_cluster
from kubeloop import SharedInformerFactory
from kubeloop.client import MethodNotAllowed, NotFound
from kubeloop.objects.meta import ObjectMeta
from kubeloop.testing.fake_client import FakeClient
from kubeloop_kinds.apps.v1 import Deployment, DeploymentSpec
from kubeloop_kinds.core.v1 import ConfigMap, Container, Pod, PodSpec, PodTemplateSpec
from kubeloop_kinds.meta.v1 import LabelSelector

ROOT = Path(__file__).parents[3]
MODULES = [
    f"kubeloop_kinds.{path.parent.name}.{path.stem}"
    for path in sorted(Path(kubeloop_kinds.__file__).parent.glob("*/v*.py"))
]
DATA = ROOT / "packages/devkube/src/devkube/apiserver/schema/data"


def deployment(image: str = "web:1") -> Deployment:
    labels = {"app": "web"}
    template = PodTemplateSpec(
        metadata=ObjectMeta(labels=labels),
        spec=PodSpec(containers=[Container(name="web", image=image)]),
    )
    spec = DeploymentSpec(
        replicas=2, selector=LabelSelector(match_labels=labels), template=template
    )
    return Deployment(metadata=ObjectMeta(name="web", namespace="default"), spec=spec)


def structs(module: str) -> dict[str, type[msgspec.Struct]]:
    found = vars(importlib.import_module(module)).items()
    return {name: kind for name, kind in found if isinstance(kind, type(msgspec.Struct))}


def test_modules_are_what_the_tables_say() -> None:
    command = [sys.executable, str(ROOT / "hack/derive_kinds.py"), "--check"]
    ran = subprocess.run(command, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stdout


def test_every_served_kind_that_can_be_written_has_its_struct() -> None:
    wanted = {
        f"{listed['groupVersion']}/{resource['name']}"
        for listed in json.loads((DATA / "resources.json").read_text())
        for resource in listed["resources"]
        if "/" not in resource["name"] and "create" in resource["verbs"]
    }
    found = {getattr(kind, "RESOURCE", "") for name in MODULES for kind in structs(name).values()}
    assert wanted - found == set()


@pytest.mark.parametrize("module", MODULES)
def test_every_struct_can_be_decoded_and_no_two_fields_share_a_name(module: str) -> None:
    for kind in structs(module).values():
        msgspec.json.Decoder(kind)
        assert len(set(kind.__struct_encode_fields__)) == len(kind.__struct_fields__)


def test_fields_have_the_names_of_the_wire() -> None:
    container = {"name": "c", "ports": [{"containerPort": 80, "hostIP": "10.0.0.1"}]}
    spec = {"containers": [container], "hostPID": True, "hostAliases": [{"ip": "10.0.0.2"}]}
    whole = {"metadata": {"name": "p"}, "spec": spec, "status": {"podIPs": [{"ip": "10.0.0.3"}]}}
    pod = msgspec.convert(whole, Pod)
    assert pod.status.pod_ips is not None
    assert (pod.status.pod_ips[0].ip, pod.spec.host_pid) == ("10.0.0.3", True)
    ports = pod.spec.containers[0].ports or []
    assert ports[0].host_ip == "10.0.0.1"
    assert json.loads(msgspec.json.encode(pod))["spec"] == spec | {
        "containers": [container | {"resources": {}}]
    }


def test_importing_one_group_loads_only_what_it_uses() -> None:
    code = (
        "import sys, kubeloop_kinds\n"
        "assert not [m for m in sys.modules if m.startswith('kubeloop_kinds.') and m[-8:] != '_version']\n"
        "import kubeloop_kinds.coordination.v1\n"
        "print(sorted(m for m in sys.modules if m.startswith('kubeloop_kinds.')))\n"
    )
    path = str(Path(kubeloop_kinds.__file__).parents[1])
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONPATH": path},
    )
    assert "kubeloop_kinds.coordination.v1" in ran.stdout
    assert "kubeloop_kinds.core" not in ran.stdout


@pytest.mark.virtual_time
async def test_an_apply_sends_what_is_set_and_no_empty_parts() -> None:
    client = FakeClient()
    await client.apply(deployment(), manager="me")
    (sent,) = [
        json.loads(request.body or b"") for request in client.requests if request.method == "PATCH"
    ]
    assert sent == {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default"},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [{"name": "web", "image": "web:1"}]},
            },
        },
    }


@pytest.mark.virtual_time
async def test_client_and_informer_take_a_class_for_its_path() -> None:
    client = FakeClient(deployment())
    deployments = client.resource(Deployment, namespace="default")
    found = await deployments.get("web")
    assert found.spec.template.spec.containers[0].image == "web:1"
    assert [one.metadata.name for one in await deployments.list()] == ["web"]
    factory = SharedInformerFactory(client)
    cached = factory.informer(Deployment)
    async with factory.running():
        await factory.wait_for_sync(timeout=10)
        kept = cached.lister.find("default", "web")
        assert kept is not None
        assert kept.spec.replicas == 2
    with pytest.raises(TypeError, match="ObjectMeta has no RESOURCE"):
        client.resource(ObjectMeta)  # type: ignore[type-var]


@pytest.mark.virtual_time
async def test_unknown_fields_survive_a_modification() -> None:
    whole = msgspec.to_builtins(deployment()) | {"apiVersion": "apps/v1", "kind": "Deployment"}
    whole["spec"]["template"]["spec"]["containers"][0]["fieldOfTomorrow"] = {"a": 1}
    client = FakeClient(whole)

    def change(found: Deployment) -> None:
        found.spec.template.spec.containers[0].image = "web:2"

    await client.resource(Deployment, namespace="default").modify("web", change)
    stored: Any = client.find("apps/v1/deployments", "web")
    (container,) = stored["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["fieldOfTomorrow"]) == ("web:2", {"a": 1})


async def test_a_server_takes_and_gives_them(tmp_path: Path) -> None:
    async with start_cluster(tmp_path, nodes=1) as cluster:
        client = cluster.client
        maps = client.resource(ConfigMap, namespace="default")
        made = await maps.create(ConfigMap(metadata=ObjectMeta(name="a"), data={"x": "1"}))
        made.data = {"x": "2"}
        assert (await maps.replace(made)).data == {"x": "2"}
        applied = await client.apply(deployment(), manager="me")
        assert applied.spec.progress_deadline_seconds == 600
        for module in MODULES:
            for kind in structs(module).values():
                if getattr(kind, "RESOURCE", "") and not kind.__name__.endswith("Review"):
                    await list_all(client, kind)


async def list_all(client: Any, kind: Any) -> None:
    """Every object that a cluster has decodes; some kinds are not served, or not listed."""
    with contextlib.suppress(NotFound, MethodNotAllowed):
        await client.resource(kind).list()


USE = """
from kubeloop import Client
from kubeloop_kinds.apps.v1 import Deployment


async def image(client: Client) -> str | None:
    found = await client.resource(Deployment, namespace="default").get("web")
    return found.spec.template.spec.containers[0].image


async def wrong(client: Client) -> None:
    found = await client.resource(Deployment).get("web")
    found.spec.template.spec.containers[0].imagee = "web:2"
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    "checker",
    [["mypy", "--strict"], ["basedpyright", "--level", "error", "--pythonpath", sys.executable]],
)
def test_checkers_know_every_field(checker: list[str], tmp_path: Path) -> None:
    (tmp_path / "use.py").write_text(USE)
    program = Path(sys.executable).with_name(checker[0])
    paths = ":".join(
        str(ROOT / "packages" / name / "src") for name in ("kubeloop", "kubeloop-kinds")
    )
    (tmp_path / "pyrightconfig.json").write_text(
        json.dumps({"extraPaths": paths.split(":"), "typeCheckingMode": "strict"})
    )
    ran = subprocess.run(
        [str(program), *checker[1:], "use.py"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        env={"MYPYPATH": paths, "PATH": "/usr/bin:/bin"},
    )
    said = [line for line in ran.stdout.splitlines() if "error" in line and "use.py" in line]
    assert len(said) == 1, ran.stdout + ran.stderr
    assert "imagee" in said[0]
