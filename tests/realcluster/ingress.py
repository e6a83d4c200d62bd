"""Scenarios with a real ingress in front: Traefik, by Ingress and by Gateway API.

Traefik sends requests to the endpoints of a Service by itself; kube-proxy has no part in it.
"""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from collections.abc import Callable
from typing import TypeAlias

from hack.realcluster.images import SERVERS, program_tag
from kubeloop.objects.meta import JsonObject
from tests.e2e.environment import Address
from tests.e2e.prober.contract import answer_of
from tests.e2e.scenarios.cycles import burst
from tests.e2e.workload import PORT
from tests.realcluster.databases import CONFINED, POD_CONFINED
from tests.realcluster.nodes import GRPC_PORT, NodeApp, NodeTrial

NAMESPACE = "traefik"
GATEWAY = "gateway.networking.k8s.io"
WEB_PORT, API_PORT = 8000, 8080
# For how long an app serves on after SIGTERM. Traefik hears of endpoints later than nodes do, on a busy
# machine by seconds: with 3 s it still sent requests to pods that were gone.
LINGER = 10
NAVIGATION = (
    "Accept: text/html,application/xhtml+xml,*/*;q=0.8",
    "Sec-Fetch-Mode: navigate",
    "Sec-Fetch-Dest: document",
)
Route: TypeAlias = Callable[[str, str, str, int], JsonObject]
# Runs on a node; speaks WebSocket or gRPC through the ingress, and prints what came back.
SPEAK = """
import asyncio, json, sys
import grpc, websockets

kind, address, host, word = sys.argv[1:]

async def websocket():
    there, port = address.split(":")
    url = f"ws://{host}/"
    async with websockets.connect(url, host=there, port=int(port), open_timeout=120) as connection:
        said = []
        for number in range(5):
            await connection.send(f"{word}-{number}")
            said.append(await connection.recv())
    return said

async def calls():
    options = [("grpc.default_authority", host)]
    async with grpc.aio.insecure_channel(address, options=options) as channel:
        one = await channel.unary_unary("/echo.Echo/Echo")(word.encode(), timeout=120)
        count = channel.unary_stream("/echo.Echo/Count")(word.encode(), timeout=120)
        many = [message.decode() async for message in count]
    return [one.decode(), *many]

print(json.dumps(asyncio.run({"websocket": websocket, "grpc": calls}[kind]())))
"""


async def by_ingress(trial: NodeTrial) -> None:
    """Cold requests through Traefik by Ingress, new and kept connections, many cycles."""
    await _cycles(trial, _ingress)


async def by_gateway(trial: NodeTrial) -> None:
    """Cold requests through Traefik by Gateway API, new and kept connections, many cycles."""
    await _cycles(trial, _route)


async def websocket_and_grpc_by_ingress(trial: NodeTrial) -> None:
    """A WebSocket and gRPC calls through Traefik's Ingress wake what sleeps."""
    await _conversations(trial, _ingress)


async def websocket_and_grpc_by_gateway(trial: NodeTrial) -> None:
    """A WebSocket and gRPC calls through Traefik's Gateway wake what sleeps."""
    await _conversations(trial, _route)


async def waiting_page(trial: NodeTrial) -> None:
    """A navigation under a prefix, which Traefik keeps or takes away, gets the waiting page, then the app."""
    app = trial.new_app(start=8, linger=LINGER, cooldown=3600)
    front = await trial.environment.address(NAMESPACE, "traefik")
    workload, service, es = app.but(replicas=0).objects()
    es["spec"]["wake"]["page"] = {"mode": "Auto", "after": "1s"}
    await trial.environment.apply(workload, service, es)
    routes = {"kept": _ingress, "stripped": _route}
    for name, route in routes.items():
        host = f"{name}.{trial.namespace}.example"
        made = route(trial.namespace, host, app.name, PORT)
        _under_prefix(made)
        await trial.environment.apply(made)
        await _known(trial, front, host)
        await trial.asleep(app)

        async def get(*fields: str, there: str = host) -> tuple[str, str]:
            words = [
                f"http://{front.host}:{front.port}/shop/cart",
                "--include",
                "--max-time",
                "120",
            ]
            for field in (f"Host: {there}", *fields):
                words += ["--header", field]
            trial.asked_by_others += 1
            head, _, body = (await _curl(trial, *words)).partition("\r\n\r\n")
            return head.lower(), body

        head, page = await get(*NAVIGATION)
        assert 'data-elasti="stage"' in page, (head, page)
        for field in (
            " 503 ",
            "cache-control: no-store",
            "retry-after:",
            "x-robots-tag: noindex",
            "vary:",
        ):
            assert field in head, (field, head)
        head, lines = await get("X-Elasti-Wait: 1")
        assert "cache-control: no-store" in head
        stages = [json.loads(line)["stage"] for line in lines.splitlines()]
        assert {"starting", "ready"} <= set(stages), stages
        head, answer = await get(*NAVIGATION)
        path = "cart" if name == "stripped" else "shop/cart"
        assert answer == answer_of(path, b"").decode(), (head, answer)
        assert "x-elasti-state" not in head
        trial.notes.append(f"the waiting page under a prefix that is {name}: {', '.join(stages)}")
        await trial.awake(app)
        words = ["sleep", app.name, f"--namespace={trial.namespace}", "--wait"]
        await asyncio.to_thread(trial.rig.elasti, *words)


