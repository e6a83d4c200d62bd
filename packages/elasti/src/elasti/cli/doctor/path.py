"""`elasti doctor --path`: what answers a connection to a Service, by each way that is known to lead to it.

It sends the probe that the operator sends before it publishes a port. A resolver answers it by itself, so that it wakes
nothing; a pod takes it for a GET of a path that it does not have.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import socket
import ssl
from typing import TYPE_CHECKING, NamedTuple

from elasti.api.names import ELASTISERVICES
from elasti.api.states import State
from elasti.api.types import ElastiService
from elasti.api.wire import PROBE_LIMIT, ProbeIdentity, probe_request, read_probe_answer
from elasti.cli.doctor.elastiservices import judge_egress, judge_services
from elasti.cli.doctor.examination import NETWORK_POLICIES, Examination
from elasti.cli.doctor.findings import DoctorFinding, FindingLevel, hint, ok, problem
from kubeloop.client.errors import NotFound
from kubeloop.objects.core import SERVICES, Service
from kubeloop.objects.names import url_host

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kubeloop.objects.meta import JsonObject

_PATIENCE = 5.0
_ROUTES = "gateway.networking.k8s.io/v1"
_REMEDY = (
    "elasti describe shows the condition TrafficPath. A mesh, a load balancer or a NetworkPolicy may leave out the"
    " ports on which the resolver listens."
)


class Way(NamedTuple):
    """One way to a Service; a proxy routes by `host` and `path`, which are empty without one."""

    topic: str
    address: str
    port: int
    host: str = ""
    path: str = ""
    tls: bool = False


class PathExamination(Examination):
    """Sends a probe by every way to one Service."""

    async def path_findings(self, name: str) -> list[DoctorFinding]:
        """Ask. Raises KubeError if the ElastiService or its Service cannot be read."""
        place, client = self._namespace, self._client
        es = await client.resource(ELASTISERVICES, ElastiService, namespace=place).get(name)
        to, inside = es.spec.service, "KUBERNETES_SERVICE_HOST" in os.environ
        service = await client.resource(SERVICES, Service, namespace=place).get(to)
        found = judge_services([es], None)
        self._found += [one for one in found if one.level is not FindingLevel.OK]
        at = service.spec.cluster_ip
        ports = service.tcp_ports if at not in ("", "None") else ()
        ways = [Way(f"Service {to} ({url_host(at)}:{one.port})", at, one.port) for one in ports]
        ingresses = await self._list_around("Ingresses", "networking.k8s.io/v1/ingresses", [es])
        ways += [way for one in ingresses or () for way in ways_of_ingress(one, to)]
        for route in await self._list_around("HTTPRoutes", f"{_ROUTES}/httproutes", [es]) or ():
            for parent in route["spec"].get("parentRefs") or ():
                where = parent.get("namespace") or place
                gateways = client.resource(f"{_ROUTES}/gateways", namespace=where)
                with contextlib.suppress(NotFound), self._noted("Gateways", essential=False):
                    ways += ways_of_route(route, await gateways.get(parent["name"]), parent, to)
        key = ProbeIdentity(place, to)
        answers = await asyncio.gather(*(asyncio.to_thread(_ask, way, key) for way in ways))
        asleep = es.status.state == State.PROXY
        pairs = zip(ways, answers, strict=True)
        self._found += [judge(*pair, key, asleep=asleep, inside=inside) for pair in pairs]
        policies = await self._list_around("NetworkPolicies", NETWORK_POLICIES, [es]) or ()
        self._found += judge_egress(policies, service, await self._elasti_labels())
        return self._found


def ways_of_ingress(ingress: JsonObject, service: str) -> Iterator[Way]:
    """Yield how an Ingress leads to a Service: at each of its addresses, by each host."""
    spec, name = ingress["spec"], ingress["metadata"]["name"]
    secured = {host for one in spec.get("tls") or () for host in one.get("hosts") or ()}
    default = {"http": {"paths": [{"backend": spec.get("defaultBackend")}]}}
    for at in ((ingress.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ():
        for rule in (*(spec.get("rules") or ()), default):
            for path in (rule.get("http") or {}).get("paths") or ():
                backend = (path.get("backend") or {}).get("service") or {}
                if backend.get("name") == service and path.get("pathType") != "Exact":
                    address, host = at.get("ip") or at.get("hostname", ""), rule.get("host", "")
                    tls, topic = host in secured, f"Ingress {name} ({host or address})"
                    port = 443 if tls else 80
                    yield Way(topic, address, port, host or address, path.get("path", ""), tls)


def ways_of_route(
    route: JsonObject, gateway: JsonObject, parent: JsonObject, service: str
) -> Iterator[Way]:
    """Yield how an HTTPRoute leads to a Service by one of its Gateways: at each address and listener."""
    spec, name = route["spec"], gateway["metadata"]["name"]
    rules = [
        rule
        for rule in spec.get("rules") or ()
        if any(ref.get("name") == service for ref in rule.get("backendRefs") or ())
    ]
    for one in ((gateway.get("status") or {}).get("addresses") or ()) if rules else ():
        for listener in gateway["spec"].get("listeners") or ():
            if parent.get("sectionName", listener["name"]) == listener["name"]:
                host = next(iter(spec.get("hostnames") or ()), listener.get("hostname") or "")
                match: JsonObject = next(iter(rules[0].get("matches") or ()), {})
                address, port = one.get("value", ""), listener["port"]
                topic, tls = f"Gateway {name} ({host or address}:{port})", "tls" in listener
                path = (match.get("path") or {}).get("value", "")
                yield Way(topic, address, port, host or address, path, tls)


def _ask(way: Way, key: ProbeIdentity) -> bytes | OSError:
    """Return the beginning of an answer. Blocks, so that nothing comes between the connection and the probe."""
    # An expression counts up to its first character that is not plain text.
    plain, host = re.match(r"[\w/.~-]*", way.path), way.host.replace("*", "elasti-doctor")
    prefix, answer = plain[0].rstrip("/") if plain else "", b""
    request = probe_request(key.namespace, key.service, host=host or "elasti", prefix=prefix)
    try:
        opened = socket.create_connection((way.address, way.port), timeout=_PATIENCE)
        if way.tls:
            unverified = ssl.create_default_context()
            unverified.check_hostname, unverified.verify_mode = False, ssl.CERT_NONE
            opened = unverified.wrap_socket(opened, server_hostname=host)
        with opened:
            opened.sendall(request)
            while len(answer) < PROBE_LIMIT and (data := opened.recv(PROBE_LIMIT)):
                answer += data
    except OSError as error:
        return answer or error
    return answer or ConnectionError("the connection was closed without an answer")


def judge(
    way: Way, answer: bytes | OSError, key: ProbeIdentity, *, asleep: bool, inside: bool
) -> DoctorFinding:
    """Say which hop answered. `asleep`: it has to be the resolver; `inside`: this is a pod, for which cluster IPs work."""
    if isinstance(answer, OSError):
        what = f"nothing answered: {answer}"
        if not (way.host or inside or isinstance(answer, ConnectionError)):
            why = f"{what}; most cluster IPs are reached only from inside the cluster"
            remedy = "Run elasti doctor --path in a pod of the cluster."
            return DoctorFinding(FindingLevel.UNCHECKED, way.topic, why, remedy)
        return problem(way.topic, what, _REMEDY if asleep else "")
    if read_probe_answer(answer) == key:
        return ok(
            way.topic, "the resolver answered: it holds what comes this way, and wakes the target"
        )
    what = answer.partition(b"\r\n")[0][:80].decode("latin-1")
    if asleep:
        what = f"something else than the resolver answered, and does not wake the target: {what}"
        return problem(way.topic, what, _REMEDY)
    what = f"a pod answered, or a proxy before it; the target is not asleep: {what}"
    return hint(way.topic, what, "Ask again while it sleeps, to see whether the resolver answers.")
