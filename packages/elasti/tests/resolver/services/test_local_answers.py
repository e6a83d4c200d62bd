"""`probeResponse`: requests that are answered without waking."""

from __future__ import annotations

import time

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasti.api.safe_regex import compile_safely
from elasti.api.types import ProbeResponse
from elasti.resolver.services.local_answers import LocalAnswerRules


class Asked:
    def __init__(self, target="/", method="GET", **fields):
        self.target = target.encode()
        self.method = method.encode()
        self.host = b"web"
        self._fields = {name.replace("_", "-"): value.encode() for name, value in fields.items()}

    def field(self, name):
        return self._fields.get(name.decode())


def rules(*specs):
    return LocalAnswerRules(msgspec.convert(list(specs), tuple[ProbeResponse, ...]))


def matches(spec, asked):
    return rules(spec).answer(asked) is not None


@pytest.mark.parametrize(
    ("prefix", "path", "expected"),
    [
        ("/", "/anything", True), ("/", "/", True), ("/health", "/health", True),
        ("/health", "/health/", True), ("/health", "/health/live", True), ("/health/", "/health", True),
        ("/health", "/healthy", False), ("/health", "/", False), ("/health", "/Health", False),
        ("/health", "/health?x=1", True),
    ],
)  # fmt: skip
def test_a_prefix_matches_whole_segments(prefix, path, expected):
    spec = {"path": {"type": "PathPrefix", "value": prefix}}
    assert matches(spec, Asked(path)) is expected


def test_an_exact_path_is_compared_without_the_query():
    spec = {"path": {"type": "Exact", "value": "/ping"}}
    assert matches(spec, Asked("/ping?a=b"))
    assert not matches(spec, Asked("/ping/"))


@pytest.mark.parametrize(
    ("expression", "path", "expected"),
    [
        ("/v[0-9]+/ping", "/v12/ping", True), ("/v[0-9]+/ping", "/x/v12/ping/more", True),
        ("/v[0-9]+/ping", "/v/ping", False), ("^/v[0-9]+/ping$", "/v12/ping", True),
        ("^/v[0-9]+/ping$", "/v12/ping/more", False), ("^/v[0-9]+/ping", "/x/v12/ping", False),
        (".*/ping$", "/x/ping", True), (".*/ping$", "/x/pong", False), ("", "/", True),
    ],
)  # fmt: skip
def test_an_expression_is_looked_for_anywhere_as_kubeelasti_does(expression, path, expected):
    spec = {"path": {"type": "RegularExpression", "value": expression}}
    assert matches(spec, Asked(path)) is expected


def test_all_parts_of_a_rule_must_match():
    spec = {
        "path": {"value": "/h"},
        "method": "HEAD",
        "headers": [{"name": "User-Agent", "value": "GoogleHC.*", "type": "RegularExpression"}],
        "queryParams": [{"name": "full", "value": "1"}],
    }
    good = {"target": "/h?full=1&full=2", "method": "HEAD", "user_agent": "GoogleHC/1.0"}
    assert matches(spec, Asked(**good))
    assert not matches(spec, Asked(**good | {"method": "GET"}))
    assert matches(spec, Asked(**good | {"target": "/h?full=2&full=1"}))
    assert not matches(spec, Asked(**good | {"target": "/h?full=2&full=3"}))
    assert not matches(spec, Asked(**good | {"target": "/h"}))
    assert not matches(spec, Asked(**good | {"user_agent": "curl"}))
    assert not matches(spec, Asked("/h?full=1", "HEAD"))


def test_an_absent_header_does_not_match_an_empty_value():
    assert not matches({"headers": [{"name": "X-Probe"}]}, Asked())
    assert matches({"headers": [{"name": "X-Probe"}]}, Asked(x_probe=""))


def test_the_first_rule_that_matches_answers():
    found = rules(
        {"path": {"value": "/a"}, "response": {"status": 204}},
        {"path": {"value": "/"}, "response": {"status": 503, "body": "asleep"}},
    )
    assert found.answer(Asked("/a")) == (204, b"")
    assert found.answer(Asked("/b")) == (503, b"asleep")


def test_without_rules_nothing_is_answered():
    assert rules().answer(Asked()) is None
    assert not rules()


def test_an_expression_that_cannot_be_used_matches_nothing():
    for bad in ("(", "(a+)+", r"(.)\1"):
        assert not matches({"path": {"type": "RegularExpression", "value": bad}}, Asked("/aa"))


@pytest.mark.parametrize(
    "expression",
    [
        "(a+)+",
        "(a*)*b",
        "(?:a|a+)*",
        r"(.)\1",
        ".*.*.*x",
        ".*a*.*b",
        "a+b+c",
        "(?=a+)b",
        "(a{1,5}){2,9}",
        "((",
    ],
)
def test_expressions_that_could_stop_the_loop_are_refused(expression):
    with pytest.raises(ValueError, match=r"regular expression|allowed"):
        compile_safely(expression)


@pytest.mark.parametrize(
    ("expression", "found", "missed"),
    [
        ("/v[0-9]+/.*", "/api/v12/x", "/api/vx/"),
        ("/(a|b)/c?", "/b/", "/d/c"),
        ("kube-probe/.+", "kube-probe/1.36", "kube-probe/"),
        ("/x{1,3}y", "/xxy", "/y"),
        ("^a+b+c$", "aabbc", "xabc"),
        (".*a+b.*", "xaab", "xb"),
        ("a.*|b.*|c.+", "xc1", "xc"),
    ],
)
def test_ordinary_expressions_are_taken(expression, found, missed):
    find = compile_safely(expression)
    assert find(found)
    assert not find(missed)


@given(st.text(alphabet="ab.*+?()|[]{}1,\\^$", max_size=14))
def test_whatever_is_taken_is_fast_on_long_values(expression):
    try:
        find = compile_safely(expression)
    except ValueError:
        return
    began = time.process_time()
    find("a" * 1024)
    find("ab" * 512)
    assert time.process_time() - began < 2.0
