"""Label selectors: Kubernetes' whole grammar, parsed once and matched often.

A selector is a conjunction of requirements in normal form: sorted by key, set values sorted. Two
selectors are special: *everything* has no requirement, *nothing* is what an absent `LabelSelector`
means in Kubernetes and matches no object at all. The text of *nothing* is one that no server
accepts, so that it can never turn into a list of everything by accident.

    <selector>    = <requirement> {"," <requirement>} | ""
    <requirement> = ["!"] KEY | KEY ("=" | "==" | "!=" | ">" | "<") [VALUE]
                  | KEY ("in" | "notin") "(" VALUE {"," VALUE} ")"
"""

from __future__ import annotations

import dataclasses
import enum
import re
from typing import TYPE_CHECKING, Any, TypeAlias

from kubeloop.objects.selector_tokens import Scanner, SelectorError, Token

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

SelectorLike: TypeAlias = "str | Mapping[str, Any] | LabelSelector"

_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]\Z")
_PREFIX = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*\Z")
_INTEGER = re.compile(r"[+-]?[0-9]+\Z")
_INT64 = range(-(2**63), 2**63)


class Operator(enum.Enum):
    """What a requirement asks of a label; the value is how the text form spells it."""

    EQUALS = "="
    DOUBLE_EQUALS = "=="
    NOT_EQUALS = "!="
    IN = "in"
    NOT_IN = "notin"
    EXISTS = ""
    DOES_NOT_EXIST = "!"
    GREATER_THAN = ">"
    LESS_THAN = "<"


