"""Rigs on the two servers. On each, the operator has the rights that its manifests give it, no more."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from pathlib import Path

import pytest
from tests.controllers.support import (
    NODE,
    Cluster,
    cluster_at,
    eventually,
    first_of,
    node_named,
    running,
)
from tests.operator.fakes import RESOLVER_NAMESPACE, FakeResolver, loopback
from tests.operator.rig import Rig

from devkube.apiserver.server import ApiServer
from devkube.auth.install import fill, install
from devkube.auth.jwt import SigningKey
from devkube.controllers import garbage_collector
from devkube.controllers.manager import ControllerManager
from devkube.kubeconfig import ClusterAccess, write
from elasti.api.crd import custom_resource_definition
from elasti.cli.install.operator_policy import policy_spec
from elasti.operator.rbac import CLUSTER_RULES, NAMESPACED_RULES, OWN_RULES
from elasti.operator.settings import OperatorSettings
from kubeloop.client import AlreadyExists, Client, ClientConfig, NoMatch, NotFound
from kubeloop.objects.meta import JsonObject
from kubeloop.objects.patches import MergePatch
from tests.controlplane.rig import ControlPlane

DEVCLUSTER, CONTROLPLANE = "devcluster", "controlplane"


def _on_both(*dev_marks: pytest.MarkDecorator) -> pytest.MarkDecorator:
    real = pytest.param(CONTROLPLANE, marks=pytest.mark.controlplane)
    params = [pytest.param(DEVCLUSTER, marks=dev_marks), real]
    return pytest.mark.parametrize("rig", params, indirect=True)


everywhere = _on_both()
"""Runs a test, or a module's, on both servers; on Kubernetes' own in `make conformance`."""

everywhere_fast = _on_both(pytest.mark.virtual_time)
"""The same, with the dev cluster in virtual time: for what starts no process and no thread."""

USER = "elasti-operator-under-test"
_RBAC = "rbac.authorization.k8s.io"
_DEFINITIONS = "apiextensions.k8s.io/v1/customresourcedefinitions"


@contextlib.asynccontextmanager
async def dev_rig(tmp_path: Path, *, collects_garbage: bool = False) -> AsyncIterator[Rig]:
    """The dev cluster's server and controllers, for one test.

    Half of a start would be the garbage collector's watches, which few tests need.
    """
    without = [] if collects_garbage else [garbage_collector.NAME]
    server = ApiServer()
    auth = install(server.core, key=SigningKey.create())
    async with server:
        fill(server.core, auth)
        kubeconfig = tmp_path / "kubeconfig"
        kubeconfig.write_text(server.admin_kubeconfig())
        confined = tmp_path / "operator.kubeconfig"
        write(confined, _access(server))
        async with Client(ClientConfig.from_kubeconfig(kubeconfig)) as client:
            controllers = ControllerManager(client, root_ca=server.ca_pem, without=without)
            await client.resource("v1/nodes").create(node_named(NODE))
            async with running(controllers.run(), "controllers") as task:
                await first_of(controllers.wait_synced(), [task])
                async with (
                    cluster_at(
                        client, kubeconfig, server=server, controllers=controllers
                    ) as cluster,
                    rig_at(cluster, ClientConfig.from_kubeconfig(confined)) as rig,
                ):
                    yield rig


def _access(server: ApiServer) -> ClusterAccess:
    return ClusterAccess(
        name=USER,
        server=server.url,
        authority=server.ca_pem,
        identity=server.client_certificate(USER, ()),
    )


@contextlib.asynccontextmanager
async def real_rig(controlplane: ControlPlane) -> AsyncIterator[Rig]:
    """The session's control plane, in a namespace of its own, which is left as it is in the end."""
    confined = ClientConfig.from_kubeconfig(controlplane.kubeconfig_for(USER))
    async with Client(ClientConfig.from_kubeconfig(controlplane.kubeconfig)) as client:
        try:
            await client.resource("v1/nodes").get(NODE)
        except NotFound:
            controlplane.create_node(NODE)
        await _bind_writes(client)
        async with (
            cluster_at(client, controlplane.kubeconfig) as cluster,
            rig_at(cluster, confined, shown="10.77.0") as rig,
        ):
            try:
                yield rig
            finally:
                await _clear(rig)


