"""What a delete request may ask for, as values."""

from __future__ import annotations

import dataclasses
from typing import Any, Literal, TypeAlias, get_args

import msgspec

from kubeloop.client.request import JSON, Request, query_of

Propagation: TypeAlias = Literal["Orphan", "Background", "Foreground"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Preconditions:
    """Delete only the object that was seen: by its uid, its resourceVersion, or both."""

    uid: str = ""
    resource_version: str = ""

    def to_json(self) -> dict[str, str]:
        """Return the fields that were given."""
        fields = {"uid": self.uid, "resourceVersion": self.resource_version}
        return {name: value for name, value in fields.items() if value}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class DeleteOptions:
    """The body of a delete. Nothing given means: the resource's own defaults.

    `grace_period` 0 deletes at once; None leaves the period to the object.
    """

    preconditions: Preconditions | None = None
    propagation: Propagation | None = None
    grace_period: int | None = None
    dry_run: bool = False

    def __post_init__(self) -> None:
        if self.propagation is not None and self.propagation not in get_args(Propagation):
            raise ValueError(
                f"propagation {self.propagation!r} is none of {', '.join(get_args(Propagation))}"
            )
        if self.grace_period is not None and self.grace_period < 0:
            raise ValueError(
                f"grace_period {self.grace_period} is negative; 0 deletes at once,"
                " None leaves it to the object"
            )

    def to_json(self) -> dict[str, Any]:
        """Return the `DeleteOptions` document."""
        document: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if self.preconditions is not None and (wanted := self.preconditions.to_json()):
            document["preconditions"] = wanted
        if self.propagation is not None:
            document["propagationPolicy"] = self.propagation
        if self.grace_period is not None:
            document["gracePeriodSeconds"] = self.grace_period
        if self.dry_run:
            document["dryRun"] = ["All"]
        return document


def delete(path: str, options: DeleteOptions, query: dict[str, str] | None = None) -> Request:
    """Build a delete of an object or, with selectors in the query, of a collection."""
    return Request(
        method="DELETE",
        path=path,
        query=query_of(query or {}),
        body=msgspec.json.encode(options.to_json()),
        content_type=JSON,
    )
