"""kubeloop's webhooks, asked by the real API server: refusals, patches, warnings, rotation."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from typing import TYPE_CHECKING, Any

import pytest

from kubeloop.client.client import Client
from kubeloop.client.errors import Forbidden, InternalError, Invalid, NotFound
from kubeloop.objects.patches import MergePatch
from tests.waiting import eventually

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tests.controlplane.rig import ControlPlane

pytestmark = pytest.mark.controlplane

PROGRAM = """
import asyncio
import datetime as dt
import sys
from pathlib import Path
from kubeloop import Client, run
from kubeloop.controller import Manager, run_until_signal
from kubeloop.webhook import Admission, AdmissionServer, Denied, Lifetimes

host, namespace, kubeconfig, certificates, period = sys.argv[1:]
chosen = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
# A certificate is backdated by an hour, so a third of its life is left after five seconds.
lives = Lifetimes(authority=dt.timedelta(seconds=1807.5), settle=dt.timedelta(seconds=1))
admission = Admission(namespace, url=f"https://{host}:9443", certificates=certificates, host=host,
                      lifetimes=lives if period else None)

@admission.mutating("v1/configmaps", namespaces=chosen)
async def label(obj, request):
    obj["metadata"].setdefault("labels", {})["example.com/by"] = "kubeloop"
    obj.setdefault("data", {})["user"] = request.user.username

@admission.validating("v1/configmaps", operations=["CREATE", "UPDATE", "DELETE"], namespaces=chosen)
async def check(obj, request):
    data = obj.get("data") or {}
    if request.operation == "DELETE":
        if data.get("keep"):
            raise Denied("data.keep is set")
        return
    assert data["user"], "the change comes first"
    if "password" in data:
        raise Denied("data.password belongs into a Secret", code=422)
    if "bug" in data:
        raise KeyError("bug")
    if "old" in data:
        request.warn("data.old goes away")

def connect():
    return Client.from_kubeconfig(Path(kubeconfig))

async def main():
    async with connect() as client:
        manager = Manager()
        manager.add(AdmissionServer(admission, client, period=float(period)))
        await run_until_signal(manager)

if period:
    asyncio.run(main())
else:
    run(admission=admission, health_port=None, connect=connect)
"""


@contextlib.contextmanager
def running(
    rig: ControlPlane, directory: Path, host: str, *, certificates: str = "", period: str = ""
) -> Iterator[str]:
    """The program, inside; yields the namespace that it is asked about."""
    namespace = rig.create_namespace("webhook")
    script, log = directory / "program.py", directory / "log"
    script.write_text(PROGRAM)
    arguments = [host, namespace, str(rig.kubeconfig_inside), certificates, period]
    with log.open("wb") as file:
        argv = [sys.executable, str(script), *arguments]
        process = rig.popen_inside(argv, stdout=file.fileno(), stderr=subprocess.STDOUT)
    try:
        yield namespace
    finally:
        process.terminate()
        process.wait(20)
        print(log.read_text())
        for kind in ("validating", "mutating"):
            rig.kubectl("delete", "--ignore-not-found", f"{kind}webhookconfiguration", namespace)


def config_map(name: str, **data: str) -> dict[str, Any]:
    return {"metadata": {"name": name}, "data": data}


async def is_asked(client: Client, namespace: str) -> bool:
    maps = client.resource("v1/configmaps", namespace=namespace)
    made = await maps.create(config_map("probe"), dry_run=True)
    return "user" in made.get("data", {})


async def test_the_api_server_asks_and_does_as_it_is_answered(
    controlplane: ControlPlane, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with Client.from_kubeconfig(controlplane.kubeconfig) as client:
        with running(controlplane, tmp_path, "10.200.9.7") as namespace:
            await eventually(lambda: is_asked(client, namespace), ignore=(InternalError,))
            maps = client.resource("v1/configmaps", namespace=namespace)
            made = await maps.create(config_map("a", x="1"))
            assert made["metadata"]["labels"] == {"example.com/by": "kubeloop"}
            assert made["data"] == {"x": "1", "user": "elasti:admin"}
            refusal = (
                r'webhook "check\.configmaps\.core" denied the request: data\.password belongs'
            )
            with pytest.raises(Invalid, match=refusal):
                await maps.patch("a", MergePatch({"data": {"password": "x"}}))
            with pytest.raises(InternalError, match="failed calling webhook"):
                await maps.patch("a", MergePatch({"data": {"bug": "x"}}))
            await maps.patch("a", MergePatch({"data": {"old": "x", "keep": "1"}}))
            assert "data.old goes away" in caplog.text
            with pytest.raises(Forbidden, match=r"data\.keep is set"):
                await maps.delete("a")
            await maps.patch("a", MergePatch({"data": {"keep": None}}))
            await maps.delete("a")


async def test_certificates_rotate_while_the_api_server_asks(
    controlplane: ControlPlane, tmp_path: Path
) -> None:
    async with Client.from_kubeconfig(controlplane.kubeconfig) as client:
        with running(controlplane, tmp_path, "10.200.9.8", period="2") as namespace:
            await eventually(lambda: is_asked(client, namespace), ignore=(InternalError,))
            secrets = client.resource("v1/secrets", namespace="default")
            first = (await secrets.get(f"{namespace}-webhook"))["data"]

            async def has_rotated() -> bool:
                assert await is_asked(client, namespace), "not one request fails meanwhile"
                now = (await secrets.get(f"{namespace}-webhook"))["data"]
                return all(now[name] != first[name] for name in ("ca.key", "tls.key"))

            await eventually(has_rotated, timeout=90)
            for _ in range(20):
                assert await is_asked(client, namespace)


async def test_certificates_from_files_are_used(controlplane: ControlPlane, tmp_path: Path) -> None:
    host = "10.200.9.9"
    certificate, key = controlplane.server_certificate("webhook", [host])
    files = {"tls.crt": certificate, "tls.key": key, "ca.crt": controlplane.ca_file}
    for name, path in files.items():
        (tmp_path / name).write_bytes(path.read_bytes())
    async with Client.from_kubeconfig(controlplane.kubeconfig) as client:
        with running(controlplane, tmp_path, host, certificates=str(tmp_path)) as namespace:
            await eventually(lambda: is_asked(client, namespace), ignore=(InternalError,))
            with pytest.raises(NotFound):
                await client.resource("v1/secrets", namespace="default").get(f"{namespace}-webhook")
