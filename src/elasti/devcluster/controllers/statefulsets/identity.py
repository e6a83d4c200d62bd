"""The pods of a StatefulSet: their names, labels and templates. Pure.

There is no storage in a dev cluster: where a claim template would give a pod a volume, it gets an
empty directory of the same name, and an event says so.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from elasti.devcluster.controllers import templates
from elasti.devcluster.controllers.pod_control import controller_reference
from elasti.devcluster.controllers.workloads import STATEFUL_SET

if TYPE_CHECKING:
    from elasti.devcluster.controllers.pods import Pod
    from elasti.devcluster.controllers.workloads import StatefulSet
    from kubeloop.objects.meta import JsonObject

REVISION_LABEL = "controller-revision-hash"
_NAME_LABEL = "statefulset.kubernetes.io/pod-name"
_INDEX_LABEL = "apps.kubernetes.io/pod-index"
_ORDINAL = re.compile(r"(.*)-([0-9]+)\Z")


def start_of(stateful_set: StatefulSet) -> int:
    """Return the number of the first pod."""
    ordinals = stateful_set.spec.ordinals
    return ordinals.start if ordinals is not None else 0


def ordinal_of(stateful_set: StatefulSet, pod: Pod) -> int:
    """Return a pod's number; -1 where its name is not one of this StatefulSet's."""
    match = _ORDINAL.match(pod.metadata.name)
    if match is None or match[1] != stateful_set.metadata.name:
        return -1
    return int(match[2])


def revision_of(pod: Pod) -> str:
    """Return the name of the revision that a pod was made of."""
    return (pod.metadata.labels or {}).get(REVISION_LABEL, "")


def pod_of(
    stateful_set: StatefulSet, ordinal: int, *, template: JsonObject, revision: str
) -> JsonObject:
    """Return a pod to create."""
    name = f"{stateful_set.metadata.name}-{ordinal}"
    reference = controller_reference(stateful_set, STATEFUL_SET)
    pod = templates.pod_from(template, reference)
    metadata, spec = pod["metadata"], pod["spec"]
    metadata["name"] = name
    metadata.setdefault("labels", {}).update(
        {_NAME_LABEL: name, _INDEX_LABEL: str(ordinal), REVISION_LABEL: revision}
    )
    spec["hostname"] = name
    spec["subdomain"] = stateful_set.spec.service_name
    claims = [claim["metadata"]["name"] for claim in stateful_set.spec.volume_claim_templates or ()]
    if claims:
        others = [v for v in spec.get("volumes") or [] if v.get("name") not in claims]
        spec["volumes"] = [*others, *({"name": claim, "emptyDir": {}} for claim in claims)]
    return pod
