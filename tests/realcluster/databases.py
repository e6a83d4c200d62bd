"""Scenarios with servers that people run: PostgreSQL and Redis of Debian's packages, asked while asleep.

Their clients are in a pod of their own, find the server by its name, and never try again.
"""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Mapping
from typing import Any

from elasti.api.names import API_VERSION, KIND
from hack.realcluster.images import SERVERS
from kubeloop.objects.meta import JsonObject
from tests.realcluster.nodes import NodeTrial, volume

CLIENTS = 10
NEVER = 3600
_ROUNDS = {"short": 2, "full": 10}
_DATA = "/data/own"
_POSTGRES = f"""
PATH=/usr/lib/postgresql/17/bin:$PATH
test -d {_DATA} || initdb --pgdata {_DATA} --username app --auth trust > /dev/null
echo host all all all trust >> {_DATA}/pg_hba.conf
PREPARE
exec postgres -D {_DATA} -h 0.0.0.0 -k /tmp -c jit=off -c hot_standby=off \\
  -c restore_command='sleep 0.3; exit 1'
"""
# What a server does that finds it was not shut down: it accepts connections, and refuses to serve.
_RECOVERS = f"touch {_DATA}/recovery.signal"
_REDIS = f"mkdir -p {_DATA}; exec redis-server --dir {_DATA} --appendonly yes --protected-mode no"
CONFINED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
POD_CONFINED = {"runAsNonRoot": True, "seccompProfile": {"type": "RuntimeDefault"}}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Server:
    """One that sleeps when it is told to, with a volume of its own."""

    name: str
    port: int
    command: str
    probe: JsonObject
    ask: str
    """What a client runs; it prints one line."""
    kind: str = "StatefulSet"
    cooldown: int = NEVER
    """With fewer seconds it sleeps by itself, by the installation's default trigger."""
    probe_every: int = 1
    spec: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    """Fields of its ElastiService's spec, instead of these."""

    def objects(self, namespace: str) -> list[JsonObject]:
        """Return the workload, its Service, its ElastiService and a pod for clients."""
        labels = {"app": self.name}
        meta = {"name": self.name, "namespace": namespace}
        target = {"apiVersion": "apps/v1", "kind": self.kind, "name": self.name}
        # As the guide says: no pod starts while another still has the data open.
        alone: JsonObject = {"serviceName": self.name}
        if self.kind == "Deployment":
            alone = {"strategy": {"type": "Recreate"}}
        claim = {"name": "data", "persistentVolumeClaim": {"claimName": f"data-{self.name}"}}
        server = pod(
            self.command,
            readinessProbe={**self.probe, "periodSeconds": self.probe_every, "timeoutSeconds": 10},
            # As the guide says: nodes hear of a pod's end later than the pod.
            lifecycle={"preStop": {"sleep": {"seconds": 3}}},
            volumeMounts=[{"name": "data", "mountPath": "/data"}],
        )
        template = {"metadata": {"labels": labels}, "spec": {**server, "volumes": [claim]}}
        return [
            {
                "apiVersion": "apps/v1",
                "kind": self.kind,
                "metadata": meta,
                "spec": {
                    **alone,
                    "selector": {"matchLabels": labels},
                    "template": template,
                },
            },
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": meta,
                "spec": {"selector": labels, "ports": [{"port": self.port}]},
            },
            {
                "apiVersion": API_VERSION,
                "kind": KIND,
                "metadata": meta,
                "spec": {
                    "service": self.name,
                    "scaleTargetRef": target,
                    "cooldownPeriod": self.cooldown,
                    # Left out, they are the installation's.
                    **({} if self.cooldown < NEVER else {"triggers": []}),
                    **self.spec,
                },
            },
            {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "clients", "namespace": namespace},
                "spec": pod("exec sleep infinity"),
            },
        ]


