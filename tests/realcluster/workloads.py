"""Scenarios of workloads as people have them: rollouts, probe kinds, volumes, autoscalers."""

from __future__ import annotations

from hack.realcluster.images import program_tag
from kubeloop.objects.meta import JsonObject
from tests.realcluster.nodes import EXECUTED, NodeApp, NodeTrial

MOST_REPLICAS = 2
# metrics-server looks every ten seconds, the autoscaler every fifteen.
_AUTOSCALING = 120.0


async def app_rollout(trial: NodeTrial) -> None:
    """The app is rolled out while it wakes, and again while it serves."""
    app = await trial.sleeping_app()
    await trial.load(app)
    await trial.observer.until_true(lambda: not trial.at_zero(app), f"{app.name} is scaled up")
    await trial.kubectl("rollout", "restart", f"deployment/{app.name}")
    await trial.awake(app)
    await trial.kubectl("rollout", "restart", f"deployment/{app.name}")
    await trial.kubectl("rollout", "status", f"deployment/{app.name}", "--timeout=120s")
    await trial.flow_out()


async def tcp_probe(trial: NodeTrial) -> None:
    """Asleep, traffic, awake, asleep: an app with a TCP probe."""
    await _cycle(trial, trial.new_app(probe="tcp"))


async def grpc_probe(trial: NodeTrial) -> None:
    """Asleep, traffic, awake, asleep: an app with a gRPC probe."""
    await _cycle(trial, trial.new_app().with_grpc_health())


async def exec_probe(trial: NodeTrial) -> None:
    """Asleep, traffic, awake, asleep: an app whose probe is a program."""
    await _cycle(trial, trial.new_app(probe="exec"))


async def stateful_set(trial: NodeTrial) -> None:
    """A StatefulSet with a volume sleeps and wakes, and finds its data again."""
    note = f"echo $POD_NAME >> {EXECUTED}/.starts; exec python3 -m tests.e2e.app"
    app = trial.new_app(kind="StatefulSet", command=note)
    await _cycle(trial, app)
    await _cycle(trial, app)
    starts = (trial.executed / ".starts").read_text().split()
    assert starts == ["web-0", "web-0"], starts


async def _cycle(trial: NodeTrial, app: NodeApp) -> None:
    await trial.sleeping_app(app)
    probe = await trial.load(app)
    await trial.awake(app)
    await trial.flow(trial.length.load / 4)
    await probe.rate(0)
    await trial.asleep(app)


async def autoscaled(trial: NodeTrial) -> None:
    """A HorizontalPodAutoscaler adds a pod by metrics-server's figures, and leaves sleep alone."""
    app = trial.new_app(cpu="10m")
    await trial.environment.apply(autoscaler(app))
    await trial.sleeping_app(app)
    probe = await trial.load(app)
    await trial.awake(app)

    def grown() -> bool:
        return trial.observer.now["replicas", app.name] == str(MOST_REPLICAS)

    await trial.observer.until_true(grown, "the autoscaler adds a pod", seconds=_AUTOSCALING)
    await trial.environment.rolled_out(trial.namespace, app.name)
    await trial.flow(trial.length.load / 4)
    await probe.rate(0)
    await trial.asleep(app)
    await probe.rate(trial.length.rate)
    await trial.awake(app)
    await trial.flow(trial.length.load / 4)


def autoscaler(app: NodeApp) -> JsonObject:
    """Return an autoscaler that finds any use too much."""
    target = {"type": "Utilization", "averageUtilization": 50}
    return {
        "apiVersion": "autoscaling/v2",
        "kind": "HorizontalPodAutoscaler",
        "metadata": {"name": app.name, "namespace": app.namespace},
        "spec": {
            "scaleTargetRef": {"apiVersion": "apps/v1", "kind": app.kind, "name": app.name},
            "minReplicas": 1,
            "maxReplicas": MOST_REPLICAS,
            "metrics": [{"type": "Resource", "resource": {"name": "cpu", "target": target}}],
        },
    }


def metrics_server() -> list[JsonObject]:
    """Return metrics-server as its project installs it, but for the kubelets' certificates."""
    meta = {"name": "metrics-server", "namespace": "kube-system"}
    labels = {"k8s-app": "metrics-server"}
    rbac = "rbac.authorization.k8s.io"
    subjects = [{"kind": "ServiceAccount", **meta}]

    def role(name: str, *rules: JsonObject) -> JsonObject:
        return {
            "apiVersion": f"{rbac}/v1",
            "kind": "ClusterRole",
            "metadata": {"name": name},
            "rules": list(rules),
        }

    def binding(kind: str, name: str, role_kind: str, role_name: str) -> JsonObject:
        where = {"namespace": "kube-system"} if kind == "RoleBinding" else {}
        return {
            "apiVersion": f"{rbac}/v1",
            "kind": kind,
            "metadata": {"name": name, **where},
            "roleRef": {"apiGroup": rbac, "kind": role_kind, "name": role_name},
            "subjects": subjects,
        }

    read = ["get", "list", "watch"]
    container = {
        "name": "metrics-server",
        "image": program_tag("metrics-server"),
        "imagePullPolicy": "Never",
        "args": [
            "--cert-dir=/tmp",
            "--secure-port=10250",
            "--kubelet-preferred-address-types=InternalIP",
            "--kubelet-insecure-tls",
            "--metric-resolution=10s",
            "--kubelet-request-timeout=5s",
        ],
        "readinessProbe": {
            "httpGet": {"path": "/readyz", "port": 10250, "scheme": "HTTPS"},
            "periodSeconds": 1,
        },
        "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],
    }
    pod = {
        "serviceAccountName": "metrics-server",
        "containers": [container],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }
    return [
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": meta},
        role(
            "system:metrics-server",
            {"apiGroups": [""], "resources": ["nodes/metrics"], "verbs": ["get"]},
            {"apiGroups": [""], "resources": ["pods", "nodes"], "verbs": read},
        ),
        binding("ClusterRoleBinding", "metrics-server:a", "ClusterRole", "system:metrics-server"),
        binding("ClusterRoleBinding", "metrics-server:b", "ClusterRole", "system:auth-delegator"),
        binding(
            "RoleBinding", "metrics-server:c", "Role", "extension-apiserver-authentication-reader"
        ),
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
            "spec": {"selector": labels, "ports": [{"port": 443, "targetPort": 10250}]},
        },
        {
            "apiVersion": "apiregistration.k8s.io/v1",
            "kind": "APIService",
            "metadata": {"name": "v1beta1.metrics.k8s.io"},
            "spec": {
                "service": meta,
                "group": "metrics.k8s.io",
                "version": "v1beta1",
                "insecureSkipTLSVerify": True,
                "groupPriorityMinimum": 100,
                "versionPriority": 100,
            },
        },
    ]
