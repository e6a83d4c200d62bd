"""Real nodes as an environment of the end-to-end scenarios: Elasti's image, apps in containers.

    async with Client.from_kubeconfig([rig.state.kubeconfig]) as client:
        nodes = Nodes(rig, client)
        await running.run(nodes, scenario, settings, directory, kind=NodeTrial)

Scenarios, probers and accounts are those of `tests/e2e`. What differs is said here: how Elasti is
installed, what a pod is made of, and where an app writes down what it executed.
"""

from __future__ import annotations

import asyncio
import dataclasses
import secrets
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from hack.realcluster import lifecycle
from hack.realcluster.images import APP, PROJECT, SERVERS
from kubeloop.client import Client
from kubeloop.objects.meta import JsonObject
from tests.controlplane.rig import AUDIT_LOG
from tests.e2e.bundle import Installation
from tests.e2e.environment import Environment
from tests.e2e.probing import Probe
from tests.e2e.testbed import Testbed
from tests.e2e.trial import Trial
from tests.e2e.workload import PORT, App
from tests.realcluster.rig import RESTRICTED, Rig

_REPOSITORY, _, _VERSION = PROJECT.partition(":")
HASTY = Installation(repository=_REPOSITORY, version=_VERSION)
"""Endpoints reach two nodes of one machine at once; the defaults are for real networks."""
EXECUTED = "/executed"
GRPC_PORT = 8081
FIRST_NODE = "node-1"
_MOST_CONNECTIONS = 20_000


class NodesTestbed(Testbed):
    """A cluster of real nodes. Programs run in the first one's namespaces."""

    name = "real nodes"
    most_connections = _MOST_CONNECTIONS

    def __init__(self, rig: Rig, client: Client) -> None:
        self.rig = rig
        self.client = client
        self.kubeconfig = Path(rig.state.kubeconfig)
        logs = rig.directory.glob(f"logs/*/{AUDIT_LOG}")
        self.audit = max(logs, key=lambda path: path.stat().st_mtime)
        self.place = FIRST_NODE

    def inside(self, argv: Sequence[str]) -> Sequence[str]:
        """Enter a node."""
        return lifecycle.inside(self.rig.state, self.place, argv)


class Nodes(Environment):
    """Elasti on real nodes."""

    def __init__(self, rig: Rig, client: Client) -> None:
        testbed = NodesTestbed(rig, client)
        super().__init__(testbed)
        self.rig = rig
        self.nodes = testbed

    async def install(self, installation: Installation) -> None:
        """Run `elasti install`; it returns when both programs are available."""
        await asyncio.to_thread(install, self.rig, installation)
        self.client.mapper.invalidate()
        await self.leader()
        self.installed = installation

    async def namespace(self, prefix: str) -> str:
        """Make a namespace in which Pod Security `restricted` is enforced."""
        name = f"{prefix}-{secrets.token_hex(3)}"
        meta = {"name": name, "labels": RESTRICTED}
        await self.client.resource("v1/namespaces").create({"metadata": meta})
        accounts = self.client.resource("v1/serviceaccounts", namespace=name)

        async def made() -> bool:
            return [item async for item in accounts.items()] != []

        await self.until(made, f"{name} has its account, without which pods are refused")
        return name