def pod(command: str, **more: Any) -> JsonObject:
    """Return the spec of a pod that runs a shell's command."""
    container = {
        "name": "main",
        "image": SERVERS,
        "imagePullPolicy": "Never",
        "command": ["sh", "-c", command],
        "securityContext": CONFINED,
        **more,
    }
    return {
        "securityContext": POD_CONFINED,
        "terminationGracePeriodSeconds": 10,
        "containers": [container],
    }


def postgres(probe: JsonObject, *, prepare: str = "") -> Server:
    """Return PostgreSQL; its table remembers who asked."""
    ask = "psql --host postgres --username app --tuples-only --no-align postgres --command"
    return Server(
        name="postgres",
        kind="Deployment",
        port=5432,
        command=_POSTGRES.replace("PREPARE", prepare),
        probe=probe,
        ask=f'{ask} "insert into asked values (default) returning 42" --quiet',
    )


async def postgresql(trial: NodeTrial) -> None:
    """psql, ten at once, is answered by a PostgreSQL that sleeps, and finds its data again."""
    ready = {"exec": {"command": ["sh", "-c", "pg_isready --host $(hostname -i) --quiet"]}}
    await _postgresql(trial, postgres(ready, prepare=_RECOVERS))


async def postgresql_with_tcp_probe(trial: NodeTrial) -> None:
    """The same behind a TCP probe that begins when a server has recovered."""
    ready = {"tcpSocket": {"port": 5432}, "initialDelaySeconds": 8}
    await _postgresql(trial, postgres(ready, prepare=_RECOVERS))


async def redis(trial: NodeTrial) -> None:
    """redis-cli, ten at once, is answered by a Redis that sleeps, and finds its data again."""
    server = Server(
        name="redis",
        port=6379,
        command=_REDIS,
        probe={"exec": {"command": ["sh", "-c", "redis-cli ping | grep PONG"]}},
        ask="redis-cli -h redis incr asked",
    )
    await there(trial, server)
    rounds = _ROUNDS[trial.length.name]
    answers = [answer for _ in range(rounds) for answer in await _cold(trial, server)]
    assert sorted(map(int, answers)) == list(range(1, rounds * CLIENTS + 1)), answers


async def _postgresql(trial: NodeTrial, server: Server) -> None:
    await there(trial, server)
    warm = "psql --host postgres --username app --tuples-only --no-align postgres --command"
    assert await client(trial, f'{warm} "create table asked (id serial)"') == "CREATE TABLE"
    rounds = _ROUNDS[trial.length.name]
    for _ in range(rounds):
        answers = await _cold(trial, server)
        assert answers == ["42"] * CLIENTS, answers
    count = await client(trial, f'{warm} "select count(*) from asked"')
    assert count == str(rounds * CLIENTS), count


async def there(trial: NodeTrial, server: Server) -> None:
    directory = trial.directory / f"data-{server.name}"
    directory.mkdir()
    directory.chmod(0o777)
    await trial.environment.apply(*volume(trial.namespace, f"data-{server.name}", directory))
    await trial.environment.apply(*server.objects(trial.namespace))
    await trial.kubectl("rollout", "status", f"{server.kind}/{server.name}", "--timeout=120s")
    await trial.kubectl("wait", "pod/clients", "--for=condition=Ready", "--timeout=60s")


async def _cold(trial: NodeTrial, server: Server) -> list[str]:
    """Put the server to sleep, let all clients ask at once, and return what they got."""
    await sleep(trial, server)
    began = time.monotonic()
    asking = (client(trial, server.ask) for _ in range(CLIENTS))
    answers = await asyncio.gather(*asking)
    took = time.monotonic() - began
    trial.notes.append(f"{CLIENTS} cold clients of {server.name} were answered in {took:.1f} s")
    return answers


async def sleep(trial: NodeTrial, server: Server) -> None:
    words = ["sleep", server.name, f"--namespace={trial.namespace}", "--wait"]
    await asyncio.to_thread(trial.rig.elasti, *words)


async def client(trial: NodeTrial, command: str) -> str:
    trial.asked_by_others += 1
    said = await trial.kubectl("exec", "clients", "--", "sh", "-c", f"{command} 2>&1 || true")
    return said.strip()
