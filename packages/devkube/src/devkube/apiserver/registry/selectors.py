"""Label and field selectors as a server reads them: parsed once, matched often."""

from __future__ import annotations

import dataclasses
import enum
import re
from typing import TYPE_CHECKING

from devkube.apiserver import status

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from devkube.apiserver.storage import StoredObject


class LabelOperator(enum.Enum):
    """How a label's value is judged."""

    IN = "in"
    NOT_IN = "notin"
    EXISTS = "exists"
    ABSENT = "!"
    GREATER = "gt"
    LESS = "lt"


@dataclasses.dataclass(frozen=True, slots=True)
class LabelRequirement:
    """One condition on one label."""

    key: str
    operator: LabelOperator
    values: frozenset[str] = frozenset()

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels satisfy it."""
        found = labels.get(self.key)
        match self.operator:
            case LabelOperator.IN:
                return found is not None and found in self.values
            case LabelOperator.NOT_IN:
                return found is None or found not in self.values
            case LabelOperator.EXISTS:
                return found is not None
            case LabelOperator.ABSENT:
                return found is None
            case LabelOperator.GREATER | LabelOperator.LESS:
                return self._compares(found)

    def _compares(self, found: str | None) -> bool:
        (bound,) = self.values
        if found is None or not re.fullmatch(r"[+-]?\d+", found):
            return False
        return (
            int(found) > int(bound)
            if self.operator is LabelOperator.GREATER
            else int(found) < int(bound)
        )


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ObjectSelection:
    """Which objects a list or a watch is about. An empty one selects everything."""

    namespace: str = ""
    name: str = ""
    labels: tuple[LabelRequirement, ...] = ()
    fields: tuple[tuple[str, bool, str], ...] = ()

    @property
    def is_empty(self) -> bool:
        """Whether labels and fields restrict nothing."""
        return not (self.labels or self.fields)

    def covers(self, record: StoredObject) -> bool:
        """Whether a record is selected."""
        if self.namespace and not record.key.startswith(f"{self.namespace}/"):
            return False
        for requirement in self.labels:
            if not requirement.matches(record.labels):
                return False
        return all((_field(record, path) == value) is equal for path, equal, value in self.fields)


def _field(record: StoredObject, path: str) -> str:
    if path == "metadata.name":
        return record.name
    if path == "metadata.namespace":
        return record.namespace
    return record.fields.get(path, "")


_TOKEN = re.compile(r"\s*(==|!=|=|!|\(|\)|,|<|>|[^\s=!(),<>]+)")
_NAME = re.compile(
    r"(?:([a-z0-9](?:[-a-z0-9.]*[a-z0-9])?)/)?([A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)\Z"
)
_VALUE = re.compile(r"(?:[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?\Z")


def parse_labels(text: str) -> tuple[LabelRequirement, ...]:
    """Parse a label selector; 400 for what is none."""
    parser = _LabelParser(text)
    return tuple(parser.requirements())


class _LabelParser:
    """A cursor over a selector's tokens."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokenize(text)
        self._index = 0

    def requirements(self) -> list[LabelRequirement]:
        found: list[LabelRequirement] = []
        while self._peek():
            found.append(self._requirement())
            if self._peek() and self._next() != ",":
                raise self._error("expected ','")
            if found and self._tokens[self._index - 1 :] == [","]:
                raise self._error("found '', expected: identifier after ','")
        return found

    def _requirement(self) -> LabelRequirement:
        if self._peek() == "!":
            self._next()
            return LabelRequirement(self._key(), LabelOperator.ABSENT)
        key = self._key()
        match self._peek():
            case "" | ",":
                return LabelRequirement(key, LabelOperator.EXISTS)
            case "=" | "==":
                self._next()
                return LabelRequirement(key, LabelOperator.IN, frozenset([self._value()]))
            case "!=":
                self._next()
                return LabelRequirement(key, LabelOperator.NOT_IN, frozenset([self._value()]))
            case ">" | "<" as sign:
                self._next()
                return self._comparison(key, sign)
            case "in" | "notin" as word:
                self._next()
                return LabelRequirement(key, LabelOperator(word), self._set())
            case other:
                raise self._error(f"found '{other}', expected: in, notin, =, ==, !=, gt, lt")

    def _comparison(self, key: str, sign: str) -> LabelRequirement:
        value = self._value()
        if not re.fullmatch(r"[+-]?\d+", value):
            raise self._error(f"for 'Gt', 'Lt' operators, the value must be an integer: {value!r}")
        operator = LabelOperator.GREATER if sign == ">" else LabelOperator.LESS
        return LabelRequirement(key, operator, frozenset([value]))

    def _set(self) -> frozenset[str]:
        if self._next() != "(":
            raise self._error("expected: '('")
        values = [self._value()]
        while (found := self._next()) != ")":
            if found != ",":
                raise self._error(f"found '{found}', expected: ',' or ')'")
            values.append(self._value())
        return frozenset(values)

    def _key(self) -> str:
        token = self._next()
        if not _NAME.match(token):
            raise self._error(f"found '{token}', expected: a label key")
        return token

    def _value(self) -> str:
        if self._peek() in ("", ",", ")"):
            return ""
        token = self._next()
        if not _VALUE.match(token):
            raise self._error(f"found '{token}', expected: a label value")
        return token

    def _peek(self) -> str:
        return self._tokens[self._index] if self._index < len(self._tokens) else ""

    def _next(self) -> str:
        token = self._peek()
        self._index += 1
        return token

    def _error(self, why: str) -> status.StatusError:
        return status.bad_request(f"unable to parse requirement: {why}")


def _tokenize(text: str) -> list[str]:
    tokens = []
    position = 0
    stripped = text.rstrip()
    while position < len(stripped):
        found = _TOKEN.match(stripped, position)
        if found is None:
            raise status.bad_request(f'unable to parse requirement: "{text}"')
        tokens.append(found[1])
        position = found.end()
    return tokens


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
