"""Scenarios of a node, or of a resolver, that is gone from one moment to the next: the other one has to do.

Nothing says goodbye: the lost node's wire is taken off, and what runs there goes on for itself. Load goes
through the Service all the while, from the node that lives. Connections that kube-proxy sends to the lost
node get no answer: they are counted until the dead endpoint has left its slice; after that none may fail.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import AsyncIterator
from typing import Any

from hack.realcluster.cluster import is_ready
from tests.e2e import bundle
from tests.e2e.account import Window
from tests.e2e.trial import NODE_LAG
from tests.e2e.workload import ALWAYS_IDLE
from tests.realcluster.nodes import NodeTrial
from tests.realcluster.rig import Rig

NODES = ("node-1", "node-2")
# From the loss to the first `/scale` of a target that sleeps.
MOST_SCALE = 3.0
# From the loss until the dead resolver is out of the slices, which the leader writes: if it was the leader's
# node, another leads when the lease's 15 s are over.
MOST_SLICES = {True: 17.0, False: 6.0}
_MISSED = 150.0
_RATE = 20.0
# A request that a lost node swallowed is given up after this long.
_SWALLOWED = 10.0
# From a resolver's end until it is out of the slices: operators keep a connection to it.
_MOST_KILLED = 2.0
_KILLED = "a resolver was killed: what it held is lost, and nodes send it connections until its endpoint is gone"
_LOST = "the node was lost: kube-proxy sends it connections until its endpoint is gone"


async def leaders_node(trial: NodeTrial) -> None:
    """The node with the leader and a resolver is lost; a request comes at once."""
    await _lost(trial, leader=True)


async def followers_node(trial: NodeTrial) -> None:
    """The node with the other operator and a resolver is lost; a request comes at once."""
    await _lost(trial, leader=False)


async def apps_node(trial: NodeTrial) -> None:
    """The node with the app is lost; Kubernetes starts it on the other, and traffic arrives.

    A client that takes the port of a connection that it gave up meets the dead pod for two minutes more: kube-proxy
    leaves entries of TCP in the connection tracking, and about a twentieth of all ports have one. Elasti has no part
    in that, so they go when the endpoint does.
    """
    node = await _node(trial, leader=False)
    lives = _other(node)
    soon = [
        {
            "key": f"node.kubernetes.io/{word}",
            "operator": "Exists",
            "effect": "NoExecute",
            "tolerationSeconds": 1,
        }
        for word in ("not-ready", "unreachable")
    ]
    there = {"key": "kubernetes.io/hostname", "operator": "In", "values": [node]}
    term = {"weight": 100, "preference": {"matchExpressions": [there]}}
    affinity = {"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": [term]}}
    app = trial.new_app(
        trigger=ALWAYS_IDLE, cooldown=3600, more={"tolerations": soon, "affinity": affinity}
    )
    await trial.serving_app(app)
    (lost,) = await trial.environment.pods(trial.namespace, f"app={app.name}")
    trial.environment.nodes.place = lives
    address = await trial.environment.address(app.namespace, app.name)
    probe = await trial.probe(address, timeout=_SWALLOWED)
    await probe.rate(_RATE)
    await trial.flow(1)
    began = time.monotonic()
    async with _without(trial.rig, node):

        async def elsewhere() -> bool:
            pods = await trial.environment.pods(trial.namespace, f"app={app.name}")
            return any(pod["spec"].get("nodeName") == lives and is_ready(pod) for pod in pods)

        await trial.environment.until(elsewhere, "a pod on the node that lives is ready")
        trial.notes.append(
            f"ready on the other node {time.monotonic() - began:.0f} s after the loss"
        )
        await trial.environment.until(lambda: _only(trial, app.name, node), "the dead pod is out")
        tracked = ["conntrack", "-D", "-p", "tcp", "--reply-src", lost["status"]["podIP"]]
        await asyncio.to_thread(trial.rig.inside, lives, *tracked)
        _count_until_out(trial, began)
        await probe.rate(trial.length.rate)
        await trial.flow(trial.length.load / 4)
        await probe.finish()


async def resolver_killed(trial: NodeTrial) -> None:
    """A resolver is killed while it holds: what it held is lost, and nothing once it has left its slice."""
    app = await trial.sleeping_app(trial.new_app(start=6))
    await trial.load(app, rate=_RATE, reuse=False)
    await trial.environment.holding(trial.namespace, app.name, int(_RATE))
    pod = (await trial.environment.resolver_pods())[0]
    began = time.monotonic()
    await trial.environment.kill(pod)
    left = await _out(trial, app.name, pod["status"]["podIP"]) - began
    window = Window(began, time.monotonic() + NODE_LAG, _KILLED, math.inf)
    trial.windows.append(window)
    trial.notes.append(f"the killed resolver was out of the slice {left:.2f} s later")
    await trial.awake(app)
    await trial.flow_out()
    assert left <= _MOST_KILLED, left


async def _lost(trial: NodeTrial, *, leader: bool) -> None:
    node = await _node(trial, leader=leader)
    lives = _other(node)
    here = {"nodeSelector": {"kubernetes.io/hostname": lives}}
    app = trial.new_app(more=here)
    other = trial.new_app("asleep", more=here)
    for each in (app, other):
        await trial.sleeping_app(each)
    pods = {p["spec"]["nodeName"]: p for p in await trial.environment.resolver_pods()}

    async def listed() -> bool:
        return await _lists(trial, other.name, pods[node]["status"]["podIP"])

    await trial.environment.until(listed, "the resolver that will be lost is in the slices")
    trial.environment.nodes.place = lives
    address = await trial.environment.address(app.namespace, app.name)
    probe = await trial.probe(address, timeout=_SWALLOWED, reuse=False)
    async with _without(trial.rig, node):
        began = time.monotonic()
        await probe.rate(_RATE)
        out = asyncio.create_task(_out(trial, other.name, pods[node]["status"]["podIP"]))
        await trial.observer.until_true(lambda: not trial.at_zero(app), "it is scaled up")
        scaled = trial.observer.last("replicas", app.name, "1") - began
        await trial.observer.until_true(lambda: bool(trial.pods(app, "ready")), "it is ready")
        left = await out - began
        _count_until_out(trial, began)
        await trial.flow(trial.length.load / 4)
        await probe.rate(0)
        await probe.finish()
    trial.notes.append(
        f"`/scale` was written {scaled:.2f} s after the loss, the dead resolver was out of the slices"
        f" {left:.1f} s after it"
    )
    assert scaled <= MOST_SCALE, scaled
    assert left <= MOST_SLICES[leader], left


def _count_until_out(trial: NodeTrial, began: float) -> None:
    """Count what fails from the loss until now apart: the dead endpoint has just left its slice."""
    window = Window(began, time.monotonic() + NODE_LAG, _LOST, math.inf, silent=True)
    trial.windows.append(window)


async def _out(trial: NodeTrial, service: str, address: str) -> float:
    """Return when an address left a Service's slice."""

    async def out() -> bool:
        return not await _lists(trial, service, address)

    await trial.environment.until(out, f"{address} is out of the slice", seconds=_MISSED)
    return time.monotonic()


