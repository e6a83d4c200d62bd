"""Names of kinds and resources: group, version, kind, plural."""

from __future__ import annotations

import re
from typing import Any, ClassVar, NamedTuple, Protocol

_VERSION = re.compile(r"v\d+\w*")


class ServedKind(Protocol):
    """A class that names the resource of its objects, as those of kubeloop-kinds do."""

    RESOURCE: ClassVar[str]


class GroupVersion(NamedTuple):
    """An API group at one version; the core group is the empty string."""

    group: str
    version: str

    @classmethod
    def parse(cls, text: str) -> GroupVersion:
        """Read an `apiVersion`: `v1` or `apps/v1`. Raises ValueError for anything else."""
        parts = text.split("/")
        if not all(parts) or len(parts) > 2:
            raise ValueError(f"apiVersion {text!r} is not 'version' or 'group/version'")
        return cls("", parts[0]) if len(parts) == 1 else cls(parts[0], parts[1])

    def __str__(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version


class GroupVersionKind(NamedTuple):
    """An object's type, as it states it: `apps/v1`, `Deployment`."""

    group: str
    version: str
    kind: str

    @property
    def group_version(self) -> GroupVersion:
        """The kind's group and version."""
        return GroupVersion(self.group, self.version)

    @property
    def api_version(self) -> str:
        """The kind's `apiVersion` as objects carry it."""
        return str(self.group_version)

    @classmethod
    def of(cls, api_version: str, kind: str) -> GroupVersionKind:
        """Combine an object's `apiVersion` and `kind`."""
        group, version = GroupVersion.parse(api_version)
        return cls(group, version, kind)

    def __str__(self) -> str:
        return f"{self.api_version}/{self.kind}"


class GroupVersionResource(NamedTuple):
    """Where objects of a kind are served: `apps/v1`, `deployments` (plural, lower case)."""

    group: str
    version: str
    resource: str

    @property
    def group_version(self) -> GroupVersion:
        """The resource's group and version."""
        return GroupVersion(self.group, self.version)

    @property
    def api_version(self) -> str:
        """The resource's `apiVersion`."""
        return str(self.group_version)

    @classmethod
    def parse(cls, text: str | GroupVersionResource) -> GroupVersionResource:
        """Read `v1/pods` or `apps/v1/deployments`. Raises ValueError for anything else."""
        if isinstance(text, GroupVersionResource):
            return text
        match text.split("/"):
            # The core group has versions only, and no group is called as one: a part was left out.
            case [version, resource] if _VERSION.fullmatch(version) and resource:
                return cls("", version, resource)
            case [group, version, resource] if version and resource and _is_group(group):
                return cls(group, version, resource)
            case _:
                raise ValueError(
                    f"resource {text!r} is not 'version/plural' or 'group/version/plural',"
                    " as in 'v1/pods' or 'apps/v1/deployments'"
                )

    def __str__(self) -> str:
        return f"{self.api_version}/{self.resource}"


def resource_and_kind(
    resource: str | GroupVersionResource | type[ServedKind], kind: type[Any]
) -> tuple[GroupVersionResource, type[Any]]:
    """Read a path and a class, or a class that says its path. Raises ValueError, TypeError."""
    if not isinstance(resource, type):
        return GroupVersionResource.parse(resource), kind
    path = getattr(resource, "RESOURCE", None)
    if path is None:
        raise TypeError(
            f"{resource.__name__} has no RESOURCE: give the path first, as in"
            f" 'v1/pods', or give the class RESOURCE: ClassVar[str]"
        )
    return GroupVersionResource.parse(path), resource


def _is_group(text: str) -> bool:
    return bool(text) and not _VERSION.fullmatch(text)
