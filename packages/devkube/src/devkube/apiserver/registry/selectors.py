"""Label and field selectors as a server reads them: parsed once, matched often."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Sequence

from devkube.apiserver import status
from devkube.apiserver.storage import StoredObject
from kubeloop.objects.selectors import LabelSelector, SelectorError

_EVERYTHING = LabelSelector.everything()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSelection:
    """Which objects a list or a watch is about. An empty one selects everything."""

    namespace: str = ""
    name: str = ""
    labels: LabelSelector = _EVERYTHING
    fields: tuple[tuple[str, bool, str], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether labels and fields restrict nothing."""
        return self.labels.is_everything and not self.fields

    def covers(self, record: StoredObject) -> bool:
        """Whether a record is selected."""
        if self.namespace and not record.key.startswith(f"{self.namespace}/"):
            return False
        if not self.labels.matches(record.labels):
            return False
        return all((_field(record, path) == value) is equal for path, equal, value in self.fields)


def _field(record: StoredObject, path: str) -> str:
    if path == "metadata.name":
        return record.name
    if path == "metadata.namespace":
        return record.namespace
    return record.fields.get(path, "")


def parse_labels(text: str) -> LabelSelector:
    """Parse a label selector; 400 for what is none."""
    try:
        return LabelSelector.parse(text)
    except SelectorError as error:
        raise status.bad_request(f"unable to parse requirement: {error}") from error


def parse_fields(text: str, allowed: Sequence[str]) -> tuple[tuple[str, bool, str], ...]:
    """Parse a field selector into (path, equal?, value); 400 for a field that is not selectable."""
    found = []
    for term in filter(None, re.split(r"(?<!\\),", text)):
        parts = re.match(r"([^=!]+?)\s*(==|!=|=)\s*(.*)\Z", term.strip())
        if parts is None:
            raise status.bad_request(f"invalid selector: '{text}'; can't understand '{term}'")
        path, sign, value = parts[1], parts[2], re.sub(r"\\([\\,=])", r"\1", parts[3])
        if path not in allowed:
            raise status.bad_request(_not_selectable(path, allowed))
        found.append((path, sign != "!=", value))
    return tuple(found)


def _not_selectable(path: str, allowed: Sequence[str]) -> str:
    if len(allowed) > 2:
        return f"field label not supported: {path}"
    known = ", ".join(f'"{name}"' for name in allowed)
    return f'"{path}" is not a known field selector: only {known}'
