"""The command `devkube`: a cluster for those who have no elasti."""

from __future__ import annotations

import asyncio
import signal
import sys
from pathlib import Path

from kubeloop.client import Client, has_condition, wait_for

DEVKUBE = (sys.executable, "-m", "devkube", "--port", "0")


async def test_it_runs_pods_by_their_images_until_it_is_interrupted(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    process = await asyncio.create_subprocess_exec(
        *DEVKUBE, "--kubeconfig", kubeconfig, "--run", "cache=sleep 600",
        stdout=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        assert process.stdout is not None
        said = (await process.stdout.readline()).decode()
        assert said.endswith(f" is ready; export KUBECONFIG={kubeconfig}\n")
        async with Client.from_kubeconfig(kubeconfig) as client:
            pods = client.resource("v1/pods", namespace="default")
            containers = [{"name": "a", "image": "example.com/cache:1"}]
            await pods.create({"metadata": {"name": "a"}, "spec": {"containers": containers}})
            await wait_for(pods, "a", has_condition("Ready"))
    finally:
        process.send_signal(signal.SIGINT)
        code = await process.wait()
    assert code == 0


async def test_what_is_not_an_image_and_a_command_is_refused_in_one_line(tmp_path: Path) -> None:
    process = await asyncio.create_subprocess_exec(
        *DEVKUBE, "--run", "cache", cwd=tmp_path, stderr=asyncio.subprocess.PIPE
    )
    _, said = await process.communicate()
    assert process.returncode == 1
    assert said.decode().startswith("devkube: 'cache' is not IMAGE=COMMAND, such as")
