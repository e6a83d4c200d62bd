"""Label selectors: Kubernetes' whole grammar, parsed once and matched often.

A selector is a conjunction of requirements in normal form: sorted by key, set values sorted. Two
selectors are special: *everything* has no requirement, *nothing* is what an absent `LabelSelector`
means in Kubernetes and matches no object at all. The text of *nothing* is one that no server
accepts, so that it can never turn into a list of everything by accident.

    <selector>    = <requirement> {"," <requirement>} | ""
    <requirement> = ["!"] KEY | KEY ("=" | "==" | "!=" | ">" | "<") [VALUE]
                  | KEY ("in" | "notin") "(" VALUE {"," VALUE} ")"

`SelectorScanner` is the lexer, with positions for messages. `in` and `notin` are words like any
other until an operator is expected, so that they may also be keys and values, as in Kubernetes.
"""

from __future__ import annotations

import dataclasses
import enum
import re
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

from kubeloop.objects.names import DNS_SUBDOMAIN

_TOKEN = re.compile(r"[ \t\r\n]*(?:(?P<symbol>==|!=|[=!(),<>])|(?P<word>[^ \t\r\n=!(),<>]+))?")
_OPERATOR_TOKENS = frozenset({"=", "==", "!=", "<", ">", "in", "notin"})


_NAME = re.compile(r"([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9]\Z")
_PREFIX = re.compile(rf"{DNS_SUBDOMAIN}\Z")
_INTEGER = re.compile(r"[+-]?[0-9]+\Z")


class SelectorError(ValueError):
    """A selector that cannot be read; the message names the position or the field."""


class SelectorToken(enum.Enum):
    """Tokens with one fixed text; everything else is a word or an operator."""

    END = ""
    NOT = "!"
    COMMA = ","
    OPEN = "("
    CLOSE = ")"


