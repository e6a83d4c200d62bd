"""Rules alone: what they allow, what they cover."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from devkube.apiserver.calls import Attributes
from devkube.auth.policy import EVERYTHING, RbacRule, compact, describe, read_rules, uncovered


def asks(verb: str = "get", resource: str = "pods", **more: str) -> Attributes:
    name, _, subresource = resource.partition("/")
    return Attributes(verb=verb, path="", resource=name, subresource=subresource, **more)


def rule(
    verbs: str, resources: str, *, groups: tuple[str, ...] = ("",), names: str = ""
) -> RbacRule:
    return RbacRule(
        verbs=tuple(verbs.split()),
        groups=groups,
        resources=tuple(resources.split()),
        names=tuple(names.split()),
    )


@pytest.mark.parametrize(
    ("rule_", "question", "allowed"),
    [
        (rule("get", "pods"), asks(), True),
        (rule("get", "pods"), asks("list"), False),
        (rule("*", "pods"), asks("anything"), True),
        (rule("get", "pods"), asks(group="apps"), False),
        (rule("get", "pods", groups=("*",)), asks(group="apps"), True),
        (rule("get", "*"), asks(resource="pods/log"), True),
        (rule("get", "pods"), asks(resource="pods/log"), False),
        (rule("get", "pods/log"), asks(resource="pods/log"), True),
        (rule("get", "pods/log"), asks(), False),
        (rule("get", "*/log"), asks(resource="pods/log"), True),
        (rule("get", "*/log"), asks(), False),
        (rule("get", "pods/*"), asks(resource="pods/log"), False),
        (rule("get", "pods", names="a b"), asks(name="b"), True),
        (rule("get", "pods", names="a b"), asks(name="c"), False),
        (rule("list", "pods", names="a"), asks("list"), False),
    ],
)
def test_a_rule_allows_what_it_names(rule_, question, allowed):
    assert rule_.allows(question) is allowed


@pytest.mark.parametrize(
    ("url", "path", "allowed"),
    [
        ("/healthz", "/healthz", True),
        ("/healthz", "/healthz/etcd", False),
        ("/healthz/*", "/healthz/etcd", True),
        ("/healthz/*", "/healthz", False),
        ("*", "/anything", True),
    ],
)
def test_a_path_is_named_whole_or_by_its_beginning(url, path, allowed):
    assert (
        RbacRule(verbs=("get",), urls=(url,)).allows(Attributes(verb="get", path=path)) is allowed
    )
    assert not RbacRule(verbs=("get",), urls=(url,)).allows(asks())


def test_what_is_not_covered_is_told_piece_by_piece():
    owned = [rule("get list", "pods"), rule("get", "secrets", names="mine")]
    wanted = [rule("get list watch", "pods services"), rule("get", "secrets", names="mine other")]
    missing = [describe(piece) for piece in compact(uncovered(owned, wanted))]
    assert missing == [
        '{APIGroups:[""], Resources:["pods"], Verbs:["watch"]}',
        '{APIGroups:[""], Resources:["services"], Verbs:["get" "list" "watch"]}',
        '{APIGroups:[""], Resources:["secrets"], ResourceNames:["other"], Verbs:["get"]}',
    ]


def test_a_rule_for_some_names_does_not_cover_one_for_all():
    assert uncovered([rule("get", "pods", names="a")], [rule("get", "pods")])
    assert not uncovered([rule("get", "pods")], [rule("get", "pods", names="a")])


def test_malformed_rules_allow_nothing():
    assert read_rules({"rules": None}) == ()
    assert read_rules({"rules": ["x", {"verbs": "get", "resources": [1]}]}) == (RbacRule(),)
    assert not RbacRule().allows(asks())


words = st.lists(st.sampled_from(["get", "list", "pods", "pods/log", "*", "*/log"]), max_size=3)
some_rules = st.builds(
    RbacRule,
    verbs=words.map(tuple),
    groups=st.lists(st.sampled_from(["", "apps", "*"]), max_size=2).map(tuple),
    resources=words.map(tuple),
    names=st.lists(st.sampled_from(["a", "b"]), max_size=2).map(tuple),
    urls=st.lists(st.sampled_from(["/a", "/a/*", "*"]), max_size=2).map(tuple),
)
questions = st.one_of(
    st.builds(
        Attributes,
        verb=st.sampled_from(["get", "list"]),
        path=st.just(""),
        group=st.sampled_from(["", "apps"]),
        resource=st.just("pods"),
        subresource=st.sampled_from(["", "log"]),
        name=st.sampled_from(["", "a", "b"]),
    ),
    st.builds(
        Attributes, verb=st.sampled_from(["get", "list"]), path=st.sampled_from(["/a", "/a/b"])
    ),
)


@given(owned=st.lists(some_rules, max_size=3), wanted=some_rules, question=questions)
def test_covered_rules_never_allow_more(owned, wanted, question):
    if not uncovered(owned, [wanted]) and wanted.allows(question):
        assert any(mine.allows(question) for mine in owned)


@given(rule_=some_rules, question=questions)
def test_pieces_allow_together_what_the_whole_allows(rule_, question):
    assert rule_.allows(question) == any(piece.allows(question) for piece in rule_.pieces())
    assert not uncovered(EVERYTHING, [rule_])