async def _cycles(trial: NodeTrial, route: Route) -> None:
    app = trial.new_app(linger=LINGER)
    host = f"{trial.namespace}.example"
    await trial.sleeping_app(app)
    await trial.environment.apply(route(trial.namespace, host, app.name, PORT))
    front = await trial.environment.address(NAMESPACE, "traefik")
    await _known(trial, front, host)
    probe = await trial.probe(front, host=host)
    for _ in range(trial.length.cycles):
        await burst(trial, app, probe)
        await trial.asleep(app)


async def _conversations(trial: NodeTrial, route: Route) -> None:
    name = f"{trial.namespace}.example"
    front = await trial.environment.address(NAMESPACE, "traefik")
    for kind, port in (("websocket", PORT), ("grpc", GRPC_PORT)):
        host = f"{kind}.{name}"
        app = trial.new_app(kind, image=SERVERS, command="exec python3 echo.py", cooldown=3600)
        await trial.environment.apply(*_echo(app, port))
        await trial.environment.apply(route(trial.namespace, host, kind, port))
        await trial.environment.rolled_out(trial.namespace, kind)
        await _known(trial, front, host)
        for number in range(2):
            # An answer comes before the pod is Ready, and what is waking is not put to sleep.
            await trial.awake(app)
            words = ["sleep", kind, f"--namespace={trial.namespace}", "--wait"]
            await asyncio.to_thread(trial.rig.elasti, *words)
            await trial.asleep(app)
            word = f"{kind}-{number}"
            said = await _speak(trial, kind, f"{front.host}:{front.port}", host, word)
            assert said == ([f"{word}-{n}" for n in range(5)] if port == PORT else [word] * 5)
        trial.notes.append(f"{kind} through Traefik, twice cold: every message came back")


async def _speak(trial: NodeTrial, kind: str, address: str, host: str, word: str) -> list[str]:
    trial.asked_by_others += 1
    process = await trial.environment.testbed.spawn(
        [sys.executable, "-c", SPEAK, kind, address, host, word],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    said, complaint = await process.communicate()
    assert process.returncode == 0, complaint.decode()
    return list(json.loads(said))


async def _known(trial: NodeTrial, front: Address, host: str) -> None:
    """Wait until Traefik knows a host: it reads routes a moment after they are made."""
    url = f"http://{front.host}:{API_PORT}/api/http/routers"

    async def known() -> bool:
        return host in await _curl(trial, url)

    await trial.environment.until(known, f"Traefik knows {host}")


async def _curl(trial: NodeTrial, *words: str) -> str:
    process = await trial.environment.testbed.spawn(
        ["curl", "--silent", *words], stdout=subprocess.PIPE
    )
    return (await process.communicate())[0].decode()


def _under_prefix(route: JsonObject) -> None:
    """Let it answer under /shop, which an Ingress keeps and a Gateway takes away."""
    (rule,) = route["spec"]["rules"]
    if "http" in rule:
        rule["http"]["paths"][0]["path"] = "/shop"
        return
    rewrite = {"path": {"type": "ReplacePrefixMatch", "replacePrefixMatch": "/"}}
    rule["matches"] = [{"path": {"type": "PathPrefix", "value": "/shop"}}]
    rule["filters"] = [{"type": "URLRewrite", "urlRewrite": rewrite}]


def _ingress(namespace: str, host: str, service: str, port: int) -> JsonObject:
    backend = {"service": {"name": service, "port": {"number": port}}}
    path = {"path": "/", "pathType": "Prefix", "backend": backend}
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "Ingress",
        "metadata": {"name": f"{service}-{port}", "namespace": namespace},
        "spec": {
            "ingressClassName": "traefik",
            "rules": [{"host": host, "http": {"paths": [path]}}],
        },
    }


def _route(namespace: str, host: str, service: str, port: int) -> JsonObject:
    return {
        "apiVersion": f"{GATEWAY}/v1",
        "kind": "HTTPRoute",
        "metadata": {"name": f"{service}-{port}", "namespace": namespace},
        "spec": {
            "parentRefs": [{"name": "traefik", "namespace": NAMESPACE}],
            "hostnames": [host],
            "rules": [{"backendRefs": [{"name": service, "port": port}]}],
        },
    }