async def _bind_writes(client: Client) -> None:
    """Have the policy of an installation for this operator: whatever it writes here passes it."""
    admission = "admissionregistration.k8s.io/v1"
    policies = client.resource(f"{admission}/validatingadmissionpolicies")
    bindings = client.resource(f"{admission}/validatingadmissionpolicybindings")
    with contextlib.suppress(AlreadyExists):
        await policies.create(
            {"metadata": {"name": USER}, "spec": policy_spec(USER, (20000, 29999))}
        )
        spec = {"policyName": USER, "validationActions": ["Deny"]}
        await bindings.create({"metadata": {"name": USER}, "spec": spec})


async def _clear(rig: Rig) -> None:
    """Leave nothing that the next test's operator would care for."""
    unbind = MergePatch({"metadata": {"finalizers": None}})
    for es in [item async for item in rig.elastiservices.items()]:
        with contextlib.suppress(NotFound):
            await rig.elastiservices.patch(es["metadata"]["name"], unbind)
            await rig.elastiservices.delete(es["metadata"]["name"])
    for plural in ("deployments", "statefulsets", "services"):
        for item in await rig.cluster.list(plural):
            with contextlib.suppress(NotFound):
                await getattr(rig.cluster, plural).delete(item["metadata"]["name"])


@contextlib.asynccontextmanager
async def rig_at(cluster: Cluster, config: ClientConfig, *, shown: str = "") -> AsyncIterator[Rig]:
    """A rig on a cluster that runs; `shown` is the network that resolvers seem to be in."""
    client = cluster.client
    await define(client, custom_resource_definition())
    with contextlib.suppress(AlreadyExists):
        await client.resource("v1/namespaces").create({"metadata": {"name": RESOLVER_NAMESPACE}})
    await _grant(client)
    resolver = FakeResolver(client, loopback(), 0, shown=shown and f"{shown}.1")
    async with resolver.running():
        rig = Rig(cluster, resolver, _settings(resolver), config, shown=shown)
        await rig.list_resolvers(resolver.endpoint())
        yield rig


def _settings(resolver: FakeResolver) -> OperatorSettings:
    """Settings in a hurry."""
    return OperatorSettings(
        resolver_admin_port=resolver.admin_port,
        engage_settle=0.3,
        release_settle=0.1,
        polling_interval=0.2,
        finalize_wait=5.0,
        resolver_loss_grace=0.5,
        sweep_period=0.5,
        host="127.0.0.1",
        port=0,
        health_port=0,
        authenticate=False,
        leader_elect=False,
        workers=4,
    )


async def define(client: Client, definition: JsonObject) -> None:
    """Create a definition, where it is not there, and wait until its kind is served."""
    with contextlib.suppress(AlreadyExists):
        await client.resource(_DEFINITIONS).create(definition)
    name = definition["metadata"]["name"]

    async def served() -> bool:
        client.mapper.invalidate()
        try:
            await client.mapper.resolve(name)
        except NoMatch:
            return False
        return True

    await eventually(served)


async def _grant(client: Client) -> None:
    rules = [rule.to_json() for rule in (*NAMESPACED_RULES, *CLUSTER_RULES, *OWN_RULES)]
    await allow(client, "own", rules)


async def allow(client: Client, what: str, rules: Sequence[JsonObject]) -> None:
    """Give the operator more rights, as an aggregated role would."""
    name = f"{USER}:{what}"
    role = {"kind": "ClusterRole", "name": name, "apiGroup": _RBAC}
    subjects = [{"kind": "User", "name": USER, "apiGroup": _RBAC}]
    with contextlib.suppress(AlreadyExists):
        await client.resource(f"{_RBAC}/v1/clusterroles").create(
            {"metadata": {"name": name}, "rules": list(rules)}
        )
    with contextlib.suppress(AlreadyExists):
        await client.resource(f"{_RBAC}/v1/clusterrolebindings").create(
            {"metadata": {"name": name}, "subjects": subjects, "roleRef": role}
        )


async def forbid(client: Client, what: str) -> None:
    """Take such rights away."""
    for plural in ("clusterrolebindings", "clusterroles"):
        with contextlib.suppress(NotFound):
            await client.resource(f"{_RBAC}/v1/{plural}").delete(f"{USER}:{what}")
