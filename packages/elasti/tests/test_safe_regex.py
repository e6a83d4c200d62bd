"""Expressions of users: linear in time, bounded in size."""

import sys
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasti.safe_regex import ExpressionCompiler, compile_safely


@pytest.mark.parametrize(
    "expression",
    [
        "^/(?:a|ab|b)+$",
        "(?:x|xx)+y",
        "^(.|a.)*x$",
        "^(?:a|aa){1,64}c",
        "(a+)+$",
        "(a*)*b",
        ".*.*.*.*x",
        "(?:a|b)*a(?:a|b){400}c",
    ],
)
def test_what_backtracks_elsewhere_is_fast(expression):
    find = compile_safely(expression)
    began = time.process_time()
    for value in ("/" + "ab" * 511 + "!", "x" * 1024, "a" * 1024):
        find(value)
    assert time.process_time() - began < 0.1


@pytest.mark.parametrize(
    ("expression", "words"),
    [
        (r"(.)\1", "invalid escape"),
        ("(?=a+)b", "RE2"),
        ("((", "missing"),
        ("a{1001}", "repetition"),
        ("((a{100}){100}){100}", "repetition"),
        ("(?:abc){700}", "too large"),
        (r"\pL{900}", "too large"),
        ("(" * 1500 + "a" + ")" * 1500, "RE2|too large"),
        ("a" * 5000, "longer"),
        ("\udc80", "RE2"),
    ],
)
def test_what_cannot_be_used_is_refused_with_words(expression, words):
    with pytest.raises(ValueError, match=words) as refused:
        compile_safely(expression)
    assert len(str(refused.value)) < 400


@pytest.mark.parametrize(
    ("expression", "found", "missed"),
    [
        ("/v[0-9]+/shops/[0-9]+/health", "/v1/shops/23/health", "/v1/shops/x/health"),
        ("/v[0-9]+/.*", "/api/v12/x", "/api/vx/"),
        ("/(a|b)/c?", "/b/", "/d/c"),
        ("kube-probe/.+", "kube-probe/1.36", "kube-probe/"),
        ("/x{1,3}y", "/xxy", "/y"),
        ("^a+b+c$", "aabbc", "xabc"),
        ("a.*|b.*|c.+", "xc1", "xc"),
        ("^/[[:alpha:]]+$", "/abc", "/1"),
        (r"^\pL\z", "é", "1"),
    ],
)
def test_expressions_mean_what_they_mean_in_go(expression, found, missed):
    find = compile_safely(expression)
    assert find(found)
    assert not find(missed)


@pytest.mark.parametrize(("expression", "taken"), [("a{450}", 4), ("a", 62)])
def test_expressions_of_one_object_are_bounded_together(expression, taken):
    expressions = ExpressionCompiler()
    for _ in range(taken):
        expressions.compile(expression)
    with pytest.raises(ValueError, match="together"):
        expressions.compile(expression)


def test_without_the_engine_one_message_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "re2", None)
    with pytest.raises(ValueError, match=r"google-re2.*Exact or PathPrefix"):
        compile_safely("/health")


@given(st.text(alphabet="ab.*+?()|[]{}1,\\^$", max_size=14))
def test_whatever_is_taken_is_fast_on_long_values(expression):
    try:
        find = compile_safely(expression)
    except ValueError:
        return
    began = time.process_time()
    find("a" * 1024)
    find("ab" * 512)
    assert time.process_time() - began < 0.5
