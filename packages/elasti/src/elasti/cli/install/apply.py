"""One object at a time, by server-side apply: what it is now, what becomes of it, what differs.

A dry run asks the server the same question without the write. An object whose namespace does not
exist yet cannot be asked about; if that namespace is part of the installation, the question is
about the same object in the namespace `default`, which the server judges by the same rules.

In a difference, items of a list are matched by their `name` if they have one, else by their index,
so that a variable that comes in between does not show as a change of all that follow.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec

from elasti.api.names import MANAGED_BY
from elasti.cli.exits import ExitCode, Failure
from elasti.cli.install.choices import OPTIONS_ANNOTATION
from kubeloop.client.errors import Invalid, NotFound
from kubeloop.objects.patches import MergePatch

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kubeloop.client import Client
    from kubeloop.objects.meta import JsonObject


# Fields that the server owns, and changes with every write.
_SERVERS_OWN = frozenset(
    {"managedFields", "resourceVersion", "generation", "uid", "creationTimestamp"}
)
_LONGEST = 60


class Difference(NamedTuple):
    """One field; None if it is not there."""

    path: str
    before: Any
    after: Any

    def __str__(self) -> str:
        return f"{self.path}: {_shown(self.before)} -> {_shown(self.after)}"


def differences(before: JsonObject, after: JsonObject) -> list[Difference]:
    """Return the fields that differ, in order; the status and the server's own fields aside."""
    return list(_between("", _stripped(before), _stripped(after)))


def _stripped(obj: JsonObject) -> JsonObject:
    meta = {k: v for k, v in obj.get("metadata", {}).items() if k not in _SERVERS_OWN}
    # Our own note of the options: their effect shows in other fields.
    notes = {
        k: v for k, v in (meta.pop("annotations", None) or {}).items() if k != OPTIONS_ANNOTATION
    }
    meta |= {"annotations": notes} if notes else {}
    return {**{k: v for k, v in obj.items() if k != "status"}, "metadata": meta}


def _between(path: str, before: Any, after: Any) -> Iterator[Difference]:
    if before == after:
        return
    if isinstance(before, dict) and isinstance(after, dict):
        for key in (*before, *(key for key in after if key not in before)):
            shown = f"[{key}]" if "." in key or "/" in key else f".{key}"
            place = f"{path}{shown}".removeprefix(".")
            yield from _between(place, before.get(key), after.get(key))
    elif isinstance(before, list) and isinstance(after, list):
        yield from _between_lists(path, before, after)
    else:
        yield Difference(path, before, after)


def _between_lists(path: str, before: list[Any], after: list[Any]) -> Iterator[Difference]:
    old, new = _keyed(before), _keyed(after)
    for key in (*old, *(key for key in new if key not in old)):
        yield from _between(f"{path}[{key}]", old.get(key), new.get(key))
    # Another order of variables is another pod template, and rolls the pods.
    was, now = [key for key in old if key in new], [key for key in new if key in old]
    if was != now:
        yield Difference(f"{path} (order)", was, now)


def _keyed(items: list[Any]) -> dict[str, Any]:
    names = [item.get("name") for item in items if isinstance(item, dict)]
    if len(names) == len(items) == len({*names} - {None}):
        return dict(zip(map(str, names), items, strict=True))
    return {str(place): item for place, item in enumerate(items)}


def _shown(value: Any) -> str:
    if value is None:
        return "(none)"
    text = value if isinstance(value, str) else msgspec.json.encode(value).decode()
    return text if len(text) <= _LONGEST else f"{text[: _LONGEST - 3]}..."


_ANYWHERE = "default"
_HELM = "helm"


