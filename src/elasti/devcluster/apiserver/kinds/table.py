"""Which rules each kind has. Kinds that are not here are stored as their type allows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from elasti.devcluster.apiserver import names
from elasti.devcluster.apiserver.kinds import plain, pods, services, workloads
from elasti.devcluster.apiserver.kinds.rules import Rules

if TYPE_CHECKING:
    from collections.abc import Mapping


def _paths(*names_: str) -> dict[str, tuple[str, ...]]:
    return {name: tuple(name.split(".")) for name in names_}


_EVENT_FIELDS = _paths(
    "involvedObject.kind",
    "involvedObject.namespace",
    "involvedObject.name",
    "involvedObject.uid",
    "involvedObject.apiVersion",
    "involvedObject.resourceVersion",
    "involvedObject.fieldPath",
    "reason",
    "reportingComponent",
    "type",
) | {"source": ("source", "component")}

RULES: Mapping[str, Rules] = {
    "Pod": Rules(
        default=pods.default_pod,
        prepare_create=pods.prepare_create,
        validate=pods.validate_pod,
        validate_update=pods.validate_update,
        generation=True,
        selectable=_paths(
            "spec.nodeName",
            "spec.restartPolicy",
            "spec.schedulerName",
            "spec.serviceAccountName",
            "spec.hostNetwork",
            "status.phase",
            "status.podIP",
            "status.nominatedNodeName",
        ),
    ),
    "PodTemplate": Rules(default=workloads.default_pod_template, generation=True),
    "Deployment": Rules(
        default=workloads.default_deployment,
        validate=workloads.validate_deployment,
        validate_update=workloads.selector_is_fixed,
        generation=True,
    ),
    "ReplicaSet": Rules(
        default=workloads.default_replica_set,
        validate=workloads.validate_selected,
        validate_update=workloads.selector_is_fixed,
        generation=True,
        selectable=_paths("status.replicas"),
    ),
    "StatefulSet": Rules(
        default=workloads.default_stateful_set,
        validate=workloads.validate_selected,
        validate_update=workloads.stateful_update,
        generation=True,
    ),
    "DaemonSet": Rules(
        default=workloads.default_daemon_set,
        validate=workloads.validate_selected,
        validate_update=workloads.selector_is_fixed,
        generation=True,
    ),
    "ReplicationController": Rules(
        default=workloads.default_replica_set,
        generation=True,
        selectable=_paths("status.replicas"),
    ),
    "Job": Rules(
        default=workloads.default_job,
        validate=workloads.validate_job,
        validate_update=workloads.job_update,
        generation=True,
        selectable=_paths("status.successful"),
    ),
    "CronJob": Rules(default=workloads.default_cron_job, generation=True),
    "Service": Rules(
        default=services.default_service,
        prepare_create=services.prepare_create,
        prepare_update=services.prepare_update,
        validate=services.validate_service,
        validate_update=services.validate_update,
        name_rule=names.dns_label,
        selectable=_paths("spec.clusterIP", "spec.type"),
    ),
    "EndpointSlice": Rules(
        default=services.default_slice,
        validate=services.validate_slice,
        validate_update=services.slice_update,
        generation=True,
        check_required=False,
    ),
    "ConfigMap": Rules(validate=plain.validate_config_map, validate_update=plain.immutable_update),
    "Secret": Rules(
        default=plain.default_secret,
        validate=plain.validate_secret,
        validate_update=plain.secret_update,
        selectable=_paths("type"),
    ),
    "Namespace": Rules(
        default=plain.default_namespace,
        prepare_create=plain.create_namespace,
        prepare_update=plain.update_namespace,
        name_rule=names.dns_label,
        selectable=_paths("status.phase"),
    ),
    "Node": Rules(
        default=plain.default_node, born_with_status=True, selectable=_paths("spec.unschedulable")
    ),
    "Event": Rules(
        default=plain.default_event,
        validate=plain.validate_event,
        selectable=_EVENT_FIELDS,
        check_required=False,
    ),
    "Lease": Rules(validate=plain.validate_lease, blind_update=False),
    "HorizontalPodAutoscaler": Rules(
        default=plain.default_autoscaler,
        prepare_create=plain.create_autoscaler,
        validate=plain.validate_autoscaler,
    ),
    "Role": Rules(name_rule=names.path_segment),
    "ClusterRole": Rules(name_rule=names.path_segment),
    "RoleBinding": Rules(
        default=plain.default_binding,
        validate=plain.validate_binding,
        validate_update=plain.binding_update,
        name_rule=names.path_segment,
    ),
    "ClusterRoleBinding": Rules(
        default=plain.default_binding,
        validate=plain.validate_binding,
        validate_update=plain.binding_update,
        name_rule=names.path_segment,
    ),
    "PodDisruptionBudget": Rules(default=plain.default_budget, generation=True, blind_update=False),
    "PersistentVolumeClaim": Rules(default=plain.default_claim),
    "LimitRange": Rules(check_required=False),
    "Ingress": Rules(generation=True),
    "NetworkPolicy": Rules(generation=True),
}