def install(rig: Rig, installation: Installation) -> None:
    """Install Elasti by its command line, or bring it to other choices."""
    choices = installation.choices()
    rig.elasti(
        "install",
        f"--image={choices.image}",
        "--default-trigger=network",
        *(("--enrolment",) if choices.enrolment else ()),
        *(
            f"--env={program}:{name}={value}"
            for program, variables in choices.variables.items()
            for name, value in variables.items()
            if name != "ELASTI_OPERATOR_URL"  # there is DNS
        ),
    )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class NodeApp(App):
    """An app in a container. Its claim `executed` is where it writes what it executed."""

    start: float = 0.0
    linger: float = 3.0
    image: str = APP
    command: str = ""
    """A shell's, to run instead of the image's own."""
    probe: str = "http"
    memory: str = "128Mi"
    cpu: str = "20m"
    more: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of the pod's spec."""

    def pod(self) -> JsonObject:
        """Return a pod's spec that `restricted` lets pass."""
        claim = {"name": "executed", "persistentVolumeClaim": {"claimName": "executed"}}
        container = {
            "name": "app",
            "image": self.image,
            "imagePullPolicy": "IfNotPresent",
            **({"command": ["sh", "-c", self.command]} if self.command else {}),
            "env": self.variables(EXECUTED=EXECUTED),
            "ports": [{"containerPort": PORT}],
            "readinessProbe": self.readiness_probe(),
            "resources": {
                "requests": {"cpu": self.cpu, "memory": "32Mi"},
                "limits": {"memory": self.memory},
            },
            "volumeMounts": [{"name": "executed", "mountPath": EXECUTED}],
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "capabilities": {"drop": ["ALL"]},
            },
        }
        return {
            "terminationGracePeriodSeconds": 20,
            "securityContext": {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": [claim],
            **self.more,
        }

    def readiness_probe(self) -> JsonObject:
        """Return a probe of the chosen kind."""
        kinds: dict[str, JsonObject] = {
            "http": {"httpGet": {"path": "/healthz", "port": PORT}},
            "tcp": {"tcpSocket": {"port": PORT}},
            "grpc": {"grpc": {"port": GRPC_PORT}},
            "exec": {"exec": {"command": ["sh", "-c", f"curl -fsS http://$POD_IP:{PORT}/healthz"]}},
        }
        times = {"timeoutSeconds": 10, "periodSeconds": self.look_every, "failureThreshold": 1}
        return {**kinds[self.probe], **times}

    def with_grpc_health(self) -> NodeApp:
        """Return it with a gRPC server beside it, which its probe asks."""
        command = "GRPC_ONLY=1 python3 echo.py & exec python3 -m tests.e2e.app"
        return dataclasses.replace(self, image=SERVERS, command=command, probe="grpc")


class NodeTrial(Trial):
    """One scenario on real nodes."""

    environment: Nodes

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        self.environment.nodes.place = FIRST_NODE
        self._executed.chmod(0o777)  # pods run as another user
        await self.environment.apply(*volume(self.namespace, "executed", self._executed))
        return self

    @property
    def rig(self) -> Rig:
        return self.environment.rig

    @property
    def executed(self) -> Path:
        """The directory that the apps' pods have as `/executed`."""
        return self._executed

    def new_app(self, name: str = "web", **more: Any) -> NodeApp:
        """Return an app to be; see `NodeApp` for what may be chosen."""
        made = NodeApp(namespace=self.namespace, executed=self._executed, name=name)
        return dataclasses.replace(made, **more)

    def leave_out(self, probe: Probe) -> None:
        """What a prober met was to be so, and was looked at: the account is without it."""
        self._probes.remove(probe)

    async def kubectl(self, *words: str) -> str:
        """Run kubectl in the trial's namespace."""
        return await asyncio.to_thread(self.rig.kubectl, f"--namespace={self.namespace}", *words)


def volume(namespace: str, claim: str, directory: Path) -> list[JsonObject]:
    """Return a claim, and the volume for it: a directory of this machine, which every node sees."""
    name = f"{namespace}-{claim}"
    size = {"storage": "1Gi"}
    both = {"accessModes": ["ReadWriteMany"], "storageClassName": ""}
    return [
        {
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": {"name": name},
            "spec": {
                **both,
                "capacity": size,
                "hostPath": {"path": str(directory), "type": "Directory"},
                "claimRef": {"namespace": namespace, "name": claim},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": claim, "namespace": namespace},
            "spec": {**both, "resources": {"requests": size}, "volumeName": name},
        },
    ]