def _echo(app: NodeApp, port: int) -> list[JsonObject]:
    """Return a server of WebSockets or gRPC that sleeps when it is told to."""
    service = app.service()
    service["spec"]["ports"] = [{"name": "main", "port": port}]
    if port == GRPC_PORT:
        # A Gateway reads the first, an Ingress the second.
        service["spec"]["ports"][0]["appProtocol"] = "kubernetes.io/h2c"
        service["metadata"]["annotations"] = {
            "traefik.ingress.kubernetes.io/service.serversscheme": "h2c"
        }
    workload = app.workload()
    (container,) = workload["spec"]["template"]["spec"]["containers"]
    container["lifecycle"] = {"preStop": {"sleep": {"seconds": LINGER}}}
    return [workload, service, app.elasti_service()]


def traefik() -> list[JsonObject]:
    """Return Traefik with both of its providers, and what they need."""
    meta = {"name": "traefik", "namespace": NAMESPACE}
    labels = {"app": "traefik"}
    rbac = "rbac.authorization.k8s.io"
    read = ["get", "list", "watch"]
    routes = [
        "gatewayclasses", "gateways", "httproutes", "grpcroutes", "referencegrants",
        "backendtlspolicies", "tcproutes", "tlsroutes",
    ]  # fmt: skip
    rules = [
        {"apiGroups": [""], "resources": ["services", "secrets", "nodes", "namespaces", "configmaps"], "verbs": read},
        {"apiGroups": ["discovery.k8s.io"], "resources": ["endpointslices"], "verbs": read},
        {"apiGroups": ["networking.k8s.io"], "resources": ["ingresses", "ingressclasses"], "verbs": read},
        {"apiGroups": ["networking.k8s.io"], "resources": ["ingresses/status"], "verbs": ["update"]},
        {"apiGroups": [GATEWAY], "resources": routes, "verbs": read},
        {"apiGroups": [GATEWAY], "resources": [f"{name}/status" for name in routes], "verbs": ["update"]},
    ]  # fmt: skip
    container = {
        "name": "traefik",
        "image": program_tag("traefik"),
        "imagePullPolicy": "Never",
        "args": [
            f"--entryPoints.web.address=:{WEB_PORT}",
            f"--entryPoints.traefik.address=:{API_PORT}",
            "--api.insecure=true",
            "--ping=true",
            "--providers.kubernetesIngress=true",
            "--providers.kubernetesGateway=true",
            # Two seconds by default: Elasti's settles are shorter than usual here, too.
            "--providers.providersThrottleDuration=200ms",
            "--global.checkNewVersion=false",
            "--log.level=INFO",
        ],
        "readinessProbe": {
            "httpGet": {"path": "/ping", "port": API_PORT},
            "periodSeconds": 1,
        },
        "securityContext": CONFINED,
    }
    pod = {
        "serviceAccountName": "traefik",
        "securityContext": POD_CONFINED,
        "containers": [container],
    }
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        {"apiVersion": f"{rbac}/v1", "kind": "ClusterRole", "metadata": {"name": "traefik"}, "rules": rules},
        {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRoleBinding",
            "metadata": {"name": "traefik"},
            "roleRef": {"apiGroup": rbac, "kind": "ClusterRole", "name": "traefik"},
            "subjects": [{"kind": "ServiceAccount", **meta}],
        },
        {
            "apiVersion": "apps/v1",
            "kind": "Deployment",
            "metadata": meta,
            "spec": {
                "selector": {"matchLabels": labels},
                "template": {"metadata": {"labels": labels}, "spec": pod},
            },
        },
        {
            "apiVersion": "v1",
            "kind": "Service",
            "metadata": meta,
            "spec": {
                "selector": labels,
                "ports": [
                    {"name": "web", "port": WEB_PORT},
                    {"name": "api", "port": API_PORT},
                ],
            },
        },
        {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "IngressClass",
            "metadata": {"name": "traefik"},
            "spec": {"controller": "traefik.io/ingress-controller"},
        },
        {
            "apiVersion": f"{GATEWAY}/v1",
            "kind": "GatewayClass",
            "metadata": {"name": "traefik"},
            "spec": {"controllerName": "traefik.io/gateway-controller"},
        },
        {
            "apiVersion": f"{GATEWAY}/v1",
            "kind": "Gateway",
            "metadata": meta,
            "spec": {
                "gatewayClassName": "traefik",
                "listeners": [
                    {
                        "name": "web",
                        "protocol": "HTTP",
                        "port": WEB_PORT,
                        "allowedRoutes": {"namespaces": {"from": "All"}},
                    }
                ],
            },
        },
    ]  # fmt: skip
