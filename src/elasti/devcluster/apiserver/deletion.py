"""Deletion: preconditions, grace, finalizers, propagation."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING

import msgspec

from elasti.devcluster.apiserver import calls, status
from elasti.devcluster.apiserver.request import flag
from elasti.devcluster.apiserver.writes import Written, is_finished

if TYPE_CHECKING:
    from collections.abc import Callable

    from elasti.devcluster.apiserver.calls import Call
    from elasti.devcluster.apiserver.storage import Record
    from elasti.devcluster.apiserver.writes import Writer
    from kubeloop.objects.meta import JsonObject

_FOREGROUND = "foregroundDeletion"
_ORPHAN = "orphan"
_POLICIES = ("Foreground", "Background", "Orphan")


class Preconditions(msgspec.Struct, rename="camel"):
    """What must hold for a deletion to happen."""

    uid: str | None = None
    resource_version: str | None = None


class DeleteOptions(msgspec.Struct, rename="camel"):
    """The options of a deletion, from the body or the query."""

    grace_period_seconds: int | None = None
    preconditions: Preconditions | None = None
    propagation_policy: str | None = None
    orphan_dependents: bool | None = None
    dry_run: list[str] | None = None


def read_options(call: Call) -> DeleteOptions:
    """Read the options; the query counts where there is no body."""
    options = _from_body(call) if call.body.strip() else _from_query(call)
    policy = options.propagation_policy
    if policy is not None and options.orphan_dependents is not None:
        text = "orphanDependents and deletionPropagation cannot be both set"
        raise _invalid(status.invalid("propagationPolicy", policy, text))
    if policy is not None and policy not in _POLICIES:
        raise _invalid(status.unsupported("propagationPolicy", policy, [*_POLICIES, "nil"]))
    grace = options.grace_period_seconds
    if grace is not None and grace < 0:
        options.grace_period_seconds = 1
    if options.dry_run not in (None, [], ["All"]):
        raise _invalid(status.unsupported("dryRun", options.dry_run, ["All"]))
    return options


def _invalid(error: status.FieldError) -> status.StatusError:
    return status.invalid_options("DeleteOptions", error)


def _from_body(call: Call) -> DeleteOptions:
    document = calls.read_body(call)
    try:
        return msgspec.convert(document, DeleteOptions)
    except msgspec.ValidationError as error:
        raise status.bad_request(f"DeleteOptions cannot be read: {error}") from error


def _from_query(call: Call) -> DeleteOptions:
    grace = call.query.get("gracePeriodSeconds")
    if grace and not grace.lstrip("-").isdigit():
        raise status.bad_request(f"gracePeriodSeconds: {grace!r} is not a number")
    orphan = flag(call.query, "orphanDependents") if "orphanDependents" in call.query else None
    return DeleteOptions(
        grace_period_seconds=int(grace) if grace else None,
        propagation_policy=call.query.get("propagationPolicy") or None,
        orphan_dependents=orphan,
    )


class Deleter:
    """The delete verb for every kind."""

    def __init__(self, writer: Writer) -> None:
        self._writer = writer

    def delete(self, call: Call, record: Record, options: DeleteOptions) -> Written:
        """Delete an object: at once, or by marking it and waiting for grace and finalizers."""
        old = call.served.load(record.decode())
        _check(call, old, options.preconditions)
        self._writer.admit_deletion(call, old)
        new = copy.deepcopy(old)
        _propagate(new, options)
        grace = _grace(call, new, options)
        if grace is None and not new["metadata"].get("finalizers") and _is_free(new):
            return self._remove(call, record, new)
        self._mark(new, grace or 0)
        if is_finished(new):
            return self._remove(call, record, new)
        return self._writer.modify(call, record, _becomes(new))

    def _remove(self, call: Call, record: Record, obj: JsonObject) -> Written:
        return self._writer.remove(call, record, obj)

    def _mark(self, obj: JsonObject, grace: int) -> None:
        metadata = obj["metadata"]
        known = metadata.get("deletionGracePeriodSeconds")
        if not metadata.get("deletionTimestamp"):
            if metadata.get("generation"):
                metadata["generation"] += 1
        elif known is not None and grace >= known:
            return  # a grace period may only become shorter
        metadata["deletionTimestamp"] = self._writer.stamps.now(ahead=grace)
        if obj.get("kind") == "Namespace":
            obj.setdefault("status", {})["phase"] = "Terminating"
        else:
            metadata["deletionGracePeriodSeconds"] = grace


def _becomes(new: JsonObject) -> Callable[[JsonObject], None]:
    def change(obj: JsonObject) -> None:
        obj.clear()
        obj.update(new)

    return change


def _check(call: Call, obj: JsonObject, preconditions: Preconditions | None) -> None:
    if preconditions is None:
        return
    metadata = obj["metadata"]
    pairs = (
        ("UID", preconditions.uid, metadata.get("uid"), "deleted and then recreated"),
        (
            "ResourceVersion",
            preconditions.resource_version,
            metadata.get("resourceVersion"),
            "modified",
        ),
    )
    for name, wanted, found, fate in pairs:
        if wanted is not None and wanted != found:
            raise status.conflict(
                call.resource.group,
                call.resource.kind,
                metadata["name"],
                f"the {name} in the precondition ({wanted}) does not match the {name} in record"
                f" ({found}). The object might have been {fate}",
            )


def _propagate(obj: JsonObject, options: DeleteOptions) -> None:
    """Turn the wish for dependents into the finalizer that the garbage collector knows."""
    policy = options.propagation_policy
    if policy is None and options.orphan_dependents is not None:
        policy = "Orphan" if options.orphan_dependents else "Background"
    if policy is None:
        return
    metadata = obj["metadata"]
    finalizers = [f for f in metadata.get("finalizers") or () if f not in (_FOREGROUND, _ORPHAN)]
    if policy == "Foreground":
        finalizers.append(_FOREGROUND)
    elif policy == "Orphan":
        finalizers.append(_ORPHAN)
    metadata["finalizers"] = finalizers
    if not finalizers:
        del metadata["finalizers"]


def _grace(call: Call, obj: JsonObject, options: DeleteOptions) -> int | None:
    """Return the seconds that an object may take to go; None for kinds that go at once."""
    if call.resource.stored_in != "/pods":
        return None
    spec, state = obj.get("spec") or {}, obj.get("status") or {}
    if not spec.get("nodeName") or state.get("phase") in ("Succeeded", "Failed"):
        return 0
    if options.grace_period_seconds is not None:
        return options.grace_period_seconds
    return int(spec.get("terminationGracePeriodSeconds", 30))


def _is_free(obj: JsonObject) -> bool:
    return not (obj.get("kind") == "Namespace" and (obj.get("spec") or {}).get("finalizers"))
