"""Ask the server what this client may do: SelfSubjectAccessReviews.

    if not await can_i(client, "patch", "apps/v1/deployments", namespace="shop"):
        ...

Any authenticated user may ask. The answer is a snapshot: it does not replace the handling of `Forbidden`.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

from kubeloop.objects.gvk import GroupVersionResource

if TYPE_CHECKING:
    from kubeloop.client.client import Client

_REVIEWS = "authorization.k8s.io/v1/selfsubjectaccessreviews"


@dataclasses.dataclass(frozen=True, slots=True)
class AccessDecision:
    """A server's decision; true if it allows the call. `reason` is the server's, and may be empty."""

    allowed: bool
    reason: str = ""

    def __bool__(self) -> bool:
        return self.allowed


async def can_i(
    client: Client,
    verb: str,
    resource: str | GroupVersionResource,
    *,
    namespace: str = "",
    name: str = "",
    subresource: str = "",
) -> AccessDecision:
    """Return whether this client may use a verb on a resource.

    Without `namespace` the question is about all namespaces, without `name` about all objects.
    Raises `KubeError`.
    """
    gvr = GroupVersionResource.parse(resource)
    asked = {
        "verb": verb,
        "group": gvr.group,
        "version": gvr.version,
        "resource": gvr.resource,
        "subresource": subresource,
        "namespace": namespace,
        "name": name,
    }
    review = await client.resource(_REVIEWS).create(
        {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {key: value for key, value in asked.items() if value}},
        }
    )
    status = review.get("status") or {}
    reason = status.get("reason") or status.get("evaluationError") or ""
    return AccessDecision(bool(status.get("allowed")), reason)