async def _lists(trial: NodeTrial, service: str, address: str) -> bool:
    """Whether the resolvers' slice of a Service has an address that is sent something."""
    piece = await trial.environment.slice(trial.namespace, service)
    endpoints = piece["endpoints"] if piece is not None else []
    return any(address in e["addresses"] and _is_used(e) for e in endpoints)


async def _only(trial: NodeTrial, service: str, lost: str) -> bool:
    slices = trial.environment.client.resource(
        "discovery.k8s.io/v1/endpointslices", namespace=trial.namespace
    )
    selector = f"kubernetes.io/service-name={service}"
    found = [e async for s in slices.items(selector=selector) for e in s.get("endpoints") or []]
    return not any(e.get("nodeName") == lost and _is_used(e) for e in found)


def _is_used(endpoint: dict[str, Any]) -> bool:
    return (endpoint.get("conditions") or {}).get("ready") is not False


async def _node(trial: NodeTrial, *, leader: bool) -> str:
    """Return the node of the operator that leads, or of the one that does not."""
    await _spread(trial)
    node = str((await trial.environment.leader())["spec"]["nodeName"])
    return node if leader else _other(node)


async def _spread(trial: NodeTrial) -> None:
    """Have one pod of each program, and of DNS, on each node: a drained one came back empty."""
    dns = "k8s-app=kube-dns"
    await trial.environment.scale("kube-system", "coredns", len(NODES))
    for namespace, name, selector in (
        ("kube-system", "coredns", dns),
        (bundle.NAMESPACE, bundle.OPERATOR, bundle.OPERATOR_SELECTOR),
        (bundle.NAMESPACE, bundle.RESOLVER, bundle.RESOLVER_SELECTOR),
    ):
        await trial.environment.rolled_out(namespace, name)
        pods = await trial.environment.pods(namespace, selector)
        if len({pod["spec"]["nodeName"] for pod in pods}) < len(NODES):
            where = f"--namespace={namespace}"
            await asyncio.to_thread(
                trial.rig.kubectl, "rollout", "restart", f"deploy/{name}", where
            )
            await trial.environment.rolled_out(namespace, name)


def _other(node: str) -> str:
    return next(name for name in NODES if name != node)


@contextlib.asynccontextmanager
async def _without(rig: Rig, node: str) -> AsyncIterator[None]:
    """Take a node's wire off the bridge during the block; the cluster is whole when this returns."""
    wire = node.replace("-", "")
    await asyncio.to_thread(rig.inside, "controlplane", "ip", "link", "set", wire, "nomaster")
    try:
        yield
    finally:
        words = ["ip", "link", "set", wire, "master", "br0"]
        await asyncio.to_thread(rig.inside, "controlplane", *words)
        await asyncio.to_thread(
            rig.api.until, "/api/v1/nodes", lambda nodes: all(map(is_ready, nodes)), _MISSED
        )
        for name in (bundle.OPERATOR, bundle.RESOLVER):
            wait = ["rollout", "status", f"deployment/{name}", f"--namespace={bundle.NAMESPACE}"]
            await asyncio.to_thread(rig.kubectl, *wait, "--timeout=120s")
