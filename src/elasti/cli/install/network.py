"""Who reaches whom: Services, NetworkPolicies, and how many may be away at once. Pure.

The policies are about the ports of our own pods; policies of the workloads see the resolver as the
client while they wake, and must let it in themselves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.cli.install.choices import Program
from elasti.cli.install.parts import (
    ADMIN_PORT,
    DATA_PORTS,
    OPERATOR_SERVICE,
    RESOLVER_SERVICE,
    SHARED_PORT,
    WAKE_PORT,
    Part,
    account,
    metadata,
    selector,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from elasti.cli.install.choices import Choices
    from kubeloop.objects.meta import JsonObject

# The convention of controllers' scaffolds for namespaces whose pods may scrape.
SCRAPERS = {"metrics": "enabled"}


def services(choices: Choices) -> Iterator[Part]:
    """Yield the programs' Services, under KubeElasti's names."""
    wake = [_port("http", WAKE_PORT)]
    yield Part(
        "Where resolvers ask any operator replica for a wake-up.",
        _service(OPERATOR_SERVICE, Program.OPERATOR, wake, choices),
    )
    ports = [_port("admin", ADMIN_PORT), _port("proxy", SHARED_PORT)]
    resolver = _service(RESOLVER_SERVICE, Program.RESOLVER, ports, choices)
    # Services of either family sleep; the resolvers must have an address in each that there is.
    resolver["spec"]["ipFamilyPolicy"] = "PreferDualStack"
    yield Part(
        "Where the operator finds the resolvers; 8012 is for those who send by the Host header.",
        resolver,
    )


def policies(choices: Choices) -> Iterator[Part]:
    """Yield who may reach which port. The kubelet's probes are let in by every policy engine."""
    first, last = DATA_PORTS
    scrapers: JsonObject = {"namespaceSelector": {"matchLabels": SCRAPERS}}
    yield Part(
        f"Wake-ups and metrics ({WAKE_PORT}): the resolvers, and pods of namespaces labelled"
        " metrics: enabled.",
        _policy(
            Program.OPERATOR,
            [{"from": [_pods(Program.RESOLVER), scrapers], "ports": [_allowed(WAKE_PORT)]}],
            choices,
        ),
    )
    yield Part(
        f"Data ports ({first}-{last}, {SHARED_PORT}): everybody, since they stand for Services that"
        f" sleep. Admin port ({ADMIN_PORT}): the operator, and pods of namespaces labelled"
        " metrics: enabled.",
        _policy(
            Program.RESOLVER,
            [
                {"ports": [_allowed(first, last), _allowed(SHARED_PORT)]},
                {"from": [_pods(Program.OPERATOR), scrapers], "ports": [_allowed(ADMIN_PORT)]},
            ],
            choices,
        ),
    )


def budgets(choices: Choices) -> Iterator[Part]:
    """Yield how many pods of a program may be evicted at once."""
    for program in Program:
        meta = metadata(account(program), choices, program=program, namespace=choices.namespace)
        yield Part(
            f"Nodes are drained one {program.value} at a time.",
            {
                "apiVersion": "policy/v1",
                "kind": "PodDisruptionBudget",
                "metadata": meta,
                "spec": {
                    # Not minAvailable: with one replica no node could ever be drained.
                    "maxUnavailable": 1,
                    "selector": {"matchLabels": selector(program)},
                    # A pod that is not ready protects nobody.
                    "unhealthyPodEvictionPolicy": "AlwaysAllow",
                },
            },
        )


def _service(name: str, program: Program, ports: list[JsonObject], choices: Choices) -> JsonObject:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": metadata(name, choices, program=program, namespace=choices.namespace),
        "spec": {"type": "ClusterIP", "selector": selector(program), "ports": ports},
    }


def _port(name: str, number: int) -> JsonObject:
    return {
        "name": name,
        "port": number,
        "targetPort": name,
        "protocol": "TCP",
        "appProtocol": "http",
    }


def _policy(program: Program, ingress: list[JsonObject], choices: Choices) -> JsonObject:
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": metadata(
            account(program), choices, program=program, namespace=choices.namespace
        ),
        "spec": {
            "podSelector": {"matchLabels": selector(program)},
            "policyTypes": ["Ingress"],
            "ingress": ingress,
        },
    }


def _pods(program: Program) -> JsonObject:
    return {"podSelector": {"matchLabels": selector(program)}}


def _allowed(first: int, last: int | None = None) -> JsonObject:
    return {"protocol": "TCP", "port": first} | ({"endPort": last} if last else {})