class ApplyOutcome(enum.Enum):
    """The outcome for an object, or the outcome of a dry run."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    REMOVED = "removed"


@dataclasses.dataclass(frozen=True, slots=True)
class AppliedObject:
    """An object that was applied; `unchecked` says what the server could not be asked."""

    ref: str
    outcome: ApplyOutcome
    changes: tuple[Difference, ...] = ()
    unchecked: str = ""


def reference(obj: JsonObject) -> str:
    """Return how people name an object: kind, and namespace/name."""
    meta = obj["metadata"]
    place = f"{meta['namespace']}/" if meta.get("namespace") else ""
    return f"{obj['kind']} {place}{meta['name']}"


class ServerSideApplier:
    """Applies objects as the field manager `elasti`; or asks, in a dry run."""

    def __init__(self, client: Client, *, dry_run: bool = False, from_helm: bool = False) -> None:
        self._client = client
        self._dry_run = dry_run
        self._from_helm = from_helm
        self._missing_namespaces: set[str] = set()

    async def apply(self, obj: JsonObject) -> AppliedObject:
        """Make an object so. Raises KubeError, and Failure if it can never become so."""
        before = await self._present(obj)
        if before is not None and self._from_helm:
            await self._take_from_helm(before)
        asked, unchecked = obj, ""
        if obj["metadata"].get("namespace") in self._missing_namespaces:
            asked = {**obj, "metadata": {**obj["metadata"], "namespace": _ANYWHERE}}
        try:
            after = await self._write(asked)
        except NotFound as error:
            details = error.status.details
            if details is not None and details.kind == "namespaces":
                raise _no_namespace(obj) from error
            # A binding of a role that is not there yet, for a user who may not bind every role.
            if not self._dry_run:
                raise
            after, unchecked = asked, str(error)
        except Invalid as error:
            raise _immutable(obj, error) from error
        if before is None:
            if self._dry_run and obj["kind"] == "Namespace":
                self._missing_namespaces.add(obj["metadata"]["name"])
            return AppliedObject(reference(obj), ApplyOutcome.CREATED, unchecked=unchecked)
        changes = tuple(differences(before, after))
        outcome = ApplyOutcome.CHANGED if changes else ApplyOutcome.UNCHANGED
        return AppliedObject(reference(obj), outcome, changes, unchecked)

    async def _present(self, obj: JsonObject) -> JsonObject | None:
        resource = await self._client.resource_for(obj["apiVersion"], obj["kind"])
        meta = obj["metadata"]
        try:
            return await resource.get(meta["name"], namespace=meta.get("namespace"))
        except NotFound:
            return None

    async def _take_from_helm(self, obj: JsonObject) -> None:
        """Make the fields that Helm set ours, so that what we do not set goes, now and later."""
        meta = obj["metadata"]
        entries = meta.get("managedFields") or []
        if not any(entry["manager"] == _HELM for entry in entries):
            return
        ours = [
            {**entry, "manager": MANAGED_BY, "operation": "Apply"}
            for entry in entries
            if entry["manager"] == _HELM and not entry.get("subresource")
        ][:1]
        others = [entry for entry in entries if entry["manager"] not in (_HELM, MANAGED_BY)]
        resource = await self._client.resource_for(obj["apiVersion"], obj["kind"])
        version = meta["resourceVersion"]
        fields = {"managedFields": [*others, *ours], "resourceVersion": version}
        patch = MergePatch({"metadata": fields})
        await resource.patch(meta["name"], patch, namespace=meta.get("namespace"))

    async def _write(self, obj: JsonObject) -> JsonObject:
        resource = await self._client.resource_for(obj["apiVersion"], obj["kind"])
        # Fields that were changed by hand are ours again: this is what was asked for.
        return await resource.apply(
            obj,
            field_manager=MANAGED_BY,
            force=True,
            dry_run=self._dry_run,
            field_validation="Strict",
        )


def _no_namespace(obj: JsonObject) -> Failure:
    namespace = obj["metadata"]["namespace"]
    return Failure(
        f"namespace {namespace} does not exist",
        code=ExitCode.NOT_FOUND,
        remedy=f"Create it: kubectl create namespace {namespace}",
    )


def _immutable(obj: JsonObject, error: Invalid) -> Failure:
    remedy = ""
    # The one field of ours that the server takes from a creation only: a Deployment's selector.
    if any(cause.field == "spec.selector" for cause in error.causes):
        meta = obj["metadata"]
        remedy = (
            "Another installer created it, and it cannot be taken over. A Deployment's pods end with it, and"
            " the requests that they hold are lost: wake its sleeping targets first. Then delete it and try"
            f" again:\n  kubectl delete {obj['kind'].lower()} {meta['name']} -n {meta.get('namespace', '')}"
        )
    return Failure(f"{reference(obj)} is refused: {error}", remedy=remedy)
