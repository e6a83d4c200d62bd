"""`probeResponse`: requests that the resolver answers itself, without waking the workload. Pure.

Rules are compiled once for a Service. A rule matches if its path, its method, and every header and query
parameter match; the first match wins. As in KubeElasti, a path prefix matches whole segments (`/health` matches
`/health/live`, but not `/healthy`), a regular expression may match anywhere in a value, header names ignore case,
and any of the first eight values of a repeated parameter may match.

A rule with an unusable expression matches nothing. Requests for it wake the workload, which is the harmless
mistake.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from urllib.parse import parse_qsl

from elasti.api.types import NamedMatch, PathMatch, ProbeResponse
from elasti.resolver.proxy.upstream.interface import LocalAnswer, RequestFacts
from elasti.safe_regex import ExpressionCompiler

# Longer values match no expression.
_LONGEST = 1024
_MOST_VALUES = 8


class LocalAnswerRules:
    """The compiled rules of one Service."""

    __slots__ = ("_rules",)

    def __init__(self, rules: Sequence[ProbeResponse]) -> None:
        expressions = ExpressionCompiler()
        self._rules = tuple(_LocalAnswerRule(rule, expressions) for rule in rules)

    def __bool__(self) -> bool:
        return bool(self._rules)

    def answer(self, request: RequestFacts) -> LocalAnswer | None:
        """Return the first matching rule's response."""
        if not self._rules:
            return None
        path, _, query = request.target.decode("latin-1").partition("?")
        parameters: dict[str, list[str]] | None = None
        for rule in self._rules:
            if not rule.path(path) or (rule.method and rule.method != request.method):
                continue
            if not all(test(request.field(name)) for name, test in rule.headers):
                continue
            if rule.parameters and parameters is None:
                parameters = _values(query)
            known = parameters or {}
            if all(any(map(test, known.get(name, ()))) for name, test in rule.parameters):
                return rule.response
        return None


class _LocalAnswerRule:
    __slots__ = ("headers", "method", "parameters", "path", "response")

    def __init__(self, rule: ProbeResponse, expressions: ExpressionCompiler) -> None:
        self.path = _path_test(rule.path, expressions)
        self.method = (rule.method or "").encode()
        self.headers = tuple(
            (item.name.lower().encode(), _header_test(item, expressions)) for item in rule.headers
        )
        self.parameters = tuple(
            (item.name, _value_test(item, expressions)) for item in rule.query_params
        )
        self.response = LocalAnswer(rule.response.status, rule.response.body.encode())


def _path_test(match: PathMatch, expressions: ExpressionCompiler) -> Callable[[str], bool]:
    if match.type == "Exact":
        return lambda path: path == match.value
    if match.type == "RegularExpression":
        return _expression_test(match.value, expressions)
    prefix = match.value.rstrip("/")
    inside = prefix + "/"
    return lambda path: path == prefix or path.startswith(inside)


def _header_test(
    match: NamedMatch, expressions: ExpressionCompiler
) -> Callable[[bytes | None], bool]:
    test = _value_test(match, expressions)
    return lambda value: value is not None and test(value.decode("latin-1"))


def _value_test(match: NamedMatch, expressions: ExpressionCompiler) -> Callable[[str], bool]:
    if match.type == "Exact":
        return lambda value: value == match.value
    return _expression_test(match.value, expressions)


def _expression_test(expression: str, expressions: ExpressionCompiler) -> Callable[[str], bool]:
    try:
        find = expressions.compile(expression)
    except ValueError:
        return lambda _value: False
    return lambda value: len(value) <= _LONGEST and find(value) is not None


def _values(query: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    try:
        pairs = parse_qsl(query, keep_blank_values=True, max_num_fields=100)
    except ValueError:
        return found
    for name, value in pairs:
        values = found.setdefault(name, [])
        if len(values) < _MOST_VALUES:
            values.append(value)
    return found
