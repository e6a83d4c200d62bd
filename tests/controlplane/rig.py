"""A real control plane in a sandbox: its programs, the keys to it, and ways to disturb it."""

from __future__ import annotations

import subprocess
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

from tests.controlplane import flags
from tests.controlplane.api import Api
from tests.controlplane.component import POLL_SECONDS, START_SECONDS, Component
from tests.controlplane.keyring import MASTERS, Keyring
from tests.controlplane.sandbox import Sandbox

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from tests.controlplane.binaries import Binaries

ADMIN = ("elasti:admin", MASTERS)
AUDIT_LOG = "audit.log"
# Each component's program, and the path that says whether it serves.
PROGRAMS = {
    "etcd": ("etcd", "/readyz"),
    "apiserver": ("kube-apiserver", "/readyz"),
    "controller-manager": ("kube-controller-manager", "/healthz"),
    "scheduler": ("kube-scheduler", "/readyz"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How one control plane differs from the usual one."""

    controllers: bool = True
    """Without them (API only) it starts sooner."""
    scheduler: bool = True
    node_grace: str = "24h"
    """How long a Node may be silent before it counts as lost: a day, since most tests' Nodes are
    objects without a kubelet. A test with a kubelet that must be missed says less."""
    definitions: tuple[dict[str, Any], ...] = ()
    """CustomResourceDefinitions to be there before the controllers, whose garbage collector looks for
    new kinds every half minute only."""
    etcd_flags: tuple[str, ...] = ()
    apiserver_flags: tuple[str, ...] = ()
    controller_manager_flags: tuple[str, ...] = ()
    scheduler_flags: tuple[str, ...] = ()
    audit_policy: str = ""
    """What the API server writes into `audit.log` beside its own log; by default nothing."""
    user_namespace: bool = False
    """Use the way of unprivileged users even where privileges make it unnecessary."""


class ControlPlane:
    """etcd, kube-apiserver, kube-controller-manager and kube-scheduler, running and reachable.

    Construction starts them and returns when all serve; `close`, or the end of this process by
    whatever means, ends them and removes every trace. From outside, the API server is at
    `https://127.0.0.1:<port>` through a relay: a server that is down shows there as a connection
    closed without a word, not a refused one. Inside, it is at `flags.APISERVER`.
    """

    def __init__(
        self, binaries: Binaries, options: Options | None = None, *, logs: Path | None = None
    ) -> None:
        self.options = options or Options()
        self.binaries = binaries
        self.sandbox = self._make_sandbox()
        self.directory = self.sandbox.directory
        try:
            self.logs = logs / self.directory.name if logs else self.directory / "logs"
            self.logs.mkdir(parents=True)
            self._keys = Keyring(self.directory, server_names=flags.SERVER_NAMES)
            self.kubeconfig = self.kubeconfig_for(*ADMIN)
            self.kubeconfig_inside = self.kubeconfig_for(*ADMIN, inside=True)
            self.api = Api(self.sandbox.ports["apiserver"], tls=self._keys.tls(admin=True))
            self.components = self._components()
            self.etcd = self.components["etcd"]
            self.apiserver = self.components["apiserver"]
            self.controller_manager = self.components["controller-manager"]
            self.scheduler = self.components["scheduler"]
            self._start()
        except BaseException:
            self.close()
            raise

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

    def __repr__(self) -> str:
        return f"<ControlPlane {self.url} {list(self.components.values())}>"

    def close(self) -> None:
        """End every process inside and remove the directory. Idempotent."""
        self.sandbox.close()

    # Reaching it.

    @property
    def url(self) -> str:
        """The API server as seen from outside."""
        return f"https://127.0.0.1:{self.sandbox.ports['apiserver']}"

    @property
    def url_inside(self) -> str:
        return f"https://{flags.APISERVER.host}:{flags.APISERVER.port}"

    @property
    def ca_file(self) -> Path:
        return self.directory / "ca.crt"

    def server_certificate(self, name: str, addresses: Sequence[str]) -> tuple[Path, Path]:
        """A certificate of the cluster's authority for another server, and its key."""
        return self._keys.server(name, addresses)

    def kubeconfig_for(
        self, user: str, groups: Sequence[str] = (), *, inside: bool = False, via: str = ""
    ) -> Path:
        """A new kubeconfig for a user: one of Kubernetes' own (`system:node:...`) or any other.

        `via` is the URL of something that leads to the API server, for clients that are to be
        reached only through it.
        """
        where = "via" if via else "inside" if inside else "outside"
        name = f"{user.replace(':', '-')}-{where}"
        server = via or (self.url_inside if inside else self.url)
        return self._keys.kubeconfig(name, server=server, user=user, groups=groups)

    def api_as(self, token: str) -> Api:
        """The API server, as the bearer of a token."""
        return replace(self.api, tls=self._keys.tls(admin=False), token=token)

    def api_within(self, seconds: float) -> Api:
        """The API server, with less patience: TimeoutError after so many seconds of silence."""
        return replace(self.api, timeout=seconds)

    def service_account_token(self, namespace: str, name: str) -> str:
        """A fresh token of an existing ServiceAccount."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        return str(self.api.create(path, {"spec": {}})["status"]["token"])

    def kubectl(self, *arguments: str, stdin: str | None = None) -> str:
        """Run kubectl outside as the administrator; its output, or CalledProcessError."""
        command = [self.binaries.path("kubectl"), f"--kubeconfig={self.kubeconfig}", *arguments]
        return subprocess.run(
            command, input=stdin, check=True, stdout=subprocess.PIPE, text=True
        ).stdout

    # Living in it.

    def inside(self, argv: Sequence[str]) -> list[str]:
        """`argv` as a command that, run by anything outside, runs inside."""
        return self.sandbox.command(argv)

    def popen_inside(
        self,
        argv: Sequence[str],
        *,
        stdin: int | None = subprocess.DEVNULL,
        stdout: int | None = None,
        stderr: int | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        pass_fds: Sequence[int] = (),
    ) -> subprocess.Popen[bytes]:
        """Start a program inside; it and all it starts end with the control plane at the latest."""
        return self.sandbox.popen(
            argv, stdin=stdin, stdout=stdout, stderr=stderr, env=env, cwd=cwd, pass_fds=pass_fds
        )

    def run_inside(
        self, argv: Sequence[str], *, stdin: str | None = None, timeout: float = 30.0
    ) -> str:
        """Run a program inside to its end; its output, or CalledProcessError."""
        return subprocess.run(
            self.inside(argv),
            input=stdin,
            check=True,
            stdout=subprocess.PIPE,
            text=True,
            timeout=timeout,
        ).stdout

    # Preparing and disturbing it.

    def create_namespace(self, prefix: str = "test") -> str:
        """Create a Namespace of a new name that is ready for pods; return the name."""
        body = {"metadata": {"generateName": f"{prefix}-"}}
        name = str(self.api.create("/api/v1/namespaces", body)["metadata"]["name"])
        if self.options.controllers:
            # Admission refuses pods until the controllers have made this one.
            path = f"/api/v1/namespaces/{name}/serviceaccounts?fieldSelector=metadata.name=default"
            self.api.until(path, lambda found: len(found) == 1)
        return name

    def create_node(self, name: str = "node", *, pods: int = 1000) -> dict[str, Any]:
        """Create a Node that is ready and large, for the scheduler to bind pods to.

        Admission taints every new Node as not ready, and the node lifecycle controller takes the
        taint away because of the Ready condition: some milliseconds later, pods can land there.
        """
        resources = {"cpu": "1000", "memory": "1000Gi", "pods": str(pods)}
        node: dict[str, Any] = self.api.create(
            "/api/v1/nodes",
            {
                "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}},
                "status": {
                    "capacity": resources,
                    "allocatable": resources,
                    "conditions": [{"type": "Ready", "status": "True", "reason": "Rig"}],
                    "addresses": [
                        {"type": "InternalIP", "address": flags.NODE_ADDRESS},
                        {"type": "Hostname", "address": name},
                    ],
                },
            },
        )
        return node

    def compact(self) -> int:
        """Make etcd forget all history before now; return the revision it was made at.

        The API server still answers from its own cache what it has seen. Restarted after this, it
        knows no older resource version.
        """
        etcd = Api(self.sandbox.ports["etcd"])
        status = etcd.create("/v3/maintenance/status", {})
        revision = int(status["header"]["revision"])
        etcd.create("/v3/kv/compaction", {"revision": revision, "physical": True})
        return revision

    def tails(self, lines: int = 20) -> str:
        """The ends of all logs, for a failure's report."""
        ran = [part for part in self.components.values() if part.log.exists()]
        return "\n".join(f"--- {part.name}\n{part.tail(lines)}" for part in ran)

    # Making it.

    def _make_sandbox(self) -> Sandbox:
        return Sandbox(
            local_ranges=[flags.POD_RANGE, flags.SERVICE_RANGE],
            relays={
                "etcd": flags.ETCD,
                "apiserver": flags.APISERVER,
                "controller-manager": flags.CONTROLLER_MANAGER,
                "scheduler": flags.SCHEDULER,
            },
            relay_from=flags.RELAY_ADDRESS,
            user_namespace=self.options.user_namespace,
        )

    def _components(self) -> dict[str, Component]:
        """The programs, in the order in which they start: each needs the ones before it."""
        options, keys = self.options, self._keys
        audit: list[str] = []
        if options.audit_policy:
            policy = self.directory / "audit-policy.yaml"
            policy.write_text(options.audit_policy)
            audit = [f"--audit-policy-file={policy}", f"--audit-log-path={self.logs / AUDIT_LOG}"]
            # In MiB: it is not to be cut while it is read.
            audit += ["--audit-log-maxsize=10000"]
        manager = self._own_kubeconfig("controller-manager")
        scheduler = self._own_kubeconfig("scheduler")
        argv = {
            "etcd": [*flags.etcd(self.directory / "etcd"), *options.etcd_flags],
            "apiserver": [*flags.apiserver(keys), *audit, *options.apiserver_flags],
            "controller-manager": [
                *flags.controller_manager(keys, manager, node_grace=options.node_grace),
                *options.controller_manager_flags,
            ],
            "scheduler": [*flags.scheduler(keys, scheduler), *options.scheduler_flags],
        }
        return {name: self._component(name, rest) for name, rest in argv.items()}

    def _own_kubeconfig(self, name: str) -> Path:
        return self._keys.kubeconfig(name, server=self.url_inside, user=f"system:kube-{name}")

    def _component(self, name: str, arguments: Sequence[str]) -> Component:
        binary, health = PROGRAMS[name]
        api = Api(self.sandbox.ports[name], tls=None if name == "etcd" else self.api.tls)

        def ready() -> bool:
            return api.healthy(health) and (name != "controller-manager" or self._pods_may_be())

        return Component(
            name,
            [self.binaries.path(binary), *arguments],
            sandbox=self.sandbox,
            log=self.logs / f"{binary}.log",
            ready=ready,
        )

    def _pods_may_be(self) -> bool:
        """Whether the controllers have made what admission asks of a pod in `default`."""
        return self.api.healthy("/api/v1/namespaces/default/serviceaccounts/default")

    def _define(self, definition: dict[str, Any]) -> None:
        """Create a definition, and return when its kind is served."""
        self.api.create("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        spec = definition["spec"]
        path = f"/apis/{spec['group']}/{spec['versions'][0]['name']}/{spec['names']['plural']}"
        deadline = time.monotonic() + START_SECONDS
        while not self.api.healthy(path):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{path} is not served after {START_SECONDS:.0f} s")
            time.sleep(POLL_SECONDS)

    def _start(self) -> None:
        self.etcd.start()
        self.apiserver.start()
        for definition in self.options.definitions:
            self._define(definition)
        rest = [self.controller_manager] if self.options.controllers else []
        rest += [self.scheduler] if self.options.scheduler else []
        for component in rest:
            component.launch()
        for component in rest:
            component.wait_ready()
