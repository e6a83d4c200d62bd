"""ServiceAccounts for tests: their tokens, exactly the rights they need, and clients that are them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml
from tests.operator.fakes import RESOLVER_NAMESPACE
from tests.operator.rig import Rig

from elasti.api.rbac import PolicyRule
from elasti.operator.rbac import NAMESPACED_RULES, OWN_RULES, RESOLVER_NAMESPACE_RULES
from kubeloop.client import AlreadyExists, ClientConfig

_RBAC = "rbac.authorization.k8s.io"


class Account:
    """A ServiceAccount on a rig's cluster, made where it is not there."""

    def __init__(self, rig: Rig, name: str, namespace: str = RESOLVER_NAMESPACE) -> None:
        self.name, self.namespace = name, namespace
        self._client = rig.client
        self._admin = rig.cluster.kubeconfig
        self._accounts = rig.client.resource("v1/serviceaccounts", namespace=namespace)

    @property
    def user(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{self.name}"

    async def create(self) -> Account:
        with contextlib.suppress(AlreadyExists):
            await self._accounts.create({"metadata": {"name": self.name}})
        return self

    async def delete(self) -> None:
        await self._accounts.delete(self.name)

    async def token(self, *audiences: str, seconds: int = 3600) -> str:
        """A token as a kubelet gets it; without audiences it is for the API server."""
        spec: dict[str, Any] = {"audiences": list(audiences), "expirationSeconds": seconds}
        made = await self._accounts.subresource("token").create(self.name, {"spec": spec})
        return str(made["status"]["token"])

    async def bearer(self, *audiences: str) -> dict[str, str]:
        """A request's headers with a new token."""
        return {"Authorization": f"Bearer {await self.token(*audiences)}"}

    async def kubeconfig(self, directory: Path) -> Path:
        """The way to the rig's server as this account, by its token and nothing else."""
        document = yaml.safe_load(self._admin.read_text())
        for entry in document["users"]:
            entry["user"] = {"token": await self.token()}
        path = directory / f"{self.namespace}-{self.name}.kubeconfig"
        path.write_text(yaml.safe_dump(document))
        return path

    async def config(self, directory: Path) -> ClientConfig:
        return ClientConfig.from_kubeconfig(await self.kubeconfig(directory))

    async def grant(self, rules: Iterable[PolicyRule], *, namespace: str, name: str = "") -> None:
        """Give rights in one namespace, by a Role."""
        meta = {"metadata": {"name": name or self.name}}
        subject = {"kind": "ServiceAccount", "name": self.name, "namespace": self.namespace}
        role = {"kind": "Role", "name": meta["metadata"]["name"], "apiGroup": _RBAC}
        roles = self._client.resource(f"{_RBAC}/v1/roles", namespace=namespace)
        bindings = self._client.resource(f"{_RBAC}/v1/rolebindings", namespace=namespace)
        with contextlib.suppress(AlreadyExists):
            await roles.create({**meta, "rules": [rule.to_json() for rule in rules]})
        with contextlib.suppress(AlreadyExists):
            await bindings.create({**meta, "subjects": [subject], "roleRef": role})


async def confined_operator(rig: Rig, directory: Path, *namespaces: str) -> Account:
    """The operator's account with what a namespaced installation gives it: Roles, no ClusterRole."""
    account = await Account(rig, "confined-operator").create()
    for namespace in namespaces:
        await account.grant(NAMESPACED_RULES, namespace=namespace)
    own = (*OWN_RULES, *RESOLVER_NAMESPACE_RULES)
    await account.grant(own, namespace=RESOLVER_NAMESPACE)
    rig.config = await account.config(directory)
    rig.settings = dataclasses.replace(rig.settings, watch_namespaces=namespaces)
    return account
