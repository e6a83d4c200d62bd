from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kubeloop.objects.selectors import LabelSelector, Requirement, SelectorError, SelectorOperator

_ALNUM = "abcXYZ019"
_names = st.builds(
    lambda first, middle, last: first + middle + last,
    st.sampled_from(_ALNUM),
    st.text(alphabet=_ALNUM + "-_.", max_size=20),
    st.sampled_from(_ALNUM),
) | st.sampled_from(["in", "notin", "a"])
_keys = _names | st.builds("{}/{}".format, st.sampled_from(["example.com", "a", "x-y.io"]), _names)
_values = _names | st.just("")
_numbers = st.integers(min_value=0, max_value=2**63 - 1).map(str)


def _requirements() -> st.SearchStrategy[Requirement]:
    presence = st.sampled_from([SelectorOperator.EXISTS, SelectorOperator.DOES_NOT_EXIST])
    exact = st.sampled_from(
        [SelectorOperator.EQUALS, SelectorOperator.DOUBLE_EQUALS, SelectorOperator.NOT_EQUALS]
    )
    sets = st.sampled_from([SelectorOperator.IN, SelectorOperator.NOT_IN])
    numeric = st.sampled_from([SelectorOperator.GREATER_THAN, SelectorOperator.LESS_THAN])
    return st.one_of(
        st.builds(Requirement, _keys, presence),
        st.builds(Requirement, _keys, exact, st.tuples(_values)),
        st.builds(Requirement, _keys, sets, st.lists(_values, min_size=1, max_size=4).map(tuple)),
        st.builds(Requirement, _keys, numeric, st.tuples(_numbers)),
    )


_selectors = st.lists(_requirements(), max_size=5).map(lambda found: LabelSelector(tuple(found)))


@given(_selectors)
def test_the_text_of_a_selector_parses_to_the_same_selector(selector: LabelSelector) -> None:
    assert LabelSelector.parse(str(selector)) == selector


@given(_selectors, st.dictionaries(_keys, _values, max_size=5))
def test_a_selector_is_the_conjunction_of_its_requirements(
    selector: LabelSelector, labels: dict[str, str]
) -> None:
    assert selector.matches(labels) == all(r.matches(labels) for r in selector.requirements)


@given(_keys, st.lists(_values, min_size=1, max_size=3), st.dictionaries(_keys, _values))
def test_notin_is_the_negation_of_in(key: str, values: list[str], labels: dict[str, str]) -> None:
    inside = Requirement(key, SelectorOperator.IN, tuple(values))
    outside = Requirement(key, SelectorOperator.NOT_IN, tuple(values))
    assert inside.matches(labels) is not outside.matches(labels)


