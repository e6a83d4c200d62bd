"""`probeResponse`: requests that are answered without waking."""

from __future__ import annotations

import random
import time

import msgspec
import pytest
from tests.resolver.services.service_rig import Asked

from elasti.api.types import ProbeResponse
from elasti.resolver.proxy.upstream.interface import LocalAnswer
from elasti.resolver.services.local_answers import LocalAnswerRules


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
    assert found.answer(Asked("/a")) == LocalAnswer(204)
    assert found.answer(Asked("/b")) == LocalAnswer(503, b"asleep")


def test_without_rules_nothing_is_answered():
    assert rules().answer(Asked()) is None
    assert not rules()


def test_an_expression_that_cannot_be_used_matches_nothing():
    for bad in ("(", "a{2000}", r"(.)\1"):
        assert not matches({"path": {"type": "RegularExpression", "value": bad}}, Asked("/aa"))


def test_of_a_repeated_parameter_the_first_eight_values_count():
    rule = {"queryParams": [{"name": "q", "value": "x", "type": "RegularExpression"}]}
    assert matches(rule, Asked("/?" + "q=a&" * 7 + "q=x"))
    assert not matches(rule, Asked("/?" + "q=a&" * 8 + "q=x"))


def test_rules_of_one_service_are_fast_together_at_worst():
    # Automata that outgrow their memory, so that every state is followed for every character.
    slow = "(?:a|b)*a(?:a|b){450}c"
    named = [{"name": "q", "value": slow, "type": "RegularExpression"}]
    found = rules(*({"queryParams": named} for _ in range(32)))
    value = "".join(random.Random(1).choices("ab", k=1024))
    began = time.process_time()
    assert found.answer(Asked("/?" + f"q={value}&" * 60)) is None
    assert time.process_time() - began < 0.5
