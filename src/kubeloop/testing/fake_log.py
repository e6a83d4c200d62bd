"""The changes of a fake API server, and what each watch sees of them."""

from __future__ import annotations

import copy
from typing import TYPE_CHECKING, NamedTuple

from kubeloop.objects.events import ADDED, DELETED, MODIFIED
from kubeloop.objects.fields import FieldSelector
from kubeloop.objects.meta import DICT_ACCESS
from kubeloop.objects.selectors import LabelSelector

if TYPE_CHECKING:
    from kubeloop.objects.meta import JsonObject
    from kubeloop.objects.names import Key
    from kubeloop.objects.options import ListOptions, WatchOptions


class LogEntry(NamedTuple):
    """One change: what was before (None: nothing), what is after (None: deleted)."""

    version: int
    key: Key
    before: JsonObject | None
    after: JsonObject | None
    last: JsonObject
    """The object as the event carries it; a deletion has the version of the deletion."""


def matches(obj: JsonObject, options: ListOptions | WatchOptions) -> bool:
    """Whether an object is in the slice that a request asks for."""
    labels = LabelSelector.parse(options.label_selector)
    fields = FieldSelector.parse(options.field_selector)
    return labels.matches(DICT_ACCESS.labels(obj)) and fields.matches_object(obj)


def event_for(entry: LogEntry, options: WatchOptions) -> tuple[str, JsonObject] | None:
    """Return the event that a watch with these options sees of a change, if any."""
    before = entry.before is not None and matches(entry.before, options)
    after = entry.after is not None and matches(entry.after, options)
    if before and after:
        return MODIFIED, entry.last
    if after:
        return ADDED, entry.last
    return (DELETED, _at(entry.before or {}, entry.version)) if before else None


def _at(obj: JsonObject, version: int) -> JsonObject:
    changed = copy.deepcopy(obj)
    changed["metadata"]["resourceVersion"] = str(version)
    return changed