@given(st.text(alphabet="ab/.-!=<>(), \tinot", max_size=25))
def test_any_text_parses_to_normal_form_or_is_refused(text: str) -> None:
    try:
        selector = LabelSelector.parse(text)
    except SelectorError:
        return
    assert LabelSelector.parse(str(selector)) == selector


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("", ""),
        ("   ", ""),
        ("x=a,y=b,z=c", "x=a,y=b,z=c"),
        (" x = a , y != b ", "x=a,y!=b"),
        ("x=,z= ", "x=,z="),
        ("x= ,z= ", "x=,z="),
        ("x==a", "x==a"),
        ("y,!x", "!x,y"),
        ("! x", "!x"),
        ("x in (abc)", "x in (abc)"),
        ("x in(c,b,a,b)", "x in (a,b,c)"),
        ("x notin (abc,def)", "x notin (abc,def)"),
        ("x in (foo,,baz)", "x in (,baz,foo)"),
        ("x in (,foo,)", "x in (,foo)"),
        ("x in (,)", "x in (,)"),
        ("x in (a),y>7,z<100", "x in (a),y>7,z<100"),
        ("in,notin", "in,notin"),
        ("in in (in,notin)", "in in (in,notin)"),
        ("a=in", "a=in"),
        ("a.b/c-d_e=f.g-h_i", "a.b/c-d_e=f.g-h_i"),
        ("x\n in\t(\r\na)", "x in (a)"),
    ],
)
def test_text_is_read_into_the_normal_form(text: str, normal: str) -> None:
    assert str(LabelSelector.parse(text)) == normal


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x=a,", "position 4: found the end, expected a label key"),
        (",x=a", "position 0: found ',', expected a label key"),
        ("x=a||y=b", "value 'a||y' must be empty"),
        ("x==a==b", "position 4: found '==', expected ',' or the end"),
        ("!x=a", "position 2: found '=', expected ',' or the end"),
        ("x<a", "'a' is not a 64-bit integer"),
        ("x>9223372036854775808", "is not a 64-bit integer"),
        ("x in ()", "IN needs at least one value"),
        ("x in a", "position 5: found 'a', expected '('"),
        ("x in (a", "position 7: found the end, expected ',' or ')'"),
        ("x in (a b)", "position 8: found 'b', expected ',' or ')'"),
        ("x in (a,=)", "position 8: found '=', expected a value"),
        ("x notin", "position 7: found the end, expected '('"),
        ("x y", "position 2: found 'y', expected one of"),
        ("x!", "position 1: found '!', expected one of"),
        ("x=(a)", "position 2: found '(', expected a value"),
        ("a,b/-c", "position 2: label key 'b/-c': the name"),
        ("UPPER/a", "the part before '/' must be a DNS name"),
        ("a/b/c", "the part before '/' must be a DNS name"),
        (f"{'k' * 64}", "1 to 63"),
        (f"k={'v' * 64}", "at most 63"),
        (f"{'p' * 254}/k", "at most 253"),
        ("/k", "the part before '/'"),
    ],
)
def test_errors_name_their_position(text: str, message: str) -> None:
    with pytest.raises(SelectorError) as caught:
        LabelSelector.parse(text)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("text", "labels", "expected"),
    [
        ("", {"x": "y"}, True),
        ("x=y", {"x": "y"}, True),
        ("x=y,z=w", {"x": "y", "z": "w"}, True),
        ("x!=y,z!=w", {"x": "z", "z": "a"}, True),
        ("x=y", {"x": "z"}, False),
        ("x=", {}, False),
        ("x=", {"x": ""}, True),
        ("x!=y", {}, True),
        ("x", {"x": ""}, True),
        ("!x", {"x": ""}, False),
        ("!x", {}, True),
        ("x in (,a)", {"x": ""}, True),
        ("x in (,a)", {}, False),
        ("x notin (a)", {}, True),
        ("x notin (a)", {"x": "a"}, False),
        ("x>1", {"x": "2"}, True),
        ("x>1", {"x": "1"}, False),
        ("x<1", {"x": "-5"}, True),
        ("x<1", {"x": "x"}, False),
        ("x<1", {}, False),
        ("x>1", {"x": "1_0"}, False),
    ],
)
def test_labels_match_as_in_kubernetes(text: str, labels: dict[str, str], expected: bool) -> None:
    assert LabelSelector.parse(text).matches(labels) is expected


def test_a_mapping_of_labels_asks_for_each_of_them() -> None:
    assert str(LabelSelector.parse({"b": "2", "a": "1"})) == "a=1,b=2"


def test_a_json_selector_joins_labels_and_expressions() -> None:
    selector = LabelSelector.parse(
        {
            "matchLabels": {"app": "web"},
            "matchExpressions": [
                {"key": "tier", "operator": "In", "values": ["b", "a"]},
                {"key": "env", "operator": "NotIn", "values": ["dev"]},
                {"key": "x", "operator": "Exists"},
                {"key": "y", "operator": "DoesNotExist"},
            ],
        }
    )
    assert str(selector) == "app=web,env notin (dev),tier in (a,b),x,!y"


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"matchLabel": {"a": "b"}}, "unknown fields ['matchLabel']"),
        ({"matchExpressions": [{"key": "a", "operator": "Gt", "values": ["1"]}]}, "use In, NotIn"),
        ({"matchExpressions": [{"key": "a", "operator": "In"}]}, "matchExpressions[0]: label 'a'"),
        ({"matchExpressions": [{"key": "a", "operator": "Exists", "values": ["b"]}]}, "no values"),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": [1]}]}, "in quotes"),
        ({"matchLabels": {"a": 1}}, "label 'a': value 1 must be text"),
    ],
)
def test_a_wrong_json_selector_names_the_field(body: dict[str, object], message: str) -> None:
    with pytest.raises(SelectorError) as caught:
        LabelSelector.parse(body)
    assert message in str(caught.value)


def test_absent_json_selector_matches_nothing_and_empty_one_everything() -> None:
    nothing, everything = LabelSelector.from_json(None), LabelSelector.from_json({})
    assert nothing.matches_nothing
    assert not nothing.is_everything
    assert not nothing.matches({})
    assert everything.is_everything
    assert everything.matches(None)


def test_the_text_of_nothing_is_refused_by_the_grammar() -> None:
    with pytest.raises(SelectorError):
        LabelSelector.parse(str(LabelSelector.nothing()))
