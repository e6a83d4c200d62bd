"""Rules alone: what they allow."""

from __future__ import annotations

import pytest

from devkube.apiserver.calls import Attributes
from devkube.auth.policy import RbacRule, read_rules


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


def test_malformed_rules_allow_nothing():
    assert read_rules({"rules": None}) == ()
    assert not RbacRule().allows(asks())