class SelectorScanner:
    """One token of look-ahead over the text of a selector."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._end = 0
        self._advance()

    @property
    def position(self) -> int:
        """Where the present token begins, counted from 0."""
        return self._start

    def at(self, token: SelectorToken) -> bool:
        """Whether the present token is this one."""
        return self._literal == token.value

    def take(self, token: SelectorToken) -> bool:
        """Step over the token if it is the present one; say whether it was."""
        found = self.at(token)
        if found:
            self._advance()
        return found

    def expect(self, token: SelectorToken, wanted: str) -> None:
        """Step over the token, or raise."""
        if not self.take(token):
            raise self._unexpected(wanted)

    def expect_word(self, wanted: str) -> str:
        """Return the present word and step over it, or raise."""
        if not self._is_word:
            raise self._unexpected(wanted)
        return self._advance()

    def expect_operator(self) -> str:
        """Return the present operator and step over it, or raise."""
        if self._literal not in _OPERATOR_TOKENS:
            raise self._unexpected("one of = == != in notin < > ',' or the end")
        return self._advance()

    def error(self, message: str, *, position: int) -> SelectorError:
        """Return an error that shows where in the text it is."""
        return SelectorError(f"selector {self._text!r}, position {position}: {message}")

    def _unexpected(self, wanted: str) -> SelectorError:
        found = repr(self._literal) if self._literal else "the end"
        return self.error(f"found {found}, expected {wanted}", position=self._start)

    def _advance(self) -> str:
        previous = getattr(self, "_literal", "")
        match = _TOKEN.match(self._text, self._end)
        assert match is not None  # every part of the pattern is optional
        self._literal: str = match["symbol"] or match["word"] or ""
        self._is_word = match["word"] is not None
        self._end = match.end()
        self._start = self._end - len(self._literal)
        return previous


SelectorLike: TypeAlias = "str | Mapping[str, Any] | LabelSelector"

_INT64 = range(-(2**63), 2**63)


class SelectorOperator(enum.Enum):
    """The operator of a requirement; the value is its text form."""

    EQUALS = "="
    DOUBLE_EQUALS = "=="
    NOT_EQUALS = "!="
    IN = "in"
    NOT_IN = "notin"
    EXISTS = ""
    DOES_NOT_EXIST = "!"
    GREATER_THAN = ">"
    LESS_THAN = "<"


_SETS = (SelectorOperator.IN, SelectorOperator.NOT_IN)
_PRESENCE = (SelectorOperator.EXISTS, SelectorOperator.DOES_NOT_EXIST)
_NUMERIC = (SelectorOperator.GREATER_THAN, SelectorOperator.LESS_THAN)
_JSON_OPERATORS: Mapping[str, SelectorOperator] = {
    "In": SelectorOperator.IN,
    "NotIn": SelectorOperator.NOT_IN,
    "Exists": SelectorOperator.EXISTS,
    "DoesNotExist": SelectorOperator.DOES_NOT_EXIST,
}


@dataclasses.dataclass(frozen=True, slots=True)
class Requirement:
    """One condition on one label. The constructor validates; `values` is sorted and unique."""

    key: str
    operator: SelectorOperator
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
            case SelectorOperator.EQUALS | SelectorOperator.DOUBLE_EQUALS | SelectorOperator.IN:
                return value in self.values
            case SelectorOperator.NOT_EQUALS | SelectorOperator.NOT_IN:
                return value not in self.values
            case SelectorOperator.EXISTS:
                return value is not None
            case SelectorOperator.DOES_NOT_EXIST:
                return value is None
            case SelectorOperator.GREATER_THAN | SelectorOperator.LESS_THAN:
                return self._compares(value)

    def _compares(self, value: str | None) -> bool:
        number, bound = _as_int64(value or ""), _as_int64(self.values[0])
        if number is None or bound is None:
            return False
        return number > bound if self.operator is SelectorOperator.GREATER_THAN else number < bound

    def __str__(self) -> str:
        if self.operator in _PRESENCE:
            return self.operator.value + self.key
        if self.operator in _SETS:
            # "()" is not a set in the grammar; the set of the empty value alone reads "(,)".
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
        return "<nothing>" if self.matches_nothing else ",".join(map(str, self.requirements))


class _Parser:
    """Recursive descent over the tokens, with Kubernetes' treatment of empty values."""

    def __init__(self, text: str) -> None:
        self._scanner = SelectorScanner(text)

    def requirements(self) -> list[Requirement]:
        """Read the whole text."""
        found: list[Requirement] = []
        if self._scanner.at(SelectorToken.END):
            return found
        while True:
            found.append(self._requirement())
            if self._scanner.take(SelectorToken.END):
                return found
            self._scanner.expect(SelectorToken.COMMA, "',' or the end")

    def _requirement(self) -> Requirement:
        absent = self._scanner.take(SelectorToken.NOT)
        start = self._scanner.position
        key = self._scanner.expect_word("a label key")
        if absent:
            return self._build(start, key, SelectorOperator.DOES_NOT_EXIST)
        if self._scanner.at(SelectorToken.END) or self._scanner.at(SelectorToken.COMMA):
            return self._build(start, key, SelectorOperator.EXISTS)
        operator = SelectorOperator(self._scanner.expect_operator())
        values = self._values() if operator in _SETS else [self._value()]
        return self._build(start, key, operator, values)

    def _build(
        self, start: int, key: str, operator: SelectorOperator, values: Sequence[str] = ()
    ) -> Requirement:
        try:
            return Requirement(key, operator, tuple(values))
        except ValueError as error:
            raise self._scanner.error(str(error), position=start) from error

    def _value(self) -> str:
        if self._scanner.at(SelectorToken.END) or self._scanner.at(SelectorToken.COMMA):
            return ""
        return self._scanner.expect_word("a value")

    def _values(self) -> list[str]:
        self._scanner.expect(SelectorToken.OPEN, "'('")
        if self._scanner.take(SelectorToken.CLOSE):
            return []
        values: list[str] = []
        while True:
            between = self._scanner.at(SelectorToken.COMMA) or self._scanner.at(SelectorToken.CLOSE)
            values.append("" if between else self._scanner.expect_word("a value"))
            if self._scanner.take(SelectorToken.CLOSE):
                return values
            self._scanner.expect(SelectorToken.COMMA, "',' or ')'")


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


def _how_many(operator: SelectorOperator) -> str:
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
        return Requirement(key, SelectorOperator.EQUALS, (value,))
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
