"""An API server guarded by RBAC, and callers of every kind."""

from __future__ import annotations

import contextlib
import datetime as dt
from collections.abc import AsyncIterator
from typing import Any

from multidict import CIMultiDict
from tests.apiserver.harness import Kube, Reply, connected

from devkube.apiserver import ApiServer
from devkube.auth.install import InstalledAuth, fill, install
from devkube.auth.jwt import SigningKey
from kubeloop.aio.clock import SystemClock

RBAC = "/apis/rbac.authorization.k8s.io/v1"
CLUSTER_ROLES = f"{RBAC}/clusterroles"
CLUSTER_ROLE_BINDINGS = f"{RBAC}/clusterrolebindings"
ROLES = f"{RBAC}/namespaces/default/roles"
ROLE_BINDINGS = f"{RBAC}/namespaces/default/rolebindings"
PODS = "/api/v1/namespaces/default/pods"
ACCOUNTS = "/api/v1/namespaces/default/serviceaccounts"
GROUP = "rbac.authorization.k8s.io"


class MovingClock(SystemClock):
    """The system's clock, some time ahead."""

    def __init__(self) -> None:
        self.ahead = dt.timedelta()

    def now(self) -> dt.datetime:
        return super().now() + self.ahead

    def pass_by(self, seconds: float) -> None:
        self.ahead += dt.timedelta(seconds=seconds)


class AuthCluster:
    """A guarded server and its administrator."""

    def __init__(
        self, server: ApiServer, auth: InstalledAuth, admin: Kube, clock: MovingClock
    ) -> None:
        self.server = server
        self.auth = auth
        self.admin = admin
        self.clock = clock

    def user(self, name: str, *groups: str) -> contextlib.AbstractAsyncContextManager[Kube]:
        """A caller with a certificate of his own; no name means nobody."""
        return connected(self.server, name, groups)

    async def account(self, name: str = "robot") -> dict[str, Any]:
        made = await self.admin.create(ACCOUNTS, {"metadata": {"name": name}})
        assert made.code == 201, made
        return made.body

    async def token(self, name: str = "robot", **spec: Any) -> str:
        reply = await self.admin.create(f"{ACCOUNTS}/{name}/token", {"spec": spec})
        assert reply.code == 201, reply
        return str(reply["status"]["token"])

    async def bind(self, role: str, subject: dict[str, str], *, name: str = "b") -> None:
        """Bind a ClusterRole in the whole cluster."""
        reply = await self.admin.create(CLUSTER_ROLE_BINDINGS, binding(name, role, subject))
        assert reply.code == 201, reply

    async def bind_in_default(self, role: str, subject: dict[str, str]) -> None:
        """Bind a ClusterRole in the namespace `default`."""
        reply = await self.admin.create(ROLE_BINDINGS, binding("b", role, subject))
        assert reply.code == 201, reply

    async def may(self, user: str, verb: str, resource: str, **more: str) -> bool:
        """Ask the server what a user may."""
        about = {"verb": verb, "resource": resource, "namespace": "default", **more}
        spec = {"user": user, "groups": ["system:authenticated"], "resourceAttributes": about}
        reply = await self.admin.create(
            "/apis/authorization.k8s.io/v1/subjectaccessreviews", {"spec": spec}
        )
        assert reply.code == 201, reply
        return bool(reply["status"]["allowed"])


@contextlib.asynccontextmanager
async def guarded(**options: Any) -> AsyncIterator[AuthCluster]:
    clock = MovingClock()
    server = ApiServer(clock=clock, **options)
    auth = install(server.core, key=SigningKey.create())
    async with server:
        fill(server.core, auth)
        async with connected(server) as admin:
            yield AuthCluster(server, auth, admin, clock)


def rule(verbs: str, resources: str, *, group: str = "", names: str = "") -> dict[str, Any]:
    made: dict[str, Any] = {
        "verbs": verbs.split(),
        "apiGroups": [group],
        "resources": resources.split(),
    }
    return {**made, "resourceNames": names.split()} if names else made


def role(name: str, *rules: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"metadata": {"name": name}, "rules": list(rules), **more}


def user(name: str) -> dict[str, str]:
    return {"kind": "User", "name": name}


def binding(name: str, of: str, *subjects: dict[str, str], kind: str = "ClusterRole"):
    return {
        "metadata": {"name": name},
        "roleRef": {"kind": kind, "name": of, "apiGroup": GROUP},
        "subjects": list(subjects),
    }


async def impersonating(kube: Kube, path: str, *headers: tuple[str, str]) -> Reply:
    """GET a path as somebody else."""
    url = kube.server.url + path
    async with kube.session.get(url, headers=CIMultiDict(headers)) as response:
        return Reply(response.status, await response.json(content_type=None), response.headers)
