"""`probeResponse`: requests that the resolver answers itself, without waking anybody. Pure.

Rules are compiled once for a Service. A rule matches when its path, method, and every header and
query parameter do; the first rule that matches answers. As in the Gateway API, a path prefix matches
whole segments (`/health` matches `/health/live`, never `/healthy`), a regular expression must match
the whole value, header names ignore case, and of a repeated parameter the first value counts.

A rule with an expression that cannot be used matches nothing: a request that should have been
answered here wakes the workload, which is the harmless mistake.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import parse_qsl

from elasti.resolver.expressions import compile_safely
from elasti.resolver.proxy.target import LocalAnswer

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from elasti.api.types import NamedMatch, PathMatch, ProbeResponse
    from elasti.resolver.proxy.target import Asked

_NEVER = re.compile(r"(?!)")
# Expressions see no more than this of a value; longer ones match nothing.
_LONGEST = 4096


class Rules:
    """The compiled rules of one Service."""

    __slots__ = ("_rules",)

    def __init__(self, rules: Sequence[ProbeResponse]) -> None:
        self._rules = tuple(_Rule(rule) for rule in rules)

    def __bool__(self) -> bool:
        return bool(self._rules)

    def answer(self, asked: Asked) -> LocalAnswer | None:
        """Return the first matching rule's response."""
        if not self._rules:
            return None
        path, _, query = asked.target.decode("latin-1").partition("?")
        parameters: dict[str, str] | None = None
        for rule in self._rules:
            if not rule.path(path) or (rule.method and rule.method != asked.method):
                continue
            if not all(test(asked.field(name)) for name, test in rule.headers):
                continue
            if rule.parameters and parameters is None:
                parameters = _first_values(query)
            if all(test((parameters or {}).get(name)) for name, test in rule.parameters):
                return rule.response
        return None


class _Rule:
    __slots__ = ("headers", "method", "parameters", "path", "response")

    def __init__(self, rule: ProbeResponse) -> None:
        self.path = _path_test(rule.path)
        self.method = (rule.method or "").encode()
        self.headers = tuple(
            (item.name.lower().encode(), _header_test(item)) for item in rule.headers
        )
        self.parameters = tuple((item.name, _value_test(item)) for item in rule.query_params)
        self.response = LocalAnswer(rule.response.status, rule.response.body.encode())


def _path_test(match: PathMatch) -> Callable[[str], bool]:
    if match.type == "Exact":
        return lambda path: path == match.value
    if match.type == "RegularExpression":
        return _expression_test(match.value)
    prefix = match.value.rstrip("/")
    inside = prefix + "/"
    return lambda path: path == prefix or path.startswith(inside)


def _header_test(match: NamedMatch) -> Callable[[bytes | None], bool]:
    test = _value_test(match)
    return lambda value: value is not None and test(value.decode("latin-1"))


def _value_test(match: NamedMatch) -> Callable[[str | None], bool]:
    if match.type == "Exact":
        return lambda value: value == match.value
    test = _expression_test(match.value)
    return lambda value: value is not None and test(value)


def _expression_test(expression: str) -> Callable[[str], bool]:
    try:
        pattern = compile_safely(expression)
    except ValueError:
        pattern = _NEVER
    return lambda value: len(value) <= _LONGEST and pattern.fullmatch(value) is not None


def _first_values(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=100)
    except ValueError:
        return {}
    return dict(reversed(pairs))