_SETS = (Operator.IN, Operator.NOT_IN)
_PRESENCE = (Operator.EXISTS, Operator.DOES_NOT_EXIST)
_NUMERIC = (Operator.GREATER_THAN, Operator.LESS_THAN)
_JSON_OPERATORS: Mapping[str, Operator] = {
    "In": Operator.IN,
    "NotIn": Operator.NOT_IN,
    "Exists": Operator.EXISTS,
    "DoesNotExist": Operator.DOES_NOT_EXIST,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label. The constructor validates; `values` is sorted and unique."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "values", tuple(sorted(set(self.values))))
        check_label_key(self.key)
        self._check_values()

    def _check_values(self) -> None:
        wanted, found = _how_many(self.operator), len(self.values)
        if (wanted == "at least one" and not found) or (wanted == "exactly one" and found != 1):
            raise ValueError(f"label {self.key!r}: {self.operator.name} needs {wanted} value")
        if wanted == "no" and found:
            raise ValueError(f"label {self.key!r}: {self.operator.name} takes no values")
        for value in self.values:
            check_label_value(value, key=self.key)
        if self.operator in _NUMERIC and _as_int64(self.values[0]) is None:
            raise ValueError(f"label {self.key!r}: {self.values[0]!r} is not a 64-bit integer")

    def matches(self, labels: Mapping[str, str]) -> bool:
        """Whether the labels satisfy this requirement."""
        value = labels.get(self.key)
        match self.operator:
            case Operator.EQUALS | Operator.DOUBLE_EQUALS | Operator.IN:
                return value in self.values
            case Operator.NOT_EQUALS | Operator.NOT_IN:
                return value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None
            case Operator.GREATER_THAN | Operator.LESS_THAN:
                return self._compares(value)

    def _compares(self, value: str | None) -> bool:
        number, bound = _as_int64(value or ""), _as_int64(self.values[0])
        if number is None or bound is None:
            return False
        return number > bound if self.operator is Operator.GREATER_THAN else number < bound

    def __str__(self) -> str:
        if self.operator in _PRESENCE:
            return self.operator.value + self.key
        if self.operator in _SETS:
            # "()" is no set in the grammar; the one of the empty value alone reads "(,)".
            return f"{self.key} {self.operator.value} ({','.join(self.values) or ','})"
        return f"{self.key}{self.operator.value}{self.values[0]}"


@dataclasses.dataclass(frozen=True, slots=True)
class LabelSelector:
    """A conjunction of requirements; hashable, comparable, `str()` gives the normal form."""

    requirements: tuple[Requirement, ...] = ()
    matches_nothing: bool = False

    def __post_init__(self) -> None:
        ordered = () if self.matches_nothing else sorted(self.requirements, key=_order)
        object.__setattr__(self, "requirements", tuple(ordered))

    @classmethod
    def parse(cls, selector: SelectorLike) -> LabelSelector:
        """Read text, a mapping of labels, or a `LabelSelector` as JSON gives it.

        Raises SelectorError (a ValueError) that names the position or the field at fault.
        """
        if isinstance(selector, LabelSelector):
            return selector
        if isinstance(selector, str):
            return cls(tuple(_Parser(selector).requirements()))
        if all(isinstance(value, str) for value in selector.values()):
            return cls(tuple(_equals(key, value) for key, value in selector.items()))
        return cls.from_json(selector)

    @classmethod
    def from_json(cls, body: Mapping[str, Any] | None) -> LabelSelector:
        """Read `{"matchLabels": {...}, "matchExpressions": [...]}`.

        As in Kubernetes None, an absent selector, matches nothing; an empty one everything.
        """
        if body is None:
            return cls.nothing()
        unknown = set(body) - {"matchLabels", "matchExpressions"}
        if unknown:
            raise SelectorError(
                f"selector has unknown fields {sorted(unknown)}; a LabelSelector has"
                " matchLabels and matchExpressions, a label mapping has text values"
            )
        labels = body.get("matchLabels") or {}
        expressions = body.get("matchExpressions") or ()
        return cls(
            (
                *(_equals(key, value) for key, value in labels.items()),
                *(_expression(item, index) for index, item in enumerate(expressions)),
            )
        )

    @classmethod
    def everything(cls) -> LabelSelector:
        """Return the selector without requirements."""
        return cls()

    @classmethod
    def nothing(cls) -> LabelSelector:
        """Return the selector that no labels satisfy."""
        return cls(matches_nothing=True)

    @property
    def is_everything(self) -> bool:
        """Whether every object matches, whatever its labels."""
        return not self.requirements and not self.matches_nothing

    def matches(self, labels: Mapping[str, str] | None) -> bool:
        """Whether the labels satisfy every requirement; None is an object without labels."""
        if self.matches_nothing:
            return False
        found = labels or {}
        return all(requirement.matches(found) for requirement in self.requirements)

    def __str__(self) -> str:
        if self.matches_nothing:
            return "<nothing>"
        return ",".join(map(str, self.requirements))


class _Parser:
    """Recursive descent over the tokens, with Kubernetes' treatment of empty values."""

    def __init__(self, text: str) -> None:
        self._scanner = Scanner(text)

    def requirements(self) -> list[Requirement]:
        """Read the whole text."""
        found: list[Requirement] = []
        if self._scanner.at(Token.END):
            return found
        while True:
            found.append(self._requirement())
            if self._scanner.take(Token.END):
                return found
            self._scanner.expect(Token.COMMA, "',' or the end")

    def _requirement(self) -> Requirement:
        absent = self._scanner.take(Token.NOT)
        start = self._scanner.position
        key = self._scanner.expect_word("a label key")
        if absent:
            return self._build(start, key, Operator.DOES_NOT_EXIST)
        if self._scanner.at(Token.END) or self._scanner.at(Token.COMMA):
            return self._build(start, key, Operator.EXISTS)
        operator = Operator(self._scanner.expect_operator())
        values = self._values() if operator in _SETS else [self._value()]
        return self._build(start, key, operator, values)

    def _build(
        self, start: int, key: str, operator: Operator, values: Sequence[str] = ()
    ) -> Requirement:
        try:
            return Requirement(key, operator, tuple(values))
        except ValueError as error:
            raise self._scanner.error(str(error), position=start) from error

    def _value(self) -> str:
        if self._scanner.at(Token.END) or self._scanner.at(Token.COMMA):
            return ""
        return self._scanner.expect_word("a value")

    def _values(self) -> list[str]:
        self._scanner.expect(Token.OPEN, "'('")
        if self._scanner.take(Token.CLOSE):
            return []
        values: list[str] = []
        while True:
            between = self._scanner.at(Token.COMMA) or self._scanner.at(Token.CLOSE)
            values.append("" if between else self._scanner.expect_word("a value"))
            if self._scanner.take(Token.CLOSE):
                return values
            self._scanner.expect(Token.COMMA, "',' or ')'")


def check_label_key(key: str) -> None:
    """Raise ValueError where `key` is not a valid label (or annotation) key."""
    prefix, slash, name = key.rpartition("/")
    if slash and (len(prefix) > 253 or not _PREFIX.match(prefix)):
        raise ValueError(
            f"label key {key!r}: the part before '/' must be a DNS name of at most 253 characters"
            " (lower case letters, digits, '-' and '.')"
        )
    if len(name) > 63 or not _NAME.match(name):
        raise ValueError(
            f"label key {key!r}: the name must have 1 to 63 letters, digits, '-', '_' or '.', and"
            " begin and end with a letter or digit"
        )


def check_label_value(value: str, *, key: str = "") -> None:
    """Raise ValueError where `value` is not a valid label value; `key` is for the message."""
    if value and (len(value) > 63 or not _NAME.match(value)):
        where = f"label {key!r}: " if key else ""
        raise ValueError(
            f"{where}value {value!r} must be empty, or have at most 63 letters, digits, '-', '_'"
            " or '.', and begin and end with a letter or digit"
        )


def _how_many(operator: Operator) -> str:
    if operator in _PRESENCE:
        return "no"
    return "at least one" if operator in _SETS else "exactly one"


def _order(requirement: Requirement) -> str:
    return requirement.key


def _as_int64(text: str) -> int | None:
    if not _INTEGER.match(text):
        return None
    number = int(text)
    return number if number in _INT64 else None


def _equals(key: str, value: object) -> Requirement:
    if not isinstance(value, str):
        raise SelectorError(f"label {key!r}: value {value!r} must be text; put it in quotes")
    try:
        return Requirement(key, Operator.EQUALS, (value,))
    except ValueError as error:
        raise SelectorError(str(error)) from error


def _expression(item: Mapping[str, Any], index: int) -> Requirement:
    where = f"matchExpressions[{index}]"
    operator = _JSON_OPERATORS.get(str(item.get("operator")))
    if operator is None:
        raise SelectorError(
            f"{where}.operator is {item.get('operator')!r}; use In, NotIn, Exists or DoesNotExist"
        )
    values = tuple(item.get("values") or ())
    if not all(isinstance(value, str) for value in values):
        raise SelectorError(f"{where}.values {list(values)!r} must be text; put them in quotes")
    try:
        return Requirement(str(item.get("key", "")), operator, values)
    except ValueError as error:
        raise SelectorError(f"{where}: {error}") from error
