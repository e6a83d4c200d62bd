r"""Field selectors: `metadata.name=web,status.phase!=Running`.

Backslash escapes `\`, `,` and `=` in values. A field that an object does not have is the empty
text, so `spec.nodeName=` finds what is not scheduled. Which fields a server supports depends on
the kind; in memory any dotted path works.
"""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from kubeloop.objects.selectors import SelectorError

FieldSelectorLike: TypeAlias = "str | Mapping[str, str] | FieldSelector"

_TERM = re.compile(r"(?:[^\\,]|\\.|\\\Z)*", re.DOTALL)
_OPERATOR = re.compile(r"!=|==|=")
_SPECIAL = re.compile(r"[\\,=]")
_ESCAPE = re.compile(r"\\(.?)", re.DOTALL)


@dataclasses.dataclass(frozen=True, slots=True, order=True)
class FieldTerm:
    """One comparison: `field=value`, or `field!=value` where `negated`."""

    field: str
    value: str
    negated: bool = False

    def __str__(self) -> str:
        return f"{self.field}{'!=' if self.negated else '='}{escape_field_value(self.value)}"


@dataclasses.dataclass(frozen=True, slots=True)
class FieldSelector:
    """A conjunction of terms; `str()` gives the form that servers take."""

    terms: tuple[FieldTerm, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "terms", tuple(sorted(self.terms)))

    @classmethod
    def parse(cls, selector: FieldSelectorLike) -> FieldSelector:
        """Read text, or a mapping from field to wanted value. Raises SelectorError."""
        if isinstance(selector, FieldSelector):
            return selector
        if isinstance(selector, str):
            return cls(tuple(_parse_term(term, selector) for term in _split_terms(selector)))
        return cls(tuple(FieldTerm(field, value) for field, value in selector.items()))

    @property
    def is_everything(self) -> bool:
        """Whether every object matches."""
        return not self.terms

    def exact(self, field: str) -> str | None:
        """Return the value that the field must have, or None if the selector leaves it open."""
        wanted = (term.value for term in self.terms if term.field == field and not term.negated)
        return next(wanted, None)

    def matches(self, read: Callable[[str], str]) -> bool:
        """Whether all terms hold for the fields that `read` returns ("" for a missing one)."""
        return all((read(term.field) == term.value) is not term.negated for term in self.terms)

    def matches_object(self, obj: Mapping[str, Any]) -> bool:
        """Whether all terms hold for a JSON object, fields being dotted paths into it."""
        return self.matches(lambda path: read_field(obj, path))

    def __str__(self) -> str:
        return ",".join(map(str, self.terms))


def read_field(obj: Mapping[str, Any], path: str) -> str:
    """Return the scalar at a dotted path as text; "" if absent."""
    value: Any = obj
    for part in path.split("."):
        value = value.get(part) if isinstance(value, Mapping) else None
    match value:
        case bool():
            return "true" if value else "false"
        case str() | int() | float():
            return str(value)
        case _:
            return ""


def escape_field_value(value: str) -> str:
    """Return the value as it stands in a selector's text."""
    return _SPECIAL.sub(r"\\\g<0>", value)


def _split_terms(text: str) -> list[str]:
    terms, position = [], 0
    while position <= len(text):
        match = _TERM.match(text, position)
        assert match is not None  # the pattern matches the empty text too
        terms.append(match[0])
        position = match.end() + 1
    return [term for term in terms if term]


def _parse_term(term: str, selector: str) -> FieldTerm:
    match = _OPERATOR.search(term)
    if match is None:
        raise SelectorError(
            f"field selector {selector!r}: {term!r} is not 'field=value' or 'field!=value'"
        )
    raw = term[match.end() :]
    return FieldTerm(term[: match.start()], _unescape(raw, selector), match[0] == "!=")


def _unescape(value: str, selector: str) -> str:
    if "=" in _ESCAPE.sub("", value):
        raise SelectorError(
            f"field selector {selector!r}: '=' in value {value!r} must be escaped as '\\='"
        )
    for escape in _ESCAPE.finditer(value):
        if escape[1] not in {"\\", ",", "="}:
            raise SelectorError(
                f"field selector {selector!r}: {escape[0]!r} in value {value!r} is not an escape;"
                " only '\\\\', '\\,' and '\\=' are"
            )
    return _ESCAPE.sub(r"\1", value)
