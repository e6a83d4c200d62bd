from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from devkube.testing import start_cluster
from kubeloop.client import Client, ClientConfig


async def test_a_cluster_is_up_within_a_second(tmp_path: Path) -> None:
    """Counted in processor time, since other tests run beside this one."""
    before = time.process_time()
    async with start_cluster(tmp_path) as cluster:
        assert time.process_time() - before < 1.0
        async with Client(ClientConfig.from_kubeconfig(cluster.kubeconfig)) as other:
            nodes = [node async for node in other.resource("v1/nodes").items()]
        assert [node["metadata"]["name"] for node in nodes] == ["node-1"]


async def test_wait_for_reports_the_last_object(tmp_path: Path) -> None:
    async with start_cluster(tmp_path, nodes=0) as cluster:
        found = await cluster.wait_for("v1/namespaces", "default")
        assert found["status"]["phase"] == "Active"
        with pytest.raises(TimeoutError, match=r"v1/configmaps none, after 0.1 s: None"):
            await cluster.wait_for("v1/configmaps", "none", namespace="default", timeout=0.1)


@pytest.mark.parametrize("asked", [signal.SIGINT, signal.SIGTERM])
def test_the_command_runs_until_it_is_interrupted(tmp_path: Path, asked: signal.Signals) -> None:
    path = tmp_path / "config"
    command = [sys.executable, "-m", "devkube", "--port=0", "--nodes=0", f"--kubeconfig={path}"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert f"is ready; export KUBECONFIG={path}" in process.stdout.readline()
        os.kill(process.pid, asked)
        assert process.wait(timeout=60) == 0
