"""Which columns and cells each of Kubernetes' own kinds has."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from elasti.devcluster.apiserver.tables import cluster, network, workloads
from elasti.devcluster.apiserver.tables.pods import POD_COLUMNS, pod_cells

if TYPE_CHECKING:
    import datetime as dt
    from collections.abc import Callable, Mapping

    from elasti.devcluster.apiserver.resources import Column
    from kubeloop.objects.meta import JsonObject

    Cells = Callable[[JsonObject, dt.datetime], list[Any]]

PRINTERS: Mapping[str, tuple[tuple[Column, ...], Cells]] = {
    "Pod": (POD_COLUMNS, pod_cells),
    "Deployment": (workloads.DEPLOYMENT, workloads.deployment),
    "ReplicaSet": (workloads.REPLICA_SET, workloads.replica_set),
    "ReplicationController": (workloads.REPLICA_SET, workloads.replica_set),
    "StatefulSet": (workloads.STATEFUL_SET, workloads.stateful_set),
    "DaemonSet": (workloads.DAEMON_SET, workloads.daemon_set),
    "Job": (workloads.JOB, workloads.job),
    "CronJob": (workloads.CRON_JOB, workloads.cron_job),
    "ControllerRevision": (workloads.REVISION, workloads.revision),
    "Service": (network.SERVICE, network.service),
    "EndpointSlice": (network.SLICE, network.endpoint_slice),
    "Endpoints": (network.ENDPOINTS, network.endpoints),
    "Ingress": (network.INGRESS, network.ingress),
    "NetworkPolicy": (network.NETWORK_POLICY, network.network_policy),
    "Node": (cluster.NODE, cluster.node),
    "Namespace": (cluster.NAMESPACE, cluster.namespace),
    "Event": (cluster.EVENT, cluster.event),
    "Lease": (cluster.LEASE, cluster.lease),
    "HorizontalPodAutoscaler": (cluster.AUTOSCALER, cluster.autoscaler),
    "ConfigMap": (cluster.CONFIG_MAP, cluster.config_map),
    "Secret": (cluster.SECRET, cluster.secret),
    "CustomResourceDefinition": (cluster.CREATED_AT, cluster.created_at),
    "Role": (cluster.CREATED_AT, cluster.created_at),
    "ClusterRole": (cluster.CREATED_AT, cluster.created_at),
    "RoleBinding": (cluster.BINDING, cluster.binding),
    "ClusterRoleBinding": (cluster.BINDING, cluster.binding),
    "PodDisruptionBudget": (cluster.BUDGET, cluster.budget),
    "PersistentVolumeClaim": (cluster.CLAIM, cluster.claim),
}
