"""One object at a time, by server-side apply: what it is now, what becomes of it.

A dry run asks the server the same question without the write. An object whose namespace does not
exist yet cannot be asked about; where that namespace is part of what is being installed, the question
is about the same object in the namespace `default`, which the server judges by the same rules.
"""

from __future__ import annotations

import dataclasses
import enum
from typing import TYPE_CHECKING

from elasti.cli.exits import ExitCode, Failure
from elasti.cli.install.differences import Difference, differences
from elasti.cli.install.parts import MANAGER
from kubeloop.client.errors import Invalid, NotFound

if TYPE_CHECKING:
    from kubeloop.client import Client
    from kubeloop.objects.meta import JsonObject

_ANYWHERE = "default"


class Outcome(enum.Enum):
    """What became of an object, or would."""

    CREATED = "created"
    CHANGED = "changed"
    UNCHANGED = "unchanged"
    REMOVED = "removed"


@dataclasses.dataclass(frozen=True, slots=True)
class Applied:
    """An object that was applied; `unchecked` says what the server could not be asked."""

    ref: str
    outcome: Outcome
    changes: tuple[Difference, ...] = ()
    unchecked: str = ""


def reference(obj: JsonObject) -> str:
    """Return how people name an object: kind, and namespace/name."""
    meta = obj["metadata"]
    place = f"{meta['namespace']}/" if meta.get("namespace") else ""
    return f"{obj['kind']} {place}{meta['name']}"


class Applier:
    """Applies objects as the field manager `elasti`; or asks, in a dry run."""

    def __init__(self, client: Client, *, dry_run: bool = False) -> None:
        self._client = client
        self._dry_run = dry_run
        self._missing_namespaces: set[str] = set()

    async def apply(self, obj: JsonObject) -> Applied:
        """Make an object so. Raises KubeError, and Failure where it can never become so."""
        before = await self._present(obj)
        asked, unchecked = obj, ""
        if obj["metadata"].get("namespace") in self._missing_namespaces:
            asked = {**obj, "metadata": {**obj["metadata"], "namespace": _ANYWHERE}}
        try:
            after = await self._write(asked)
        except NotFound as error:
            if _names_namespace(error):
                raise _no_namespace(obj) from error
            # A binding of a role that is not there yet, for somebody who may not bind all.
            if not self._dry_run:
                raise
            after, unchecked = asked, str(error)
        except Invalid as error:
            raise _immutable(obj, error) from error
        if before is None:
            return self._created(obj, unchecked)
        changes = tuple(differences(before, after))
        outcome = Outcome.CHANGED if changes else Outcome.UNCHANGED
        return Applied(reference(obj), outcome, changes, unchecked)

    def _created(self, obj: JsonObject, unchecked: str) -> Applied:
        if self._dry_run and obj["kind"] == "Namespace":
            self._missing_namespaces.add(obj["metadata"]["name"])
        return Applied(reference(obj), Outcome.CREATED, unchecked=unchecked)

    async def _present(self, obj: JsonObject) -> JsonObject | None:
        resource = await self._client.resource_for(obj["apiVersion"], obj["kind"])
        meta = obj["metadata"]
        try:
            return await resource.get(meta["name"], namespace=meta.get("namespace"))
        except NotFound:
            return None

    async def _write(self, obj: JsonObject) -> JsonObject:
        resource = await self._client.resource_for(obj["apiVersion"], obj["kind"])
        # Fields that somebody changed by hand are ours again: this is what was asked for.
        return await resource.apply(
            obj,
            field_manager=MANAGER,
            force=True,
            dry_run=self._dry_run,
            field_validation="Strict",
        )


def _names_namespace(error: NotFound) -> bool:
    details = error.status.details
    return details is not None and details.kind == "namespaces"


def _no_namespace(obj: JsonObject) -> Failure:
    namespace = obj["metadata"]["namespace"]
    return Failure(
        ExitCode.NOT_FOUND,
        f"namespace {namespace} does not exist",
        remedy=f"Make it: kubectl create namespace {namespace}",
    )


def _immutable(obj: JsonObject, error: Invalid) -> Failure:
    remedy = ""
    if "immutable" in str(error):
        meta = obj["metadata"]
        remedy = (
            "Another installer made it, and it cannot become ours. Let go of it without stopping its"
            f" pods, then try again:\n  kubectl delete {obj['kind'].lower()} {meta['name']}"
            f" -n {meta.get('namespace', '')} --cascade=orphan"
        )
    return Failure(ExitCode.FAILED, f"{reference(obj)} is refused: {error}", remedy=remedy)
